"""IGIMS and IGIMS*: rounds of a search over latents and one over each example's own generator weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.latent_priors import LatentKL, WeightProximity
from gradleak.attacks.inversion.latents import LatentsAndWeights
from gradleak.attacks.inversion.local_training import LocalTraining
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.optimizers import Adam
from gradleak.attacks.inversion.populations import CMAES, HandOn
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import Prior, TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.schedules import StepDecay
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.attacks.inversion.variables import Part
from gradleak.results import FANG_2024, HANSEN_2016, Citation, Count, NonNegative, Positive, Whole


@dataclass(frozen=True, kw_only=True)
class IGIMS(Preset):
    """Images G(z; w) that minimize 1 − cos(g, g*) + priors, in rounds: z by CMA-ES, then w by Adam, per example.

    In a batch the k-th draws of all examples are one joint candidate with one loss. A round of populations hands on one
    sample from its final distribution; `details["samples"]` has its matching loss and that of the best candidate, round
    by round. The claim is the iterate with the smallest matching loss of all. In the next round distribution and
    weights go on where they were; Adam begins with empty moments.

    **Source**: Fang et al. 2024, algorithm 1 and appendix A: M = 300 iterations of K = 50 candidates from N(0, I) at
    first, N = 1,000 Adam steps, negative cosine (here 1 − cos), total variation 1e-6 at 32×32 and 1e-4 at 224×224,
    decay by 0.1 at 3/8, 5/8 and 7/8 of all N · T steps. Stated for GIAS and taken for this: learning rate 1e-3 (1e-5
    with BigGAN). Not stated and ours: T = 4 rounds; the weight 0.1 of the KL on z, which is that of Li et al. 2022; the
    weight 1e-5 of ‖w − w₀‖, stated as 1 for BigGAN alone; what the decay counts. At 1e-3 and above the weights of a
    decoder of 320,000 stayed where they were: on one digit 200 steps took the loss from 7.2e-3 to 5.1e-3 without the
    term, to 5.9e-3 with 1e-4, and nowhere with 1e-3. Deviation: the weights go on from their
    best iterate of a round, not from the last.

    **Cost**: T · (K · M + 3 · N) plain gradients a start, 18,000 a round by default.

    Attributes:
        rounds: T.
        latent_iterations: M, populations a round.
        weight_iterations: N, Adam steps a round.
        population: K.
        restarts: starts a target.
        weight_rate: learning rate of weights.
        total_variation: weight for the mean over neighbor pairs as `TotalVariation` defines it.
        latent_kl: weight of `LatentKL`.
        weight_proximity: weight of `WeightProximity`, ‖w − w₀‖ not squared.
        hand_on: what weights begin with, a sample (the paper) or the best candidate.
        local_training: how several local steps are read: as the average gradient (AGA, the paper), which costs as much as
            for one step, or unrolled.
        patience: stop after so many populations or steps without progress of any start; None never.
    """

    name: ClassVar[str] = "igims"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "generator")
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024, HANSEN_2016)
    summary: ClassVar[str] = "Rounds of latents by CMA-ES and generator weights by Adam (Fang et al. 2024)."

    rounds: Iterations = 4
    latent_iterations: Iterations = 300
    weight_iterations: Iterations = 1000
    population: Annotated[int, Whole(2)] = 50
    restarts: Count = 1
    weight_rate: Positive = 1e-3
    total_variation: NonNegative = 1e-6
    latent_kl: NonNegative = 0.1
    weight_proximity: NonNegative = 1e-5
    hand_on: HandOn = HandOn.SAMPLE
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        cmaes = CMAES(population=self.population, hand_on=self.hand_on)
        weights = Adam(learning_rate=self.weight_rate, schedule=StepDecay())
        return Inversion(
            matching=CosineDistance(),
            variables=LatentsAndWeights(),
            priors=_priors(self.total_variation, self.latent_kl, self.weight_proximity),
            stages=(
                SearchStage(optimizer=cmaes, iterations=self.latent_iterations, part=Part.LATENTS),
                SearchStage(optimizer=weights, iterations=self.weight_iterations, part=Part.WEIGHTS),
            ),
            rounds=self.rounds,
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            local_training=self.local_training,
            patience=self.patience,
        )


@dataclass(frozen=True, kw_only=True)
class IGIMSAdam(Preset):
    """Images G(z; w) as of `IGIMS`, with latents by Adam too: IGIMS*, the variant without populations.

    **Source**: Fang et al. 2024, ablation and appendix A: M = 1,000 and N = 1,000 Adam steps a round, learning rates 3e-2
    and 1e-3 as stated for GIAS, decayed over all rounds. What is ours is as in `IGIMS`. Deviation: each stage begins at
    the best iterate of the one before.

    **Cost**: 3 · T · (M + N) plain gradients a start, 6,000 a round by default.

    Attributes:
        rounds: T.
        latent_iterations: M, Adam steps on latents a round.
        weight_iterations: N, Adam steps on weights a round.
        restarts: starts a target.
        latent_rate: learning rate of latents.
        weight_rate: learning rate of weights.
        total_variation: weight for the mean over neighbor pairs as `TotalVariation` defines it.
        latent_kl: weight of `LatentKL`.
        weight_proximity: weight of `WeightProximity`, ‖w − w₀‖ not squared.
        local_training: how several local steps are read: as the average gradient (AGA, the paper), which costs as much as
            for one step, or unrolled.
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "igims_adam"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "generator")
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024,)
    summary: ClassVar[str] = "Rounds of latents and of generator weights, both by Adam: IGIMS* (Fang et al. 2024)."

    rounds: Iterations = 4
    latent_iterations: Iterations = 1000
    weight_iterations: Iterations = 1000
    restarts: Count = 1
    latent_rate: Positive = 3e-2
    weight_rate: Positive = 1e-3
    total_variation: NonNegative = 1e-6
    latent_kl: NonNegative = 0.1
    weight_proximity: NonNegative = 1e-5
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        latents = Adam(learning_rate=self.latent_rate, schedule=StepDecay())
        weights = Adam(learning_rate=self.weight_rate, schedule=StepDecay())
        return Inversion(
            matching=CosineDistance(),
            variables=LatentsAndWeights(),
            priors=_priors(self.total_variation, self.latent_kl, self.weight_proximity),
            stages=(
                SearchStage(optimizer=latents, iterations=self.latent_iterations, part=Part.LATENTS),
                SearchStage(optimizer=weights, iterations=self.weight_iterations, part=Part.WEIGHTS),
            ),
            rounds=self.rounds,
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            local_training=self.local_training,
            patience=self.patience,
        )


def _priors(total_variation: float, latent_kl: float, weight_proximity: float) -> Sequence[Prior]:
    return weighted(
        TotalVariation(weight=total_variation),
        LatentKL(weight=latent_kl),
        WeightProximity(weight=weight_proximity),
    )

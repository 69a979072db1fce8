"""Presets behind a generator: GGL, GIAS, IGIMS and an untrained one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import torch

from gradleak.attacks.attack import Monitor
from gradleak.attacks.inversion.engine import Inversion, Preset
from gradleak.attacks.inversion.latents import LatentKL, LatentNorm, Latents, LatentsAndWeights, WeightProximity
from gradleak.attacks.inversion.matching import CosineDistance, SquaredError
from gradleak.attacks.inversion.optimizers import Adam, Iterations, SearchStage, StepDecay
from gradleak.attacks.inversion.populations import CMAES, HandOn
from gradleak.attacks.inversion.priors import Prior, TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.reading import LocalTraining
from gradleak.attacks.inversion.variables import Part
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import (
    FANG_2024,
    HANSEN_2016,
    JEON_2021,
    LI_2022,
    ULYANOV_2018,
    Citation,
    Count,
    InputError,
    NonNegative,
    Positive,
    Whole,
    check_count,
)

# Of a round, populations get about this share of the cost at least: that of the latents in GIAS.
_POPULATIONS = 500 / 5500


@dataclass(frozen=True, kw_only=True)
class GGL(Preset):
    """Images G(z) of the generator as it came that minimize ‖g − g*‖²/‖g*‖² + w · KL(z), z by CMA-ES.

    What the generator cannot make is not found: the weights stay as they are, and the claim is the nearest image on
    its manifold, which can look right and be wrong. Where the matching loss stays high, the image is the prior's.

    **Source**: Li et al. 2022 and published code: CMA-ES with 50 candidates, 500 iterations; KL of the latent's moments
    with weight 0.1, or the generator given tanh(z) and no penalty. Deviations: the matching is relative to ‖g*‖², where
    the code has the mean over layers of the absolute one, so that the weight 0.1 does not transfer exactly; the
    distribution starts at N(0, I), where the code draws its mean uniformly from [0, 1]; the claim is the best candidate by
    matching loss. TuRBO is left out.

    **Cost**: 1 plain gradient a candidate, `population` · `iterations` a start.

    Attributes:
        iterations: populations.
        population: candidates in each.
        restarts: starts a target.
        latent_kl: w, the weight of `LatentKL`; not used with `tanh`.
        total_variation: weight for the mean over neighbor pairs as `TotalVariation` defines it; Li et al. have none.
        tanh: whether the generator is given tanh(z).
        local_training: how several local steps are read, as the average gradient or unrolled.
        patience: stop after so many populations without progress of any start; None never.
    """

    name: ClassVar[str] = "ggl"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "generator")
    citations: ClassVar[tuple[Citation, ...]] = (LI_2022, HANSEN_2016, FANG_2024)
    summary: ClassVar[str] = "Latents of a generator by CMA-ES, its weights as they came (Li et al. 2022)."

    iterations: Iterations = 500
    population: Annotated[int, Whole(2)] = 50
    restarts: Count = 1
    latent_kl: NonNegative = 0.1
    total_variation: NonNegative = 0.0
    tanh: bool = False
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    @classmethod
    def small_images(cls) -> Self:
        """Settings that Fang et al. state for 32×32 images: total variation 1e-6. Their cosine matching is not taken over."""
        return cls(total_variation=1e-6)

    @classmethod
    def large_images(cls) -> Self:
        """Settings that Fang et al. state for 224×224 images behind BigGAN: total variation 1e-4, likewise."""
        return cls(total_variation=1e-4)

    def compose(self) -> Inversion:
        """The composition that runs."""
        cmaes = CMAES(population=self.population, hand_on=HandOn.BEST)
        return Inversion(
            matching=SquaredError(),
            variables=Latents(tanh=self.tanh),
            priors=weighted(
                TotalVariation(weight=self.total_variation), LatentKL(weight=0.0 if self.tanh else self.latent_kl)
            ),
            stages=(SearchStage(optimizer=cmaes, iterations=self.iterations),),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            local_training=self.local_training,
            patience=self.patience,
        )


@dataclass(frozen=True, kw_only=True)
class GIAS(Preset):
    """Images G(z; w) that minimize 1 − cos(g, g*) + w_TV · TV: z by Adam first, then w by Adam, per example of the batch.

    The generator is public knowledge of the threat model (`HonestButCurious(generator=...)`); its weights are where the
    second stage begins. Latents start at N(0, I).

    **Source**: Jeon et al. 2021; Fang et al. 2024, appendix A: learning rates 3e-2 and 1e-3 (1e-5 for BigGAN), each
    decayed by 0.1 at 3/8, 5/8 and 7/8 of its stage, total variation 1e-6 at 32×32 and 1e-4 at 224×224. The iterations, 500
    and 5,000, are those of the script of Jeon et al. for 32×32 images. Deviations: one start by default, where that
    script has three; the second stage begins at the best latent by matching loss, not at the last.

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess of each stage.

    Attributes:
        latent_iterations: Adam steps on latents.
        weight_iterations: Adam steps on weights.
        restarts: starts a target.
        latent_rate: learning rate of latents.
        weight_rate: learning rate of weights.
        total_variation: w_TV, for the mean over neighbor pairs as `TotalVariation` defines it.
        latent_norm: weight of `LatentNorm`; the paper has none.
        local_training: how several local steps are read: as the average gradient (AGA, Fang et al. 2024), which costs as
            much as for one step, or unrolled.
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "gias"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "generator")
    citations: ClassVar[tuple[Citation, ...]] = (JEON_2021, FANG_2024)
    summary: ClassVar[str] = "Latents of a generator, then its weights, by Adam (Jeon et al. 2021)."

    latent_iterations: Iterations = 500
    weight_iterations: Iterations = 5000
    restarts: Count = 1
    latent_rate: Positive = 3e-2
    weight_rate: Positive = 1e-3
    total_variation: NonNegative = 1e-6
    latent_norm: NonNegative = 0.0
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    @classmethod
    def small_images(cls) -> Self:
        """Settings that Fang et al. state for 32×32 images: the defaults."""
        return cls()

    @classmethod
    def large_images(cls) -> Self:
        """Settings that Fang et al. state for 224×224 images behind BigGAN: total variation 1e-4, weights at a rate of 1e-5."""
        return cls(weight_rate=1e-5, total_variation=1e-4)

    def compose(self) -> Inversion:
        """The composition that runs."""
        latents = Adam(learning_rate=self.latent_rate, schedule=StepDecay())
        weights = Adam(learning_rate=self.weight_rate, schedule=StepDecay())
        return Inversion(
            matching=CosineDistance(),
            variables=LatentsAndWeights(),
            priors=weighted(TotalVariation(weight=self.total_variation), LatentNorm(weight=self.latent_norm)),
            stages=(
                SearchStage(optimizer=latents, iterations=self.latent_iterations, part=Part.LATENTS),
                SearchStage(optimizer=weights, iterations=self.weight_iterations, part=Part.WEIGHTS),
            ),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            local_training=self.local_training,
            patience=self.patience,
        )


@dataclass(frozen=True, kw_only=True)
class IGIMS(Preset):
    """Images G(z; w) that minimize 1 − cos(g, g*) + priors, in rounds: z by CMA-ES, then w by Adam, per example.

    In a batch the k-th draws of all examples are one joint candidate with one loss. A round of populations hands on its
    best candidate, or one sample from its final distribution (`hand_on="sample"`); then `details["samples"]` has its
    matching loss and that of the best candidate, round by round. The claim is the iterate with the smallest matching
    loss of all. In the next round distribution and weights go on where they were; Adam begins with empty moments.
    Where the cost is given and not the iterations, `within` splits it.

    **Source**: Fang et al. 2024, algorithm 1 and appendix A: M = 300 iterations of K = 50 candidates from N(0, I) at
    first, N = 1,000 Adam steps, negative cosine (here 1 − cos), total variation 1e-6 at 32×32 and 1e-4 at 224×224,
    decay by 0.1 at 3/8, 5/8 and 7/8 of all N · T steps. Stated for GIAS and taken for this: learning rate 1e-3 (1e-5
    with BigGAN). Not stated and ours: T = 4 rounds; the weight 0.1 of the KL on z, which is that of Li et al. 2022; what the
    decay counts. The term ‖w − w₀‖ is stated for BigGAN alone, with the weight 1, and left out elsewhere: a norm that is
    not squared holds the weights once the matching loss is as small. `large_images` has what is stated for BigGAN.
    Deviations: the weights go on from their best iterate of a round, not from the last; populations hand on their best
    candidate, where algorithm 1 draws a sample, which is worse before the distribution has converged.

    **Cost**: T · (K · M + 3 · N) plain gradients a start, 18,000 a round by default, or T · (M + N) = 5,200 iterations as the
    paper counts them, a population as much as a step.

    Attributes:
        rounds: T.
        latent_iterations: M, populations a round.
        weight_iterations: N, Adam steps a round.
        population: K.
        restarts: starts a target.
        weight_rate: learning rate of weights.
        total_variation: weight for the mean over neighbor pairs as `TotalVariation` defines it.
        latent_kl: weight of `LatentKL`.
        weight_proximity: weight of `WeightProximity`, ‖w − w₀‖ not squared; 0 for none.
        hand_on: what weights begin with, the best candidate or a sample (the paper).
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
    weight_proximity: NonNegative = 0.0
    hand_on: HandOn = HandOn.BEST
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    @classmethod
    def within(cls, plain_gradients: float, *, rounds: int = 4) -> Self:
        """The split of a cost between populations and steps: an eleventh of a round to populations, the rest to steps.

        That is what latents and weights get in `GIAS`; populations get one at least where an eleventh buys none. A step costs
        3 plain gradients and always gains, a population costs 50 and gains little once the weights have moved. So this is
        not the paper's split, which gives five parts of six to populations: at the paper's cost (72,012 in four
        rounds) it is 32 populations and 5,466 steps a round in place of 300 and 1,000, at 3,000 1 and 232.

        Args:
            plain_gradients: what a start may cost.
            rounds: T.

        Raises:
            InputError: if a round cannot buy one population and one step.
        """
        check_count(f"{cls.__name__}.rounds", rounds)
        each, population = plain_gradients / rounds, cls.population
        if not each >= population + 6:
            raise InputError(
                f"{cls.__name__}.within: expected at least {population + 6} plain gradients a round, got {each:g}; take fewer "
                "rounds, or GIAS"
            )
        populations = max(1, int(_POPULATIONS * each / population + 1e-9))
        steps = int((each - population * populations) / 3 + 1e-9) - 1
        return cls(rounds=rounds, latent_iterations=populations, weight_iterations=steps)

    @classmethod
    def small_images(cls) -> Self:
        """Settings that Fang et al. state for 32×32 images: the defaults."""
        return cls()

    @classmethod
    def large_images(cls) -> Self:
        """Settings that Fang et al. state for 224×224 images behind BigGAN, one round among them.

        Total variation and rate of the weights as of `GIAS`, and weights held with the weight 1.
        """
        return cls(rounds=1, weight_rate=1e-5, total_variation=1e-4, weight_proximity=1.0)

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
        weight_proximity: weight of `WeightProximity`, ‖w − w₀‖ not squared; 0 for none.
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
    weight_proximity: NonNegative = 0.0
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    @classmethod
    def small_images(cls) -> Self:
        """Settings that Fang et al. state for 32×32 images: the defaults."""
        return cls()

    @classmethod
    def large_images(cls) -> Self:
        """Settings that Fang et al. state for 224×224 images behind BigGAN, as of `IGIMS`."""
        return cls(rounds=1, weight_rate=1e-5, total_variation=1e-4, weight_proximity=1.0)

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


@dataclass(frozen=True, kw_only=True)
class UntrainedGenerator(Preset):
    """Images G(z; w) that minimize 1 − cos(g, g*) + w_TV · TV, w by Adam, z a random latent of each example, held.

    What it knows of images is the architecture: no data went into it, so that it needs the least knowledge of all attacks
    behind a generator. The generator of the threat model is taken as it is: `untrained_dcgan` or `deep_image_prior` for
    what the name says. Behind any other the claim has a note, since then it is an attack with a generator whose weights
    move.
    Starts differ in their latents and have the weights of the generator in common.

    **Source**: Ulyanov et al. 2018, as a prior of gradient inversion Fang et al. 2024 ("untrained generator"), who give no
    numbers: learning rate 1e-3 and decay are theirs for weights, total variation 1e-6, 5,000 steps as in `GIAS`.
    Deviation from Ulyanov et al.: no noise on the latent, and nothing is stopped early.

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess of each stage.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target.
        learning_rate: of weights.
        total_variation: w_TV, for the mean over neighbor pairs as `TotalVariation` defines it.
        local_training: how several local steps are read, as the average gradient or unrolled.
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "untrained_generator"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "generator")
    citations: ClassVar[tuple[Citation, ...]] = (ULYANOV_2018, FANG_2024)
    summary: ClassVar[str] = "Weights of an untrained network that makes the image (deep image prior)."

    iterations: Iterations = 5000
    restarts: Count = 1
    learning_rate: Positive = 1e-3
    total_variation: NonNegative = 1e-6
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        adam = Adam(learning_rate=self.learning_rate, schedule=StepDecay())
        return Inversion(
            matching=CosineDistance(),
            variables=LatentsAndWeights(),
            priors=weighted(TotalVariation(weight=self.total_variation)),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations, part=Part.WEIGHTS),),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
            local_training=self.local_training,
            patience=self.patience,
        )

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        return _noted(super()._recover(update, knowledge, generator, monitor), knowledge)

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> list[Reconstruction]:
        found = super()._recover_many(updates, knowledge, generators, monitor)
        return [_noted(each, facts) for each, facts in zip(found, knowledge, strict=True)]


def _noted(found: Reconstruction, knowledge: Knowledge) -> Reconstruction:
    """The claim with a note where the generator was trained, or may have been."""
    images = None if knowledge.generator is None else knowledge.generator.training_images
    if images is not None and not images:
        return found
    known = "is not known to be untrained" if images is None else f"was trained on {len(images):,} images"
    text = (
        f"the generator {known}, so that more than an architecture may have made this; its source is in the knowledge"
    )
    return replace(found, note="; ".join(part for part in (found.note, text) if part))

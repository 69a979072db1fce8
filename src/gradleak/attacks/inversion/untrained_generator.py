"""The deep image prior: the weights of a network that was never trained, from a random latent that is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion, SearchStage
from gradleak.attacks.inversion.latents import LatentsAndWeights
from gradleak.attacks.inversion.local_training import LocalTraining
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.optimizers import Adam
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.schedules import StepDecay
from gradleak.attacks.inversion.variables import Part
from gradleak.results import FANG_2024, ULYANOV_2018, Citation


@dataclass(frozen=True, kw_only=True)
class UntrainedGenerator(Preset):
    """Images G(z; w) that minimize 1 − cos(g, g*) + w_TV · TV, w by Adam, z a random latent of each example, held.

    What it knows of images is the architecture: no data went into it, so that it needs the least knowledge of all attacks
    behind a generator. The generator of the threat model is taken as it is; whether it was trained says its `source`.
    Starts differ in their latents and have the weights of the generator in common.

    **Source**: Ulyanov et al. 2018, as a prior of gradient inversion Fang et al. 2024 ("untrained generator"), who give no
    numbers: learning rate 1e-3 and decay are theirs for weights, total variation 1e-6, 5,000 steps as in `GIAS`.
    Deviation from Ulyanov et al.: no noise on the latent, and nothing is stopped early.

    **Cost**: 3 plain gradients an iteration and start.

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

    iterations: int = 5000
    restarts: int = 1
    learning_rate: float = 1e-3
    total_variation: float = 1e-6
    local_training: LocalTraining = LocalTraining.AVERAGE_GRADIENT
    patience: int | None = None

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

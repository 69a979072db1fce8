"""The deep image prior: the weights of a network that was never trained, from a random latent that is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.latents import LatentsAndWeights
from gradleak.attacks.inversion.local_training import LocalTraining
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.optimizers import Adam
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.schedules import StepDecay
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.attacks.inversion.variables import Part
from gradleak.attacks.monitor import Monitor
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import FANG_2024, ULYANOV_2018, Citation, Count, NonNegative, Positive


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

"""GIAS: latents by Adam, then each example's own generator weights by Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.latent_priors import LatentNorm
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
from gradleak.results import FANG_2024, JEON_2021, Citation, Count, NonNegative, Positive


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

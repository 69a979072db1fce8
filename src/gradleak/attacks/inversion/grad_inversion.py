"""GradInversion: L2 matching with fidelity, BatchNorm and group-consistency priors over several starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.matching import SquaredError
from gradleak.attacks.inversion.optimizers import Adam
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import (
    BatchNormStatistics,
    GroupConsistency,
    MeanSquare,
    Statistics,
    TotalVariation,
    weighted,
)
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.registration import Registration, Translation
from gradleak.attacks.inversion.schedules import CosineDecay
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.results import YIN_2021, Citation, Count, Natural, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class GradInversion(Preset):
    """Inputs that minimize ‖g − g*‖²/‖g*‖² + R_TV + R_l2 + R_BN + R_group by Adam with Langevin noise, starts in concert.

    Labels come from the update where they can be read off it (the paper's zero-shot rule is one of several that are
    tried), else they are optimized too. On a model without BatchNorm layers R_BN is left out, and the reconstruction says
    so; nothing takes its place.

    **Source**: Yin et al. 2021, equations 2 to 4 and 8 to 14: Adam with learning rate 0.1, 50 iterations of warm-up and
    cosine decay over 20,000; noise 0.2 times the learning rate. The weights 1e-4 (total variation), 1e-6 (l2), 0.1
    (BatchNorm) and 0.01 (group) are those by which public re-implementations reproduce the paper. Deviations: the
    matching term is relative to ‖g*‖², where the paper weighs an absolute one, so that no weight transfers exactly; total
    variation, l2 and group consistency are means over pixels (`TotalVariation`, `MeanSquare`, `GroupConsistency`), and
    registration is by whole-pixel shifts in place of RANSAC-flow; the claim is the start with the smallest matching loss.

    **Cost**: 3 plain gradients an iteration and start, of which there are 20,000 and 8 by default.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target, in lockstep; the group of `GroupConsistency`.
        learning_rate: at its largest, in model-input units.
        warm_up: iterations of linear warm-up.
        noise: of a step, as a multiple of the learning rate.
        total_variation: weight of `TotalVariation`.
        mean_square: weight of `MeanSquare`.
        batch_norm: weight of `BatchNormStatistics`.
        statistics: which moments it compares with.
        consistency: weight of `GroupConsistency`.
        registration: how starts are moved onto each other before they are averaged.
    """

    name: ClassVar[str] = "grad_inversion"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (YIN_2021,)
    summary: ClassVar[str] = (
        "L2 matching with BatchNorm and group-consistency priors over several starts (Yin et al. 2021)."
    )

    iterations: Iterations = 20_000
    restarts: Count = 8
    learning_rate: Positive = 0.1
    warm_up: Natural = 50
    noise: NonNegative = 0.2
    total_variation: NonNegative = 1e-4
    mean_square: NonNegative = 1e-6
    batch_norm: NonNegative = 0.1
    statistics: Statistics = Statistics.RUNNING
    consistency: NonNegative = 0.01
    registration: Registration = field(default_factory=Translation)

    def compose(self) -> Inversion:
        """The composition that runs."""
        # A run shorter than four warm-ups warms up over its first quarter.
        warm_up = min(self.warm_up / max(self.iterations, 1), 0.25)
        adam = Adam(learning_rate=self.learning_rate, schedule=CosineDecay(warm_up=warm_up), noise=self.noise)
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=True),
            priors=weighted(
                TotalVariation(weight=self.total_variation),
                MeanSquare(weight=self.mean_square),
                BatchNormStatistics(weight=self.batch_norm, statistics=self.statistics),
                GroupConsistency(weight=self.consistency, registration=self.registration),
            ),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
        )

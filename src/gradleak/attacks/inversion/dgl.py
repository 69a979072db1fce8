"""Deep gradient leakage as Zhang et al. run it: L2 matching by Adam, the label given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.matching import SquaredError
from gradleak.attacks.inversion.optimizers import Adam
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import BatchNormStatistics, TotalVariation, weighted
from gradleak.attacks.inversion.problem import NEEDS
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.results import HUANG_2021, ZHANG_2023, ZHU_2019, Citation, Count, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class DGL(Preset):
    """Inputs that minimize ‖g − g*‖² + priors by Adam from N(0, 1), without a box, for labels that are given.

    The first of the two attacks that Zhang et al. hold I²F against; `DLG` is the attack of the paper that it is named
    after. It is refused unless the threat model discloses the targets: the report says so.

    **Source**: Zhang et al. 2023, section 4 and appendix C.1, and its published code: Adam with learning rate 0.1 and no
    schedule, start N(0, 1), no box, no total variation. The paper adds BatchNorm statistics after Huang et al. 2021 for
    ResNet-18 and gives no weight for them; see `GS` on what to choose. Deviations: the loss is divided by ‖g*‖², which
    Adam does not notice without priors; the number of iterations, which the paper leaves open, is the default of its
    code's reconstruction class (the scripts ask for 24,000).

    **Cost**: 3 plain gradients an iteration and start, and as many for the last guess of each stage.

    Attributes:
        iterations: Adam steps.
        restarts: starts a target, in lockstep; the paper has one.
        learning_rate: in model-input units.
        total_variation: weight of `TotalVariation`.
        batch_norm: weight of `BatchNormStatistics` (running statistics).
        patience: stop after so many steps without progress of any start; None never.
    """

    name: ClassVar[str] = "dgl"
    needs: ClassVar[tuple[str, ...]] = (*NEEDS, "targets")
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, ZHU_2019, HUANG_2021)
    summary: ClassVar[str] = "L2 gradient matching by Adam with the label given (Zhang et al. 2023)."

    iterations: Iterations = 3000
    restarts: Count = 1
    learning_rate: Positive = 0.1
    total_variation: NonNegative = 0.0
    batch_norm: NonNegative = 0.0
    patience: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=False),
            priors=weighted(TotalVariation(weight=self.total_variation), BatchNormStatistics(weight=self.batch_norm)),
            stages=(SearchStage(optimizer=Adam(learning_rate=self.learning_rate), iterations=self.iterations),),
            restarts=self.restarts,
            patience=self.patience,
        )

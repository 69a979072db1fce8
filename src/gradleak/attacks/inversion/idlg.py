"""Improved Deep Leakage from Gradients: the label by its sign, then L2 matching by L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.matching import SquaredError
from gradleak.attacks.inversion.optimizers import LBFGS
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy
from gradleak.attacks.inversion.search_stage import Iterations, SearchStage
from gradleak.attacks.inversion.variables import Pixels, Start
from gradleak.results import ZHAO_2020, Citation, Count, Positive


@dataclass(frozen=True, kw_only=True)
class IDLG(Preset):
    """Inputs that minimize ‖g − g*‖² by L-BFGS from N(0, 1) without a box, for the label that the sign rule finds.

    **Source**: Zhao et al. 2020, algorithm 1 and its published code: L-BFGS with learning rate 1, 20 inner steps an
    iteration, history 100, 300 iterations; the paper is on single examples. Deviations: as `DLG`; where no label can be
    read off the update (a batch with repeats, a layer without bias and with mixed signs), labels are optimized too, which
    makes it `DLG`, and the reconstruction says so.

    **Cost**: 60 plain gradients an iteration and start.

    Attributes:
        iterations: of 20 inner steps each.
        restarts: starts a target; the paper has one.
        learning_rate: of L-BFGS, without a line search.
        restart_after: a start goes back to its best iterate with half the step after so many inner steps without progress;
            None, as the paper, for never.
    """

    name: ClassVar[str] = "idlg"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (ZHAO_2020,)
    summary: ClassVar[str] = "L2 gradient matching by L-BFGS with the label from the sign rule (Zhao et al. 2020)."

    iterations: Iterations = 300
    restarts: Count = 1
    learning_rate: Positive = 1.0
    restart_after: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        stage = SearchStage(
            optimizer=LBFGS(learning_rate=self.learning_rate),
            iterations=self.iterations,
            restart_after=self.restart_after,
        )
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=False),
            stages=(stage,),
            restarts=self.restarts,
            labels=LabelPolicy.RECOVER,
        )

"""Deep Leakage from Gradients: L2 matching, L-BFGS, joint labels."""

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
from gradleak.results import ZHU_2019, Citation, Count


@dataclass(frozen=True, kw_only=True)
class DLG(Preset):
    """Inputs and soft labels that minimize ‖g − g*‖² by L-BFGS from N(0, 1), without box or prior.

    **Source**: Zhu et al. 2019, algorithm 1 and its published code: L-BFGS with learning rate 1, 20 inner steps an
    iteration, history 100, 300 iterations. Deviations: the loss is divided by ‖g*‖² (the first step and the curvature
    test depend on the loss's scale), torch's stopping tolerances are left out, and labels that the threat model
    discloses are used instead of optimized.

    **Cost**: 60 plain gradients an iteration and start.

    Attributes:
        iterations: of 20 inner steps each.
        restarts: starts a target; the paper has one.
        restart_after: a start goes back to its best iterate with half the step after so many inner steps without
            progress; None, as the paper, for never.
    """

    name: ClassVar[str] = "dlg"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (ZHU_2019,)
    summary: ClassVar[str] = "L2 gradient matching by L-BFGS with jointly optimized labels (Zhu et al. 2019)."

    iterations: Iterations = 300
    restarts: Count = 1
    restart_after: Count | None = None

    def compose(self) -> Inversion:
        """The composition that runs."""
        stage = SearchStage(optimizer=LBFGS(), iterations=self.iterations, restart_after=self.restart_after)
        return Inversion(
            matching=SquaredError(),
            variables=Pixels(start=Start.NORMAL, box=False),
            stages=(stage,),
            restarts=self.restarts,
            labels=LabelPolicy.OPTIMIZE,
        )

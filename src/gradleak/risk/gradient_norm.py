"""The norm of the release, the common heuristic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradleak.core import Exposure
from gradleak.operators import GradientJacobian
from gradleak.results import HONG_2024, Citation, Evidence, Leakier, Outcome, Score
from gradleak.risk.measure import Measure


@dataclass(frozen=True, kw_only=True)
class GradientNorm(Measure):
    """The L2 norm of the released mean, ‖g(x)‖, over all shared tensors.

    Assumptions: a heuristic. Prior studies take a large norm for vulnerable; Hong et al. find both signs of the
    correlation, so it is kept as the baseline that better measures are compared with. It is in gradient units and has
    no pixel form. A zero release has no value (no_signal).

    Cost: one plain gradient.

    Source: Hong et al. 2024, the baseline proxy of tables 1 and 2.
    """

    name: ClassVar[str] = "gradient_norm"
    citations: ClassVar[tuple[Citation, ...]] = (HONG_2024,)
    summary: ClassVar[str] = "L2 norm of the released mean, a heuristic baseline"
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    reads_derivative: ClassVar[bool] = False

    @property
    def _unit(self) -> str:
        return "gradient"

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        value = float(operator.value.norm())
        if value == 0.0:
            return self._without_value(Outcome.NO_SIGNAL, "the released mean is zero")
        return self._score(value, Evidence.EXACT, note="a heuristic: studies disagree on its sign")

"""Extreme eigenvalues of a Gram operator, with a word on how they were found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradleak.linalg import Gram, LinearOperator, block_lanczos, lobpcg
from gradleak.operators import GradientJacobian
from gradleak.results import Evidence, Outcome
from gradleak.risk.measure import EXACT_TO


@dataclass(frozen=True, kw_only=True)
class Extreme:
    """An extreme eigenvalue.

    Attributes:
        value: the eigenvalue, or None if the products were not finite.
        outcome: converged, budget_spent or not_finite; for the smallest one also not_identifiable (it is 0) and
            not_informative (the zero operator).
        details: solver, residual, multiplicity and products, for the score.
    """

    value: float | None
    outcome: Outcome
    details: dict[str, Any]

    @property
    def evidence(self) -> Evidence:
        """Exact for a dense value, or one certified to 0.1 % by its residual, else an estimate."""
        certain = self.outcome in (Outcome.CONVERGED, Outcome.NOT_IDENTIFIABLE)
        close = not self.value or self.details.get("residual", 0.0) <= EXACT_TO * self.value
        return Evidence.EXACT if certain and close else Evidence.ESTIMATE


def largest_gram_eigenvalue(operator: GradientJacobian, *, dense_limit: int, tolerance: float) -> Extreme:
    """λmax(AᵀA): from the dense spectrum up to `dense_limit` unknowns or where it is there, else by block Lanczos."""
    if operator.has_spectrum or operator.shape[1] <= dense_limit:
        details = {"solver": "dense spectrum", "route": operator.route}
        return Extreme(value=float(operator.gram_spectrum()[-1]), outcome=Outcome.CONVERGED, details=details)
    return largest_by_lanczos(operator, tolerance=tolerance)


def largest_by_lanczos(factor: LinearOperator, *, tolerance: float, max_matvecs: int = 4000) -> Extreme:
    """λmax(BᵀB) of an operator B by block Lanczos; the start vectors come from a fresh generator with seed 0."""
    generator = torch.Generator().manual_seed(0)
    found = block_lanczos(Gram(factor), generator=generator, tolerance=tolerance, max_matvecs=max_matvecs)
    details: dict[str, Any] = {"solver": "block Lanczos", "matvecs": found.matvecs}
    if found.outcome is Outcome.NOT_FINITE:
        return Extreme(value=None, outcome=Outcome.NOT_FINITE, details=details)
    if found.outcome is Outcome.NOT_INFORMATIVE:  # the zero operator, which is an answer here
        return Extreme(value=0.0, outcome=Outcome.CONVERGED, details=details)
    details |= {"residual": float(found.residuals[0]), "multiplicity": found.multiplicity}
    return Extreme(value=float(found.values[0]), outcome=found.outcome, details=details)


def smallest_by_lobpcg(factor: LinearOperator, *, tolerance: float, max_matvecs: int = 4000) -> Extreme:
    """λmin(BᵀB) of an operator B by LOBPCG; 0 where the null space is not empty, not_finite without a value.

    Where the budget ends first (ill-conditioned operators) the value is too large.
    """
    generator = torch.Generator().manual_seed(0)
    found = lobpcg(Gram(factor), largest=False, generator=generator, tolerance=tolerance, max_matvecs=max_matvecs)
    details: dict[str, Any] = {"solver": "LOBPCG", "matvecs": found.matvecs}
    if found.outcome is Outcome.NOT_FINITE:
        return Extreme(value=None, outcome=Outcome.NOT_FINITE, details=details)
    details |= {"residual": float(found.residuals[0])}
    if found.outcome in (Outcome.NOT_INFORMATIVE, Outcome.NOT_IDENTIFIABLE):
        return Extreme(value=0.0, outcome=found.outcome, details=details)
    return Extreme(value=float(found.values[0]), outcome=found.outcome, details=details)

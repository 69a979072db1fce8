"""The Neumann series for shifted positive semidefinite systems, with its convergence condition checked."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradleak.linalg.block_lanczos import block_lanczos
from gradleak.linalg.conjugate_gradient import LinearSolution
from gradleak.linalg.operator import LinearOperator
from gradleak.results import InputError, Outcome, check_count, check_not_negative, check_positive

# Accuracy of λmax for the condition; the bound that is used is the estimate plus its residual.
_ROUGH = 1e-3


def neumann_series(
    operator: LinearOperator,
    right: Tensor,
    *,
    generator: torch.Generator,
    shift: float = 0.0,
    scale: float | None = 1.0,
    tolerance: float = 1e-8,
    max_terms: int = 1000,
) -> LinearSolution:
    """The solution x of (A + shift·I) x = b as the series α Σᵢ (I − α(A + shift·I))ⁱ b.

    Partial sums are sₜ₊₁ = sₜ + α(b − (A + shift·I) sₜ). They converge for every b in the range exactly if
    α(λmax + shift) < 2. That is checked first, with λmax by block Lanczos plus its residual; where it fails, the
    outcome is unsupported, the solution is zero and the note says what α would do. For comparison with better solvers:
    the number of terms grows like κ, where conjugate gradients need √κ.

    Args:
        operator: A, (n, n), symmetric positive semidefinite (not checked).
        right: b, (n,).
        generator: source of the start vectors for λmax.
        shift: at least 0.
        scale: α; 1 is the paper's series, None is 1/(λmax + shift), ours, which always converges.
        tolerance: stop at ‖residual‖ <= tolerance · ‖b‖.
        max_terms: budget.

    Returns:
        The last partial sum with its residual; a spent budget comes with the number of terms that its rate predicts.

    Raises:
        InputError: for a shape that does not fit, a shift, tolerance or budget that is no number of at least 0, or a scale
            that is not positive.

    Cost: λmax to 1e-3 (tens of products), then one product a term.

    Source: Zhang et al. 2023 (I²F), appendix A.1, where α = 1 and ε = 0. Deviations: the condition is checked, α can be
    scaled, the shift stands inside.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> half = DenseOperator(torch.diag(torch.tensor([0.5, 1.0], dtype=torch.float64)))
        >>> found = neumann_series(half, torch.ones(2).double(), generator=torch.Generator().manual_seed(0))
        >>> [round(entry, 6) for entry in found.solution.tolist()]
        [2.0, 1.0]
    """
    check_not_negative("shift", shift)
    check_not_negative("tolerance", tolerance)
    check_count("max_terms", max_terms, least=0)
    if scale is not None:
        check_positive("scale", scale)
    if tuple(right.shape) != (operator.shape[1],):
        raise InputError(f"neumann_series: expected a right-hand side ({operator.shape[1]},), got {tuple(right.shape)}")
    before = operator.matvecs
    top = block_lanczos(operator, generator=generator, tolerance=_ROUGH)
    x = torch.zeros_like(right)
    if top.outcome is Outcome.NOT_FINITE:
        return _solution(x, math.inf, 0, operator.matvecs - before, Outcome.NOT_FINITE)
    bound = float(top.values[0] + top.residuals[0]) + shift
    norm = float(right.norm())
    if norm == 0.0 or bound == 0.0:
        outcome = Outcome.CONVERGED if norm == 0.0 else Outcome.NOT_INFORMATIVE
        return _solution(x, 0.0 if norm == 0.0 else 1.0, 0, operator.matvecs - before, outcome)
    alpha = 1.0 / bound if scale is None else scale
    if not alpha * bound < 2.0:
        note = (
            f"the series cannot converge: scale · (λmax + shift) = {alpha * bound:.3g}, and below 2 is needed; "
            f"take a scale below {2 / bound:.3g}, or None for 1/(λmax + shift)"
        )
        return _solution(x, 1.0, 0, operator.matvecs - before, Outcome.UNSUPPORTED, note)
    residual = right.clone()
    sizes = [norm]
    while sizes[-1] > tolerance * norm and len(sizes) <= max_terms and math.isfinite(sizes[-1]):
        x = x + alpha * residual
        residual = right - operator.matmat(x[:, None])[:, 0] - shift * x
        sizes.append(float(residual.norm()))
    relative, terms = sizes[-1] / norm, len(sizes) - 1
    outcome, note = Outcome.CONVERGED, ""
    if not math.isfinite(relative):
        outcome = Outcome.NOT_FINITE
    elif relative > tolerance:
        outcome, note = Outcome.BUDGET_SPENT, _forecast(sizes, tolerance * norm)
    return _solution(x, relative, terms, operator.matvecs - before, outcome, note)


def _forecast(sizes: list[float], goal: float) -> str:
    """Forecast of the number of terms, by the rate of the last ones."""
    span = max(1, (len(sizes) - 1) // 4)
    if len(sizes) <= span or not 0.0 < sizes[-1] < (1 - 1e-9) * sizes[-1 - span]:
        return "the residual no longer falls"
    rate = math.log(sizes[-1] / sizes[-1 - span]) / span
    return f"at the rate of the last terms about {math.log(goal / sizes[-1]) / rate:.2g} more are needed, or many more"


def _solution(
    x: Tensor, residual: float, iterations: int, matvecs: int, outcome: Outcome, note: str = ""
) -> LinearSolution:
    return LinearSolution(
        solution=x, residual=residual, iterations=iterations, matvecs=matvecs, outcome=outcome, note=note
    )

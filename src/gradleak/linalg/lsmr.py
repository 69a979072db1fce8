"""Least squares by LSMR, on products with A and its adjoint alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradleak.linalg.conjugate_gradient import LinearSolution
from gradleak.linalg.operator import LinearOperator
from gradleak.results import InputError, Outcome, check_count, check_not_negative


def lsmr(
    factor: LinearOperator,
    target: Tensor,
    *,
    shift: float = 0.0,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
) -> LinearSolution:
    """The minimizer x of ‖Ax − δ‖² + shift·‖x‖²: (AᵀA + shift·I)⁻¹Aᵀδ, or A⁺δ for shift = 0.

    Golub-Kahan bidiagonalization with damping √shift. It never squares the condition number as conjugate gradients on
    AᵀA do, and ‖Aᵀ(δ − Ax) − shift·x‖ falls monotonically. From x = 0 it ends at the solution of smallest norm.

    Assumptions: the criterion is the residual of the normal equations. With shift = 0 it says nothing of directions
    whose singular value is far below those that were resolved: the note names the condition estimate.

    Args:
        factor: A, (m, n).
        target: δ, (m,).
        shift: ε, at least 0.
        tolerance: stop at ‖Aᵀ(δ − Ax) − shift·x‖ <= tolerance · ‖Aᵀδ‖.
        max_iterations: budget.

    Returns:
        The solution with the residual of the normal equations, recomputed; never raises for lack of convergence.

    Raises:
        InputError: for a shape that does not fit, or a shift, tolerance or budget that is no number of at least 0.

    Cost: one product with A and one with Aᵀ an iteration, two more for the check, one to start; 3 vectors of n and
    one of m.

    Source: Fong and Saunders 2011, algorithm of section 2.8. Deviation from SciPy's `lsmr`, which follows it too: the
    residual is compared with ‖Aᵀδ‖ (as conjugate gradients do here), not with ‖A‖‖δ − Ax‖, and the vectors stay on
    their device.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> lsmr(DenseOperator(torch.tensor([[2.0], [0.0]])), torch.tensor([6.0, 5.0])).solution
        tensor([3.])
    """
    check_not_negative("shift", shift)
    check_not_negative("tolerance", tolerance)
    check_count("max_iterations", max_iterations, least=0)
    if tuple(target.shape) != (factor.shape[0],):
        raise InputError(f"lsmr: expected a right-hand side ({factor.shape[0]},), got {tuple(target.shape)}")
    before = factor.matvecs
    damping = math.sqrt(shift)
    x = target.new_zeros(factor.shape[1])
    u, beta = _unit(target)
    v, alpha = _unit(factor.adjoint_matmat(u[:, None])[:, 0])
    start = alpha * beta
    if not math.isfinite(start):
        return _solution(x, math.inf, 0, factor.matvecs - before, Outcome.NOT_FINITE)
    if start == 0.0:
        return _solution(x, 0.0, 0, factor.matvecs - before, Outcome.CONVERGED)
    zeta_bar, alpha_bar = start, alpha
    rho = rho_bar = cos_bar = 1.0
    sin_bar = 0.0
    h, h_bar = v.clone(), torch.zeros_like(v)
    largest, smallest = 0.0, math.inf
    iterations = 0
    while iterations < max_iterations and math.isfinite(zeta_bar) and abs(zeta_bar) > tolerance * start:
        iterations += 1
        u, beta = _unit(factor.matmat(v[:, None])[:, 0] - alpha * u)
        v, alpha = _unit(factor.adjoint_matmat(u[:, None])[:, 0] - beta * v)
        alpha_hat = math.hypot(alpha_bar, damping)
        rho_old, rho = rho, math.hypot(alpha_hat, beta)
        if rho == 0.0:
            break
        cos, sin = alpha_hat / rho, beta / rho
        theta, alpha_bar = sin * alpha, cos * alpha
        rho_bar_old, theta_bar = rho_bar, sin_bar * rho
        rotated = cos_bar * rho
        rho_bar = math.hypot(rotated, theta)
        if rho_bar == 0.0:
            break
        cos_bar, sin_bar = rotated / rho_bar, theta / rho_bar
        zeta, zeta_bar = cos_bar * zeta_bar, -sin_bar * zeta_bar
        h_bar = h - theta_bar * rho / (rho_old * rho_bar_old) * h_bar
        x = x + zeta / (rho * rho_bar) * h_bar
        h = v - theta / rho * h
        largest, smallest = max(largest, rho_bar), min(smallest, rho_bar)
    rest = factor.adjoint_matmat((target - factor.matmat(x[:, None])[:, 0])[:, None])[:, 0] - shift * x
    residual = float(rest.norm()) / start
    outcome = Outcome.CONVERGED
    if not math.isfinite(residual):
        outcome = Outcome.NOT_FINITE
    # Round-off parts the recurrence from the true residual, the more the worse the condition.
    elif residual > max(2 * tolerance, 100 * torch.finfo(x.dtype).eps):
        outcome = Outcome.BUDGET_SPENT
    note = ""
    if shift == 0.0 and 0.0 < smallest < largest:
        note = (
            f"singular values of A far below {smallest / largest:.1e} of the largest, if there are any, would not have "
            "been noticed"
        )
    return _solution(x, residual, iterations, factor.matvecs - before, outcome, note)


def _unit(vector: Tensor) -> tuple[Tensor, float]:
    norm = float(vector.norm())
    return (vector / norm if norm > 0 else vector), norm


def _solution(
    x: Tensor, residual: float, iterations: int, matvecs: int, outcome: Outcome, note: str = ""
) -> LinearSolution:
    return LinearSolution(
        solution=x, residual=residual, iterations=iterations, matvecs=matvecs, outcome=outcome, note=note
    )

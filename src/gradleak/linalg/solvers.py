"""Solvers of linear systems by products: conjugate gradients, LSMR, Neumann series, gradient descent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.linalg.block_lanczos import block_lanczos
from gradleak.linalg.operator import Gram, LinearOperator
from gradleak.results import InputError, Outcome, check_count, check_not_negative, check_positive

OUTSIDE_RANGE = "the right-hand side has a part in the null space of the operator, so there is no solution"


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearSolution:
    """Solution of an iterative solver for a symmetric system, or for normal equations.

    Attributes:
        solution: as the right-hand side; the last iterate where the outcome is budget_spent.
        residual: the error estimate: the largest ‖b − (A + shift·I)x‖ / ‖b‖ over the columns, recomputed at the end.
            The relative error of x is at most κ times that, and ‖x − x*‖ <= residual · ‖b‖ / shift.
        iterations: how many were made.
        matvecs: columns multiplied by the operator or its adjoint, the final check included.
        outcome: converged, budget_spent, not_finite, or unsupported where the method cannot converge.
        note: why it cannot, or what a reader needs besides; "" for nothing.
        norm_bound: an upper bound of ‖x*‖, of which ‖x‖ is a lower bound then; or None.
    """

    solution: Tensor
    residual: float
    iterations: int
    matvecs: int
    outcome: Outcome
    note: str = ""
    norm_bound: float | None = None


def conjugate_gradient(
    operator: LinearOperator,
    right: Tensor,
    *,
    shift: float = 0.0,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
) -> LinearSolution:
    """The solution x of (A + shift·I) x = b for a symmetric positive semidefinite operator A.

    Columns run side by side in one block product; each keeps its own step lengths and rests once its residual is
    below the tolerance. From a zero start all iterates lie in the range of A (for b in that range), so that with
    shift = 0 and a singular A the result is the solution of smallest norm.

    Args:
        operator: A, (n, n), symmetric positive semidefinite (not checked).
        right: b, (n,) or (n, k).
        shift: at least 0; makes the system positive definite.
        tolerance: stop at ‖residual‖ <= tolerance · ‖b‖.
        max_iterations: budget.

    Returns:
        The solution with its true residual; never raises for lack of convergence.

    Raises:
        InputError: for a shape that does not fit, or a shift, tolerance or budget that is no number of at least 0.

    Cost: one product with A a column and iteration, one more for the final residual; 4 vectors a column. The number
    of iterations grows like √κ, κ = (λmax + shift)/(λmin + shift).

    Source: Hestenes and Stiefel 1952; for influence functions Zhang et al. 2023 (I²F), appendix A.1.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> conjugate_gradient(DenseOperator(torch.diag(torch.tensor([1.0, 3.0]))), torch.ones(2), shift=1.0).solution
        tensor([0.5000, 0.2500])
    """
    check_not_negative("shift", shift)
    check_not_negative("tolerance", tolerance)
    check_count("max_iterations", max_iterations, least=0)
    if right.dim() not in (1, 2) or right.shape[0] != operator.shape[1]:
        raise InputError(
            f"conjugate_gradient: expected a right-hand side ({operator.shape[1]},) or "
            f"({operator.shape[1]}, k), got {tuple(right.shape)}"
        )
    b = right.reshape(right.shape[0], -1)
    before = operator.matvecs

    def apply(block: Tensor) -> Tensor:
        return operator.matmat(block) + shift * block

    x = torch.zeros_like(b)
    residual, direction = b.clone(), b.clone()
    goal = tolerance * b.norm(dim=0)
    squared = (residual**2).sum(dim=0)
    # Of the operator, the largest Rayleigh quotient so far; no direction of the range comes near round-off of it.
    largest, flat = torch.zeros_like(squared), 0
    round_off = math.sqrt(b.shape[0]) * torch.finfo(b.dtype).eps
    iterations = 0
    active = squared.sqrt() > goal
    while bool(active.any()) and iterations < max_iterations:
        images = apply(direction[:, active])
        curvature = (direction[:, active] * images).sum(dim=0)
        quotient = curvature / (direction[:, active] ** 2).sum(dim=0)
        largest[active] = torch.maximum(largest[active], quotient)
        # Zero curvature: the direction lies in the null space, and this column can get no further.
        usable = ~(quotient <= round_off * largest[active])
        flat += int((~usable).sum())
        step = torch.where(usable, squared[active] / torch.where(usable, curvature, 1.0), 0.0)
        x[:, active] += step * direction[:, active]
        residual[:, active] -= step * images
        fresh = (residual[:, active] ** 2).sum(dim=0)
        direction[:, active] = residual[:, active] + fresh / squared[active] * direction[:, active]
        squared[active] = fresh
        iterations += 1
        still = (fresh.sqrt() > goal[active]) & usable & torch.isfinite(fresh)
        active = active.index_put((active.nonzero().squeeze(1),), still)
    scale = torch.where(b.norm(dim=0) > 0, b.norm(dim=0), 1.0)
    if iterations == 0:
        relative = float((residual.norm(dim=0) / scale).max()) if b.numel() else 0.0
    else:
        relative = float(((b - apply(x)).norm(dim=0) / scale).max())
    outcome = Outcome.CONVERGED
    if not relative < float("inf"):
        outcome = Outcome.NOT_FINITE
    # The recurrence and the true residual part by round-off: a factor of two and a floor of some eps are allowed.
    elif relative > max(2 * tolerance, 100 * torch.finfo(b.dtype).eps):
        outcome = Outcome.BUDGET_SPENT
    return LinearSolution(
        solution=x.reshape(right.shape),
        residual=relative,
        iterations=iterations,
        matvecs=operator.matvecs - before,
        outcome=outcome,
        note=OUTSIDE_RANGE if flat and outcome is Outcome.BUDGET_SPENT else "",
    )


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


def least_squares_descent(
    factor: LinearOperator,
    target: Tensor,
    *,
    generator: torch.Generator,
    shift: float = 0.0,
    step: float | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
) -> LinearSolution:
    """The minimizer x of ½‖δ − Ax‖² + ½·shift·‖x‖² by gradient descent from zero with a fixed step.

    xₜ₊₁ = xₜ + η(Aᵀ(δ − Axₜ) − shift·xₜ). From zero these are the partial sums of the Neumann series with α = η, so the
    condition is the same, η(λmax + shift) < 2, and it is checked first: unsupported, with a note, where it fails.

    Args:
        factor: A, (m, n).
        target: δ, (m,).
        generator: source of the start vectors for λmax.
        shift: ε, at least 0.
        step: η; None is 1/(λmax + shift).
        tolerance: stop at ‖Aᵀ(δ − Ax) − shift·x‖ <= tolerance · ‖Aᵀδ‖.
        max_iterations: budget.

    Returns:
        The last iterate with its residual; a spent budget comes with the iterations that its rate predicts.

    Raises:
        InputError: for a shape that does not fit, a shift, tolerance or budget that is no number of at least 0, or a step
            that is not positive.

    Cost: λmax to 1e-3, then one product with A and one with Aᵀ an iteration; about κ · log(1/tolerance) iterations.

    Source: Zhang et al. 2023 (I²F), section 3.1, "least square trick". Deviation: they state no step size and no
    criterion.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> matrix = DenseOperator(torch.tensor([[2.0], [0.0]], dtype=torch.float64))
        >>> right = torch.tensor([6.0, 5.0]).double()
        >>> found = least_squares_descent(matrix, right, generator=torch.Generator().manual_seed(0))
        >>> round(float(found.solution), 6)
        3.0
    """
    if step is not None:
        check_positive("step", step)
    check_count("max_iterations", max_iterations, least=0)
    if tuple(target.shape) != (factor.shape[0],):
        raise InputError(
            f"least_squares_descent: expected a right-hand side ({factor.shape[0]},), got {tuple(target.shape)}"
        )
    before = factor.matvecs
    projected = factor.adjoint_matmat(target[:, None])[:, 0]
    found = neumann_series(
        Gram(factor), projected, generator=generator, shift=shift, scale=step, tolerance=tolerance,
        max_terms=max_iterations,
    )  # fmt: skip
    return LinearSolution(
        solution=found.solution,
        residual=found.residual,
        iterations=found.iterations,
        matvecs=factor.matvecs - before,
        outcome=found.outcome,
        note=found.note.replace("the series", "the descent").replace("scale", "step").replace("terms", "iterations"),
    )

"""Conjugate gradients for shifted positive semidefinite systems."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.linalg.operator import LinearOperator
from gradleak.results import InputError, Outcome, check_count, check_not_negative

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
    """

    solution: Tensor
    residual: float
    iterations: int
    matvecs: int
    outcome: Outcome
    note: str = ""


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

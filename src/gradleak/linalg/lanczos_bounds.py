"""Values of a symmetric operator with error bars, from a Lanczos run that is stopped as soon as the bars are short."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import scipy.stats
import torch
from torch import Tensor

from gradleak.linalg.operator import LinearOperator
from gradleak.linalg.solvers import LinearSolution
from gradleak.results import InputError, Outcome, check_count, check_not_negative, check_positive

# Bisection of a bound to a relative 1e-12 of where it began.
_HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """An eigenvalue between two bounds.

    Attributes:
        low: the lower bound, which always holds.
        high: the upper bound, which holds with the probability that was asked for; infinite where nothing is known.
        steps: of the Lanczos run.
        matvecs: columns multiplied by the operator.
        outcome: converged where the bounds are as close as asked for; budget_spent; not_informative for the zero
            operator; not_finite (both bounds are NaN).
    """

    low: float
    high: float
    steps: int
    matvecs: int
    outcome: Outcome


def largest_eigenvalue_bounds(
    operator: LinearOperator,
    *,
    generator: torch.Generator,
    confidence: float = 0.95,
    tolerance: float = 0.1,
    max_steps: int = 64,
) -> Bracket:
    """Bounds of the largest eigenvalue λ of a symmetric positive semidefinite operator, by Lanczos from a random start.

    The largest Ritz value θ is never above λ. With the Lanczos vectors vⱼ₊₁ = pⱼ(A) v₁ and γ the part of the random unit
    vector v₁ along an eigenvector of λ, |γ pⱼ(λ)| <= 1. The law of γ² is Beta(1/2, (n − 1)/2), so |γ| > δ with the
    probability `confidence` for its quantile δ², and then λ is at most the t > θ at which pⱼ(t) = 1/δ. One event serves all
    steps, so that the run may stop where it likes.

    Assumptions: `confidence` is over the start vector, for any operator; a repeated λ makes it larger. Round-off of the run
    (full reorthogonalization) is not counted.

    Args:
        operator: A, (n, n), symmetric positive semidefinite (not checked).
        generator: of the start vector.
        confidence: probability that the upper bound holds, between 0 and 1.
        tolerance: stop where the upper bound is at most (1 + tolerance) times the lower one.
        max_steps: budget.

    Raises:
        InputError: for a rectangular operator, or a confidence, tolerance or budget out of range.

    Cost: one product a step, n numbers a step.

    Source: Hochstenbach 2013, "Probabilistic upper bounds for the matrix two-norm", section 3. Deviation: AᵀA in place of
    Golub-Kahan bidiagonalization, and the exact law of γ in place of an integral.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> ramp = DenseOperator(torch.diag(torch.linspace(0, 1, 200, dtype=torch.float64)))
        >>> found = largest_eigenvalue_bounds(ramp, generator=torch.Generator().manual_seed(0))
        >>> found.low <= 1.0 <= found.high <= 1.1 * found.low
        True
    """
    n = operator.shape[1]
    if operator.shape[0] != n or n == 0:
        raise InputError(f"largest_eigenvalue_bounds: expected a square operator, got shape {operator.shape}")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence: expected a probability between 0 and 1, got {confidence}")
    check_positive("tolerance", tolerance)
    check_count("max_steps", max_steps)
    before = operator.matvecs
    delta = math.sqrt(scipy.stats.beta.ppf(1 - confidence, 0.5, (n - 1) / 2)) if n > 1 else 1.0
    start = torch.randn(n, generator=generator, dtype=torch.float64, device=generator.device)
    diagonal: list[float] = []
    beside: list[float] = []
    low = high = math.nan
    outcome = Outcome.BUDGET_SPENT
    for alpha, beta, _ in _run(operator, start.to(device=operator.device, dtype=operator.dtype), min(max_steps, n)):
        diagonal.append(alpha)
        beside.append(beta)
        if not (math.isfinite(alpha) and math.isfinite(beta)):
            low, high, outcome = math.nan, math.nan, Outcome.NOT_FINITE
            break
        low = max(float(torch.linalg.eigvalsh(_tridiagonal(diagonal, beside))[-1]), 0.0)
        high = low if beta == 0.0 else _reach(diagonal, beside, low, 1 / delta)
        if low == 0.0 and beta == 0.0:
            outcome = Outcome.NOT_INFORMATIVE
        elif high <= (1 + tolerance) * low:
            outcome = Outcome.CONVERGED
            break
    return Bracket(low=low, high=high, steps=len(diagonal), matvecs=operator.matvecs - before, outcome=outcome)


def bounded_inverse(
    operator: LinearOperator,
    right: Tensor,
    *,
    shift: float,
    tolerance: float = 0.05,
    max_steps: int = 1000,
) -> LinearSolution:
    """The iterate of conjugate gradients for (A + shift·I) x = b, with an upper bound of ‖x‖.

    ‖x‖² = bᵀ(A + shift·I)⁻²b is an integral of (λ + shift)⁻² over the spectrum. After k Lanczos steps from b Gauss
    quadrature, which is the squared norm of the iterate, is too small; Gauss–Radau quadrature with a node at 0 is too
    large. Both hold without any assumption on the spectrum, up to round-off, and neither needs λmax.

    Args:
        operator: A, (n, n), symmetric positive semidefinite (not checked).
        right: b, (n,).
        shift: positive.
        tolerance: stop where the upper bound is at most (1 + tolerance) times the norm of the iterate.
        max_steps: budget.

    Returns:
        The iterate, whose norm is a lower bound of ‖x‖, with `norm_bound` above it; the residual is that of the run.

    Raises:
        InputError: for a shape that does not fit, a shift that is not positive, or a tolerance or budget out of range.

    Cost: one product a step, n numbers a step.

    Source: Golub and Meurant 1994, "Matrices, moments and quadrature", theorems 3.2 and 3.3.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> ramp = DenseOperator(torch.diag(torch.arange(100.0, dtype=torch.float64)))
        >>> found = bounded_inverse(ramp, torch.ones(100, dtype=torch.float64), shift=1.0, tolerance=0.01)
        >>> exact = (1 / torch.arange(1.0, 101.0, dtype=torch.float64)).norm()
        >>> bool(found.solution.norm() <= exact) and float(exact) <= found.norm_bound
        True
    """
    n = operator.shape[1]
    if operator.shape[0] != n or tuple(right.shape) != (n,):
        raise InputError(
            f"bounded_inverse: expected a square operator and a right-hand side ({n},), got shapes {operator.shape} and "
            f"{tuple(right.shape)}"
        )
    check_positive("shift", shift)
    check_not_negative("tolerance", tolerance)
    check_count("max_steps", max_steps)
    before, size = operator.matvecs, float(right.norm())
    diagonal: list[float] = []
    beside: list[float] = []
    weights = right.new_zeros(0, dtype=torch.float64)
    basis = right.new_zeros(0, n)
    bound, residual, outcome = 0.0, 0.0, Outcome.CONVERGED if size == 0.0 else Outcome.BUDGET_SPENT
    if not math.isfinite(size):
        bound, residual, outcome = math.inf, math.inf, Outcome.NOT_FINITE
    for alpha, beta, vectors in _run(operator, right, min(max_steps, n)) if 0.0 < size < math.inf else ():
        diagonal.append(alpha)
        beside.append(beta)
        basis = vectors
        if not (math.isfinite(alpha) and math.isfinite(beta)):
            outcome, residual, bound = Outcome.NOT_FINITE, math.inf, math.inf
            break
        matrix = _tridiagonal(diagonal, beside)
        identity = torch.eye(len(diagonal), dtype=torch.float64)
        weights = size * torch.linalg.solve(matrix + shift * identity, identity[0])
        low = float(weights.norm())
        residual = beta * abs(float(weights[-1])) / size
        bound = low if beta == 0.0 else size * min(1 / shift, _radau(diagonal, beside, shift))
        if bound <= (1 + tolerance) * low:
            outcome = Outcome.CONVERGED
            break
    solution = torch.zeros_like(right)
    if outcome is not Outcome.NOT_FINITE and len(weights):
        solution = basis.T @ weights.to(basis)
    return LinearSolution(
        solution=solution,
        residual=residual,
        iterations=len(diagonal),
        matvecs=operator.matvecs - before,
        outcome=outcome,
        norm_bound=bound,
    )


def _run(operator: LinearOperator, start: Tensor, steps: int) -> Iterator[tuple[float, float, Tensor]]:
    """Diagonal entry, the one beside it (0 where the space is exhausted) and the vectors so far (k, n), step by step."""
    eps = torch.finfo(start.dtype).eps
    current, scale = start / start.norm(), 0.0
    basis = current.new_zeros(0, len(current))
    for _ in range(steps):
        basis = torch.cat([basis, current[None]])
        product = operator.matmat(current[:, None])[:, 0]
        alpha, scale = float(current @ product), max(scale, float(product.norm()))
        for _ in range(2):  # twice is enough (Kahan and Parlett)
            product = product - basis.T @ (basis @ product)
        length = float(product.norm())
        beta = 0.0 if len(basis) == len(current) or length <= 10 * len(current) * eps * scale else length
        yield alpha, beta, basis
        if beta == 0.0:
            return
        current = product / beta


def _tridiagonal(diagonal: list[float], beside: list[float]) -> Tensor:
    """The matrix (k, k); the last entry of `beside` leads out of it."""
    inner = torch.tensor(beside[: len(diagonal) - 1], dtype=torch.float64)
    return torch.diag(torch.tensor(diagonal, dtype=torch.float64)) + torch.diag(inner, 1) + torch.diag(inner, -1)


def _radau(diagonal: list[float], beside: list[float], shift: float) -> float:
    """The root of the Gauss–Radau rule of (λ + shift)⁻², for a unit start, with a node just below 0."""
    size = len(diagonal)
    matrix = _tridiagonal(diagonal, beside)
    # Round-off may put a Ritz value of zero below zero, and the node has to lie below all of them.
    node = -(size + 1) * torch.finfo(torch.float64).eps * float(matrix.abs().max())
    if -node > 1e-3 * shift:
        return math.inf
    last = torch.zeros(size, dtype=torch.float64)
    last[-1] = beside[-1] ** 2
    moved = torch.linalg.solve(matrix - node * torch.eye(size, dtype=torch.float64), last)
    extended = _tridiagonal([*diagonal, node + float(moved[-1])], [*beside, 0.0])
    nodes, vectors = torch.linalg.eigh(extended)
    if float(nodes[0]) <= -shift:
        return math.inf
    return math.sqrt(float((vectors[0] ** 2 / (nodes + shift) ** 2).sum()))


def _reach(diagonal: list[float], beside: list[float], low: float, most: float) -> float:
    """The t >= low at which the last Lanczos polynomial is `most`."""

    def exceeds(t: float) -> bool:
        before, now = 0.0, 1.0
        for place, (alpha, beta) in enumerate(zip(diagonal, beside, strict=True)):
            behind = beside[place - 1] * before if place else 0.0
            before, now = now, ((t - alpha) * now - behind) / beta
        return not now < most

    step = max(low, beside[-1])
    while not exceeds(low + step):
        step *= 2
        if not math.isfinite(low + step):
            return math.inf
    below, above = low, low + step
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        below, above = (below, middle) if exceeds(middle) else (middle, above)
    return above

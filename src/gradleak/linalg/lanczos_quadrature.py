"""Traces of functions of an operator by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.linalg.operator import LinearOperator
from gradleak.linalg.trace import TraceEstimate, Weights, random_signs, sampling_interval, weigh
from gradleak.results import InputError, Outcome, check_count, check_not_negative


def lanczos_quadrature(
    operator: LinearOperator,
    function: Callable[[Tensor], Tensor],
    *,
    generator: torch.Generator,
    samples: int = 16,
    steps: int = 64,
    weights: Weights = None,
    range_only: bool = False,
    tolerance: float = 1e-2,
) -> TraceEstimate:
    """The trace of W f(A) Wᵀ as the mean of (Wᵀz)ᵀ f(A) Wᵀz over random signs z, each by Gauss quadrature.

    A Lanczos run of k steps from Wᵀz gives nodes θᵢ and weights τᵢ²; Σ τᵢ² f(θᵢ) · ‖Wᵀz‖² is exact for polynomials of
    degree 2k − 1. For f = 1/(λ + ε) every such sum is too small (the rule's error has the sign of an even derivative of
    f), and grows with k.

    Assumptions: an estimate. The sampling error is in the standard error; that of the quadrature is taken for the
    change from half of the steps to all of them, which is too small where it falls slowly (f = 1/λ with eigenvalues
    close to zero). With `range_only`, nodes up to n · eps · λmax are left out and counted as null space.

    Args:
        operator: A, (n, n), symmetric positive semidefinite (not checked).
        function: f, maps nodes to values elementwise, for instance `lambda nodes: 1 / (nodes + epsilon)`.
        generator: source of the signs.
        samples: Lanczos runs, side by side, at least 2.
        steps: of each run, at most n are made.
        weights: the diagonal of W (n,), an operator (n, n), or None for the identity.
        range_only: leave the null space out.
        tolerance: of the relative change from half of the steps; above it the outcome is budget_spent.

    Raises:
        InputError: for a rectangular operator, fewer than 2 samples or 2 steps, or a tolerance that is no number of at
            least 0.

    Cost: samples · steps products in blocks of `samples`; samples · steps vectors of n for full reorthogonalization.

    Source: Golub and Meurant 1994; Ubaru, Chen and Saad 2017, algorithm 1.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> ramp = DenseOperator(torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)))
        >>> found = lanczos_quadrature(ramp, lambda nodes: 1 / nodes, generator=torch.Generator().manual_seed(0))
        >>> round(found.value, 6)
        1.75
    """
    n = operator.shape[1]
    if operator.shape[0] != n or n == 0:
        raise InputError(f"lanczos_quadrature: expected a square operator, got shape {operator.shape}")
    check_count("samples", samples, least=2)
    check_count("steps", steps, least=2)
    check_not_negative("tolerance", tolerance)
    before = operator.matvecs
    start = weigh(weights, random_signs(operator, samples, generator), adjoint=True)
    diagonal, beside, exhausted = _lanczos(operator, start, min(steps, n))
    spent = operator.matvecs - before
    if not bool(torch.isfinite(diagonal).all() and torch.isfinite(beside).all()):
        return _nothing(Outcome.NOT_FINITE, samples, spent)
    squared = (start**2).sum(0)
    floor = n * torch.finfo(operator.dtype).eps if range_only else None
    drawn, null = _quadrature(diagonal, beside, squared, function, floor)
    if not bool(torch.isfinite(drawn).all()):
        return _nothing(Outcome.NOT_FINITE, samples, spent)
    null_dimension = float(null.mean()) * n
    if range_only and float(diagonal.abs().max()) == 0.0:
        return _nothing(Outcome.NOT_INFORMATIVE, samples, spent)
    value = float(drawn.mean())
    change = 0.0
    if not exhausted:
        half = max(1, diagonal.shape[0] // 2)
        rough = float(_quadrature(diagonal[:half], beside[: half - 1], squared, function, floor)[0].mean())
        change = abs(value - rough) / abs(value) if value != 0.0 else 0.0
    error = float(drawn.std()) / math.sqrt(samples)
    if not change <= tolerance:
        outcome = Outcome.BUDGET_SPENT
    else:
        outcome = Outcome.NOT_IDENTIFIABLE if null_dimension > 0.5 else Outcome.CONVERGED
    return TraceEstimate(
        value=value,
        standard_error=error,
        interval=sampling_interval(drawn, inner=change),
        inner_error=change,
        samples=samples,
        null_dimension=null_dimension,
        matvecs=spent,
        outcome=outcome,
    )


def _lanczos(operator: LinearOperator, start: Tensor, steps: int) -> tuple[Tensor, Tensor, bool]:
    """The diagonals (k, s) and off-diagonals (k - 1, s) of s Lanczos runs, and whether all of them were exhausted."""
    eps = torch.finfo(start.dtype).eps
    current = start / start.norm(dim=0).clamp_min(torch.finfo(start.dtype).tiny)
    basis = current.new_zeros(steps, *current.shape)
    diagonal, beside = current.new_zeros(steps, current.shape[1]), current.new_zeros(steps, current.shape[1])
    scale = current.new_zeros(current.shape[1])
    for step in range(steps):
        basis[step] = current
        product = operator.matmat(current)
        diagonal[step] = (current * product).sum(0)
        scale = torch.maximum(scale, product.norm(dim=0))
        for _ in range(2):
            inner = torch.einsum("jns,ns->js", basis[: step + 1], product)
            product = product - torch.einsum("jns,js->ns", basis[: step + 1], inner)
        length = product.norm(dim=0)
        # A run whose Krylov space is exhausted goes on with zeros, which carry no weight.
        alive = length > 10 * current.shape[0] * eps * scale
        if not bool(alive.any()):
            return diagonal[: step + 1], beside[:step], True
        beside[step] = torch.where(alive, length, 0.0)
        current = torch.where(alive, product / torch.where(alive, length, 1.0), 0.0)
    return diagonal, beside[:-1], False


def _quadrature(
    diagonal: Tensor, beside: Tensor, squared: Tensor, function: Callable[[Tensor], Tensor], floor: float | None
) -> tuple[Tensor, Tensor]:
    """Σ τ² f(θ) · ‖start‖² of each run (s,), and the weight of the nodes that were left out (s,)."""
    matrices = torch.diag_embed(diagonal.T)
    if beside.shape[0]:
        matrices = matrices + torch.diag_embed(beside.T, 1) + torch.diag_embed(beside.T, -1)
    nodes, vectors = torch.linalg.eigh(matrices)
    nodes = nodes.clamp_min(0.0)
    shares = vectors[:, 0] ** 2
    # Nodes without weight belong to runs that were exhausted; f need not be finite there.
    used = shares > 0.0
    left_out = torch.zeros_like(shares)
    if floor is not None:
        inside = nodes > floor * nodes.max()
        left_out = torch.where(inside, 0.0, shares)
        used = used & inside
    values = torch.where(used, shares * function(torch.where(used, nodes, 1.0)), 0.0)
    return values.sum(1) * squared, left_out.sum(1)


def _nothing(outcome: Outcome, samples: int, spent: int) -> TraceEstimate:
    return TraceEstimate(
        value=None, standard_error=None, interval=None, inner_error=math.inf, samples=samples, matvecs=spent,
        outcome=outcome,
    )  # fmt: skip

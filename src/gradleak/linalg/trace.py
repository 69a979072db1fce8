"""Traces and spectral sums by random probes and Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import scipy
import torch
from torch import Tensor

from gradleak.linalg.operator import LinearOperator
from gradleak.linalg.solvers import OUTSIDE_RANGE, conjugate_gradient
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


CONFIDENCE = 0.95
# W of a trace: its diagonal (n,), a square operator (n, n), or None for the identity.
Weights = Tensor | LinearOperator | None


@dataclass(frozen=True, kw_only=True)
class TraceEstimate:
    """A trace estimated from random vectors.

    Attributes:
        value: the estimate; None for not_finite, not_informative and unsupported.
        standard_error: of the sampling; None with fewer than two samples behind it.
        interval: of 95 % for the sampling (`sampling_interval`), widened by `inner_error`; None without a standard
            error. Where the budget was spent, it does not cover what the value lacks.
        inner_error: relative error of what the samples are made of: the largest residual of the inner solves, or the
            change of a quadrature between half and all of its steps; 0 for exact products.
        samples: random vectors behind the standard error.
        null_dimension: the estimated number of zero eigenvalues that were left out.
        matvecs: columns multiplied by the operator at hand (for an inverse: those of the operator inside).
        outcome: converged; budget_spent if the inner error is above its tolerance; not_identifiable if a null space
            was left out; not_informative if nothing remained; unsupported for the inverse of a singular operator;
            not_finite.
    """

    value: float | None
    standard_error: float | None
    interval: tuple[float, float] | None
    inner_error: float
    samples: int
    null_dimension: float = 0.0
    matvecs: int
    outcome: Outcome


@final
class ShiftedInverse(LinearOperator):
    """W (A + shift·I)⁻¹ Wᵀ as an operator, by conjugate gradients, with the worst residual kept.

    Args:
        operator: A, (n, n), symmetric positive semidefinite.
        shift: at least 0.
        weights: the diagonal of W (n,), an operator (n, n), or None for the identity.
        tolerance: relative residual of the inner solves.
        max_iterations: their budget.

    Raises:
        InputError: for a shift, tolerance or budget out of range.

    Attributes:
        residual: the largest relative residual so far.
        solved: whether all solves met the tolerance.
        singular: whether a solve met the null space of A + shift·I, so that there is no inverse.
        inner_matvecs: columns multiplied by A so far.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> ShiftedInverse(DenseOperator(torch.eye(2)), shift=1.0).matmat(torch.ones(2, 1)).tolist()
        [[0.5], [0.5]]
    """

    def __init__(
        self,
        operator: LinearOperator,
        *,
        shift: float = 0.0,
        weights: Weights = None,
        tolerance: float = 1e-8,
        max_iterations: int = 1000,
    ) -> None:
        check_not_negative("shift", shift)
        check_not_negative("tolerance", tolerance)
        check_count("max_iterations", max_iterations)
        super().__init__(operator.shape, dtype=operator.dtype, device=operator.device)
        self._operator = operator
        self._shift = shift
        self._weights = weights
        self._tolerance = tolerance
        self._max_iterations = max_iterations
        self.residual = 0.0
        self.solved = True
        self.singular = False
        self.inner_matvecs = 0

    def _matmat(self, block: Tensor) -> Tensor:
        found = conjugate_gradient(
            self._operator,
            weigh(self._weights, block, adjoint=True),
            shift=self._shift,
            tolerance=self._tolerance,
            max_iterations=self._max_iterations,
        )
        self.residual = max(self.residual, found.residual)
        self.solved &= found.outcome is Outcome.CONVERGED
        self.singular |= found.note == OUTSIDE_RANGE
        self.inner_matvecs += found.matvecs
        return weigh(self._weights, found.solution)

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        return self._matmat(block)


def hutchinson(operator: LinearOperator, *, generator: torch.Generator, samples: int = 30) -> TraceEstimate:
    """The trace as the mean of zᵀAz over random signs z, with its standard error.

    Unbiased; for symmetric A the variance of one sample is 2 Σᵢ≠ⱼ Aᵢⱼ², so the error falls like 1/√samples and can be
    large where few eigenvalues dominate.

    Args:
        operator: A, (n, n); a `ShiftedInverse` for the trace of an inverse.
        generator: source of the signs.
        samples: at least 2.

    Raises:
        InputError: for a rectangular operator or fewer than 2 samples.

    Cost: `samples` products, in one block.

    Source: Hutchinson 1989.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> ramp = DenseOperator(torch.diag(torch.arange(5.0)))
        >>> hutchinson(ramp, generator=torch.Generator().manual_seed(0)).value  # exact for a diagonal
        10.0
    """
    _check(operator, "hutchinson", samples, least=2)
    before = _spent(operator)
    signs = random_signs(operator, samples, generator)
    drawn = (signs * operator.matmat(signs)).sum(0)
    return _estimate(operator, 0.0, drawn, before)


def hutchpp(operator: LinearOperator, *, generator: torch.Generator, samples: int = 48) -> TraceEstimate:
    """The trace by Hutch++: exact on the range that a sketch finds, Hutchinson on the rest.

    With Q an orthonormal basis of A S, S a third of the vectors: tr(QᵀAQ) plus the mean of gᵀ(I − QQᵀ)A(I − QQᵀ)g over
    another third. For positive semidefinite A the error falls like 1/samples.

    Args:
        operator: A, (n, n), symmetric; a `ShiftedInverse` for the trace of an inverse.
        generator: source of the signs.
        samples: products in all, at least 6; a third of them stands behind the standard error.

    Raises:
        InputError: for a rectangular operator or fewer than 6 samples.

    Cost: `samples` products, in three blocks; exact with n products where samples / 3 reaches n.

    Source: Meyer, Musco, Musco and Woodruff 2021, algorithm 1.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> one = torch.ones(50, 1, dtype=torch.float64)
        >>> round(hutchpp(DenseOperator(one @ one.T), generator=torch.Generator().manual_seed(0)).value, 6)
        50.0
    """
    _check(operator, "hutchpp", samples, least=6)
    before = _spent(operator)
    n, third = operator.shape[1], samples // 3
    if third >= n:
        identity = torch.eye(n, dtype=operator.dtype, device=operator.device)
        whole = float(operator.matmat(identity).diagonal().sum())
        return _estimate(operator, whole, identity.new_zeros(third), before)
    sketch = operator.matmat(random_signs(operator, third, generator))
    if not bool(torch.isfinite(sketch).all()):
        return _estimate(operator, math.nan, sketch.new_zeros(2), before)
    # By its singular vectors: those at round-off of the largest are noise, and dropping them costs nothing.
    left, sizes, _ = torch.linalg.svd(sketch, full_matrices=False)
    basis = left[:, sizes > n * torch.finfo(sketch.dtype).eps * sizes[0]]
    known = float((basis * operator.matmat(basis)).sum())
    rest = random_signs(operator, third, generator)
    rest = rest - basis @ (basis.T @ rest)
    drawn = (rest * operator.matmat(rest)).sum(0)
    return _estimate(operator, known, drawn, before)


def group_squared_norms(
    operator: LinearOperator,
    groups: Sequence[Sequence[slice]],
    *,
    generator: torch.Generator,
    samples: int = 64,
    block: int = 16,
) -> list[TraceEstimate]:
    """The squared Frobenius norm of each group of rows, as the mean of ‖A_l z‖² over random signs z.

    ‖A_l‖² is the trace of A_lᵀA_l, so this is Hutchinson's estimator for all groups at once: every product serves each
    of them. The estimates share their signs and are not independent of each other.

    Args:
        operator: A, (m, n).
        groups: the rows of each group, as slices.
        generator: source of the signs.
        samples: at least 2.
        block: products at once; A Z of a block takes m · block numbers.

    Raises:
        InputError: for fewer than 2 samples, or a block below 1.

    Cost: `samples` products with A.

    Source: Hutchinson 1989, for the Gram matrix of each group.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> matrix = DenseOperator(torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 1.0]]))
        >>> found = group_squared_norms(matrix, [[slice(0, 2)], [slice(2, 3)]], generator=torch.Generator())
        >>> [one.value for one in found]  # exact where the columns of a group are orthogonal
        [25.0, 1.0]
    """
    check_count("samples", samples, least=2)
    check_count("block", block)
    before = operator.matvecs
    drawn = torch.empty(len(groups), samples, dtype=torch.float64)
    for start in range(0, samples, block):
        stop = min(start + block, samples)
        squares = operator.matmat(random_signs(operator, stop - start, generator)) ** 2
        for place, rows in enumerate(groups):
            drawn[place, start:stop] = sum(squares[part].sum(0) for part in rows)
    spent = operator.matvecs - before
    return [_of_samples(0.0, row, spent) for row in drawn]


def weigh(weights: Weights, block: Tensor, *, adjoint: bool = False) -> Tensor:
    """W X, or WᵀX, for a block X (n, k)."""
    if weights is None:
        return block
    if isinstance(weights, Tensor):
        return weights[:, None] * block
    return weights.adjoint_matmat(block) if adjoint else weights.matmat(block)


def random_signs(operator: LinearOperator, columns: int, generator: torch.Generator) -> Tensor:
    """Independent signs (n, columns) in the dtype and on the device of an operator."""
    size = (operator.shape[1], columns)
    bits = torch.randint(0, 2, size, generator=generator, device=generator.device)
    return (2 * bits - 1).to(device=operator.device, dtype=operator.dtype)


def sampling_interval(drawn: Tensor, *, known: float = 0.0, inner: float = 0.0) -> tuple[float, float]:
    """The 95 % interval of a known part plus the mean of samples (s,), widened by a relative inner error.

    Student's, and where no sample is negative, as with the quadratic forms of a positive semidefinite operator, the
    hull of it and of the interval of a scaled chi-squared law with their mean and variance. Few dominant eigenvalues
    make such forms skewed, and Student's interval alone then holds the trace in 82 to 91 % of cases (measured with 4 to
    30 samples; the hull in 94 to 97 %).

    Args:
        drawn: independent samples, at least 2.
        known: a part without sampling error.
        inner: relative error of what the samples are made of.

    Source: Satterthwaite 1946 for the degrees of freedom ν = 2·mean²/variance, which signs never take below 1; the
    factor (s - 1)/(s + 2) on s·ν, for an estimated ν, is ours.
    """
    samples, mean, std = drawn.numel(), float(drawn.mean()), float(drawn.std())
    below, above = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    reach = float(scipy.stats.t.ppf(above, samples - 1)) * std / math.sqrt(samples)
    low, high = mean - reach, mean + reach
    if std > 0.0 and bool((drawn >= 0.0).all()):
        degrees = max(1.0, samples * max(1.0, 2 * (mean / std) ** 2) * (samples - 1) / (samples + 2))
        low = min(low, mean * degrees / float(scipy.stats.chi2.ppf(above, degrees)))
        high = max(high, mean * degrees / float(scipy.stats.chi2.ppf(below, degrees)))
    widened = inner * abs(known + mean)
    return known + low - widened, known + high + widened


def _estimate(operator: LinearOperator, known: float, drawn: Tensor, before: int) -> TraceEstimate:
    inverse = operator if isinstance(operator, ShiftedInverse) else None
    spent = _spent(operator) - before
    if inverse is None:
        return _of_samples(known, drawn, spent)
    if inverse.singular:
        return TraceEstimate(
            value=None, standard_error=None, interval=None, inner_error=inverse.residual, samples=drawn.numel(),
            matvecs=spent, outcome=Outcome.UNSUPPORTED,
        )  # fmt: skip
    return _of_samples(known, drawn, spent, inner=inverse.residual, solved=inverse.solved)


def _of_samples(known: float, drawn: Tensor, spent: int, *, inner: float = 0.0, solved: bool = True) -> TraceEstimate:
    """A known part plus the mean of samples (s,), with its interval."""
    samples = drawn.numel()
    value = known + float(drawn.mean())
    if not math.isfinite(value) or not math.isfinite(inner):
        return TraceEstimate(
            value=None, standard_error=None, interval=None, inner_error=inner, samples=samples, matvecs=spent,
            outcome=Outcome.NOT_FINITE,
        )  # fmt: skip
    error = float(drawn.std()) / math.sqrt(samples) if samples > 1 else None
    return TraceEstimate(
        value=value,
        standard_error=error,
        interval=None if error is None else sampling_interval(drawn, known=known, inner=inner),
        inner_error=inner,
        samples=samples,
        matvecs=spent,
        outcome=Outcome.CONVERGED if solved else Outcome.BUDGET_SPENT,
    )


def _spent(operator: LinearOperator) -> int:
    return operator.inner_matvecs if isinstance(operator, ShiftedInverse) else operator.matvecs


def _check(operator: LinearOperator, name: str, samples: int, *, least: int) -> None:
    if operator.shape[0] != operator.shape[1] or operator.shape[0] == 0:
        raise InputError(f"{name}: expected a square operator, got shape {operator.shape}")
    check_count("samples", samples, least=least)

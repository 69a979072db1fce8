"""Eigenvalues at either end of the spectrum of a symmetric positive semidefinite operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.linalg.block_lanczos import block_lanczos
from gradleak.linalg.operator import LinearOperator
from gradleak.results import InputError, Outcome, check_count, check_not_negative

# λmax sets the size of round-off; more than a percent of accuracy is of no use for that.
_ROUGH = 1e-2


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtremeEigenpairs:
    """Eigenvalues at one end of a spectrum.

    Attributes:
        values: (k,), from the end inward: ascending for the smallest, descending for the largest.
        vectors: (n, k), orthonormal columns.
        residuals: (k,), ‖Av − λv‖ of each pair, recomputed at the end: an eigenvalue lies within that distance.
        converged: how many leading pairs met the tolerance; those can be kept whatever the outcome.
        zeros: how many of the converged values are zero to round-off, n · eps · λmax.
        outcome: converged; not_identifiable where some of the smallest are zero (the null space has at least `zeros`
            dimensions); budget_spent; not_informative for the zero operator; not_finite (no values).
        matvecs: columns multiplied by the operator.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    converged: int
    zeros: int
    outcome: Outcome
    matvecs: int


def lobpcg(
    operator: LinearOperator,
    count: int = 1,
    *,
    largest: bool = True,
    generator: torch.Generator,
    block: int | None = None,
    tolerance: float = 1e-6,
    max_matvecs: int = 4000,
    preconditioner: Callable[[Tensor], Tensor] | None = None,
) -> ExtremeEigenpairs:
    """The `count` largest or smallest eigenvalues, with vectors and residuals, by locally optimal block CG.

    Rayleigh-Ritz on the span of the block, its (preconditioned) residuals and the previous step, 3b columns of memory
    whatever the number of iterations. For the largest values `block_lanczos`, which keeps a longer basis, needs fewer
    products; this one is for the smallest, and for problems where a basis of 96 vectors is too large.

    Assumptions: A pair is accepted at ‖Av − λv‖ <= max(tolerance · λ, n · eps · λmax). Small eigenvalues of an
    ill-conditioned operator are reached slowly without a preconditioner (the gap counts relative to λmax): expect
    budget_spent with a residual there, not a wrong word. A value found for the smallest end is never below the true
    one but for round-off, so it is an upper estimate of it.

    Args:
        operator: (n, n), symmetric positive semidefinite (not checked).
        count: how many eigenvalues, at least 1; more than n gives n.
        largest: the largest ones, else the smallest.
        generator: source of the start vectors.
        block: columns a step, at least `count`; None is count + 2 or 4, whichever is more, at most n.
        tolerance: relative residual of a converged pair; raised to 100 eps of the dtype if smaller.
        max_matvecs: budget in columns.
        preconditioner: maps residuals (n, b) to directions, an approximate inverse of A for the smallest end.

    Returns:
        The pairs found; never raises for lack of convergence.

    Raises:
        InputError: for a rectangular operator, count < 1 or a block below count, or a tolerance or budget that is no
            number of at least 0.

    Cost: at most one block product an iteration, about ten columns for a rough λmax, `count` for the last check;
    dense (n products) where 4 blocks reach n.

    Source: Knyazev 2001; the basis by coefficients as in Hetmaniuk and Lehoucq 2006, which keeps it orthonormal where
    the original breaks down.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> ramp = DenseOperator(torch.diag(torch.arange(1.0, 41.0, dtype=torch.float64)))
        >>> found = lobpcg(ramp, 2, largest=False, generator=torch.Generator().manual_seed(0))
        >>> [round(value, 4) for value in found.values.tolist()]
        [1.0, 2.0]
    """
    n = operator.shape[1]
    if operator.shape[0] != n or n == 0:
        raise InputError(f"lobpcg: expected a square operator, got shape {operator.shape}")
    check_count("count", count)
    check_count("max_matvecs", max_matvecs, least=0)
    check_not_negative("tolerance", tolerance)
    if block is not None:
        check_count("block", block)
    count = min(count, n)
    block = min(n, max(4, count + 2)) if block is None else min(block, n)
    if block < count:
        raise InputError(f"lobpcg: expected block >= count, got {block} and {count}")
    eps = torch.finfo(operator.dtype).eps
    tolerance = max(tolerance, 100 * eps)
    before = operator.matvecs
    rough = block_lanczos(operator, generator=generator, tolerance=_ROUGH, max_matvecs=max(40, max_matvecs // 4))
    if rough.outcome is Outcome.NOT_FINITE:
        return _result(operator, rough.vectors, rough.values, rough.values, 0, 0, Outcome.NOT_FINITE, before)
    top = float(rough.values[0])
    if top == 0.0:
        basis = torch.eye(n, dtype=operator.dtype, device=operator.device)[:, :count]
        nothing = torch.zeros(count, dtype=operator.dtype, device=operator.device)
        return _result(operator, basis, nothing, nothing, count, count, Outcome.NOT_INFORMATIVE, before)
    floor = n * eps * top
    if 4 * block >= n:
        vectors = _dense(operator, count, largest)
    else:
        iteration = _Iteration(operator, block, largest, preconditioner, generator)
        vectors = iteration.run(count, tolerance, floor, max_matvecs - (operator.matvecs - before))
    images = operator.matmat(vectors)
    if not bool(torch.isfinite(images).all()):
        return _result(
            operator, vectors[:, :0], vectors.new_empty(0), vectors.new_empty(0), 0, 0, Outcome.NOT_FINITE, before
        )
    values = (vectors * images).sum(0).clamp_min(0.0)
    residuals = (images - vectors * values).norm(dim=0)
    # The last product differs from the recurrence by round-off.
    met = residuals <= torch.maximum(2 * tolerance * values, 4 * values.new_tensor(floor))
    converged = int(met.long().cumprod(0).sum())
    zeros = 0 if largest else int((values[:converged] <= 4 * floor).sum())
    outcome = Outcome.NOT_IDENTIFIABLE if zeros else Outcome.CONVERGED
    if converged < count:
        outcome = Outcome.BUDGET_SPENT
    return _result(operator, vectors, values, residuals, converged, zeros, outcome, before)


class _Iteration:
    """The block X, its images AX, and the last step P with AP; [X P] has orthonormal columns."""

    def __init__(
        self,
        operator: LinearOperator,
        block: int,
        largest: bool,
        preconditioner: Callable[[Tensor], Tensor] | None,
        generator: torch.Generator,
    ) -> None:
        self._operator = operator
        self._block = block
        self._largest = largest
        self._preconditioner = preconditioner
        self._generator = generator

    def run(self, count: int, tolerance: float, floor: float, max_matvecs: int) -> Tensor:
        """The leading `count` vectors when they have converged or the budget is spent."""
        n, before = self._operator.shape[1], self._operator.matvecs
        drawn = torch.randn(
            (n, self._block), generator=self._generator, dtype=self._operator.dtype, device=self._generator.device
        )
        basis: Tensor = torch.linalg.qr(drawn.to(self._operator.device))[0]
        images = self._operator.matmat(basis)
        mixing, values = self._ritz(basis, images)
        x, ax = basis @ mixing[:, : self._block], images @ mixing[:, : self._block]
        p = ap = x[:, :0]
        while True:
            values = values[: self._block]
            errors = ax - x * values
            norms = errors.norm(dim=0)
            open_ = norms > torch.maximum(tolerance * values, values.new_tensor(floor))
            # `not finite` counts as open and ends here too: the caller's last product finds it.
            spent = self._operator.matvecs - before + count + self._block > max_matvecs
            if not bool(open_[:count].any()) or spent or not bool(torch.isfinite(norms).all()):
                return x[:, :count]
            fresh = errors[:, open_]
            if self._preconditioner is not None:
                fresh = self._preconditioner(fresh)
            fresh = _outside(fresh, torch.cat([x, p], 1))
            if fresh.shape[1] == 0:
                return x[:, :count]
            basis = torch.cat([x, p, fresh], 1)
            images = torch.cat([ax, ap, self._operator.matmat(fresh)], 1)
            mixing, values = self._ritz(basis, images)
            kept = mixing[:, : self._block]
            # The step: what the new block has outside the old one, made orthogonal to the new block.
            step = kept.clone()
            step[: self._block] = 0.0
            step = _outside(step, kept)
            x, ax, p, ap = basis @ kept, images @ kept, basis @ step, images @ step

    def _ritz(self, basis: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        projected = basis.T @ images
        if not bool(torch.isfinite(projected).all()):
            size = projected.shape[0]
            return torch.eye(size, dtype=basis.dtype, device=basis.device), projected.diagonal()
        values, mixing = torch.linalg.eigh((projected + projected.T) / 2)
        return (mixing.flip(1), values.flip(0)) if self._largest else (mixing, values)


def _outside(block: Tensor, basis: Tensor) -> Tensor:
    """Orthonormal columns that span the part of `block` outside an orthonormal basis; dependent ones are dropped."""
    norms = block.norm(dim=0)
    block = block[:, norms > 0] / norms[norms > 0]
    for _ in range(2):
        block = block - basis @ (basis.T @ block)
    left, sizes, _ = torch.linalg.svd(block, full_matrices=False)
    left = left[:, sizes > 1e3 * torch.finfo(block.dtype).eps]
    left = left - basis @ (basis.T @ left)
    orthonormal: Tensor = torch.linalg.qr(left)[0]
    return orthonormal


def _dense(operator: LinearOperator, count: int, largest: bool) -> Tensor:
    identity = torch.eye(operator.shape[1], dtype=operator.dtype, device=operator.device)
    matrix = operator.matmat(identity)
    if not bool(torch.isfinite(matrix).all()):
        return identity[:, :count]
    vectors: Tensor = torch.linalg.eigh((matrix + matrix.T) / 2)[1]
    return vectors.flip(1)[:, :count] if largest else vectors[:, :count]


def _result(
    operator: LinearOperator,
    vectors: Tensor,
    values: Tensor,
    residuals: Tensor,
    converged: int,
    zeros: int,
    outcome: Outcome,
    before: int,
) -> ExtremeEigenpairs:
    return ExtremeEigenpairs(
        values=values,
        vectors=vectors,
        residuals=residuals,
        converged=converged,
        zeros=zeros,
        outcome=outcome,
        matvecs=operator.matvecs - before,
    )

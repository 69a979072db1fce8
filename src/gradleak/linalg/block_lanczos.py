"""The largest eigenvalues of a symmetric positive semidefinite operator, with their multiplicity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.linalg.operator import LinearOperator
from gradleak.results import InputError, Outcome, check_count, check_not_negative


@dataclass(frozen=True, kw_only=True, eq=False)
class TopEigenpairs:
    """The largest eigenvalues of an operator.

    Attributes:
        values: (k,), descending.
        vectors: (n, k), orthonormal columns.
        residuals: (k,), ‖Av − λv‖ of each pair, in the units of the eigenvalues.
        multiplicity: how many eigenvalues equal the largest one, to `cluster_tolerance`; 0 without values.
        outcome: converged; budget_spent (values are then lower estimates); not_informative for the zero operator
            (all values are exactly zero); not_finite (no values).
        matvecs: columns multiplied by the operator.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    multiplicity: int
    outcome: Outcome
    matvecs: int


def block_lanczos(
    operator: LinearOperator,
    count: int = 1,
    *,
    generator: torch.Generator,
    block: int = 4,
    tolerance: float = 1e-9,
    cluster_tolerance: float = 1e-6,
    max_matvecs: int = 4000,
    max_basis: int = 96,
    certify: bool = True,
    start: Tensor | None = None,
) -> TopEigenpairs:
    """The `count` largest eigenvalues of a symmetric positive semidefinite operator, with vectors and residuals.

    A block Krylov space with full reorthogonalization, Rayleigh-Ritz on the whole basis, and thick restarts: when the
    basis is full it is replaced by its leading Ritz vectors. A single start vector sees one copy of a repeated
    eigenvalue; a block of b sees up to b of them, and when b of the largest are found to agree, further runs outside
    their span look for more; where `count` exceeds b, so do they for copies of smaller eigenvalues.

    Assumptions: A pair is accepted at ‖Av − λv‖ <= tolerance · λ, which puts an eigenvalue within that distance. That
    none larger was missed holds with probability one for a random start, not with certainty.

    Args:
        operator: (n, n), symmetric positive semidefinite (not checked).
        count: how many eigenvalues, at least 1; more than n gives n.
        generator: source of the start vectors.
        block: columns a step, at least 1; use 4 or more where eigenvalues may repeat.
        tolerance: relative residual of a converged pair; raised to 100 eps of the dtype if smaller.
        cluster_tolerance: relative distance up to which an eigenvalue counts as equal to the largest.
        max_matvecs: budget in columns.
        max_basis: vectors kept before a restart; raised where `count` and `block` need more.
        certify: False to stop as soon as the values themselves are known to a relative error of `tolerance`, by the
            estimate min(r, 2r²/gap) with the residual r and the distance to the next Ritz value; multiplicity is then
            not looked for (it says how many copies were seen), and `residuals` may be far larger than the errors.
        start: (n,), a guess of the leading eigenvector, to which a tenth of a random vector is added; or None.

    Returns:
        The pairs found; never raises for lack of convergence.

    Raises:
        InputError: for a rectangular operator, count < 1 or block < 1, or a tolerance or budget that is no number of at
            least 0.

    Cost: `matvecs` products, in blocks; 16·n·max_basis bytes in float64.

    Source: Golub and Underwood 1977 (block Lanczos); Wu and Simon 2000 (thick restart); Parlett 1998,
    theorem 11.7.1 (the error estimate without certificate).

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> twice = DenseOperator(torch.diag(torch.tensor([5.0, 5.0, 1.0])))
        >>> found = block_lanczos(twice, generator=torch.Generator().manual_seed(0))
        >>> round(float(found.values[0]), 4), found.multiplicity
        (5.0, 2)
    """
    n = operator.shape[1]
    if operator.shape[0] != n or n == 0:
        raise InputError(f"block_lanczos: expected a square operator, got shape {operator.shape}")
    check_count("count", count)
    check_count("block", block)
    check_count("max_basis", max_basis)
    check_count("max_matvecs", max_matvecs, least=0)
    check_not_negative("tolerance", tolerance)
    check_not_negative("cluster_tolerance", cluster_tolerance)
    count = min(count, n)
    tolerance = max(tolerance, 100 * torch.finfo(operator.dtype).eps)
    before = operator.matvecs
    search = _Search(operator, block, cluster_tolerance, max(max_basis, 3 * (count + block)), generator, certify)
    nothing = torch.empty(n, 0, dtype=operator.dtype, device=operator.device)
    found = search.run(nothing, count, tolerance, max_matvecs, start)
    if found is None:
        return _without_values(operator, before)
    largest = float(found.values[0])
    if largest <= 0.0:
        return _zero(operator, count, before)
    converged = found.converged
    values, vectors, errors_norm = found.values, found.vectors, found.errors_norm
    cluster = vectors[:, : found.multiplicity]
    more = found
    while certify and converged and more.multiplicity >= block and cluster.shape[1] < n:
        # As many equal values as start vectors: there may be more of them outside of what was found.
        spent = operator.matvecs - before
        deflated = search.run(cluster, 1, max(tolerance, cluster_tolerance), max_matvecs - spent)
        if deflated is None:
            return _without_values(operator, before)
        more, converged = deflated, deflated.converged
        equal = more.values >= largest * (1 - cluster_tolerance)
        if not bool(equal.any()):
            break
        cluster = torch.cat([cluster, more.vectors[:, equal]], 1)
        values, order = torch.cat([values, more.values[equal]]).sort(descending=True)
        vectors = torch.cat([vectors, more.vectors[:, equal]], 1)[:, order]
        errors_norm = torch.cat([errors_norm, more.errors_norm[equal]])[order]
    known = vectors[:, :count]
    while certify and converged and count > block and known.shape[1] < n:
        # A block of b holds b copies of an eigenvalue: is there another one outside, larger than the last that is kept?
        spent = operator.matvecs - before
        more_outside = search.run(known, 1, tolerance, max_matvecs - spent)
        if more_outside is None:
            return _without_values(operator, before)
        converged = more_outside.converged
        missed = more_outside.values > values[count - 1] * (1 + cluster_tolerance)
        if not converged or not bool(missed.any()):
            break
        known = torch.cat([known, more_outside.vectors[:, missed]], 1)
        values, order = torch.cat([values[:count], more_outside.values[missed]]).sort(descending=True)
        vectors = torch.cat([vectors[:, :count], more_outside.vectors[:, missed]], 1)[:, order]
        # Residuals of the runs leave out what the other vectors lack.
        errors_norm = (operator.matmat(vectors) - vectors * values).norm(dim=0)
    return TopEigenpairs(
        values=values[:count],
        vectors=vectors[:, :count],
        residuals=errors_norm[:count],
        multiplicity=cluster.shape[1],
        outcome=Outcome.CONVERGED if converged else Outcome.BUDGET_SPENT,
        matvecs=operator.matvecs - before,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ritz:
    """The leading Ritz pairs of a basis, descending."""

    values: Tensor
    vectors: Tensor
    mixing: Tensor  # all Ritz vectors in terms of the basis
    errors: Tensor  # Av - λv of the leading pairs that are not settled, at most one block
    errors_norm: Tensor
    multiplicity: int
    converged: bool


@dataclass(frozen=True)
class _Search:
    """One block Krylov run, orthogonal to eigenvectors that are known already."""

    operator: LinearOperator
    block: int
    cluster_tolerance: float
    max_basis: int
    generator: torch.Generator
    certify: bool

    def run(
        self, known: Tensor, count: int, tolerance: float, max_matvecs: int, start: Tensor | None = None
    ) -> _Ritz | None:
        """The leading pairs outside the span of `known`; None for products that are not finite."""
        free = self.operator.shape[1] - known.shape[1]
        before = self.operator.matvecs
        basis = images = known[:, :0]
        fresh = self._random(basis, known)
        if start is not None and bool(start.any()) and bool(torch.isfinite(start).all()):
            guess = (start / start.norm())[:, None] + 0.1 * fresh[:, :1]
            fresh = _orthonormal(torch.cat([guess, fresh[:, 1:]], 1), basis, known)
        while True:
            products = self.operator.matmat(fresh)
            if not bool(torch.isfinite(products).all()):
                return None
            products = products - known @ (known.T @ products)
            basis, images = torch.cat([basis, fresh], 1), torch.cat([images, products], 1)
            ritz = _rayleigh_ritz(basis, images, count, self.block, tolerance, self.cluster_tolerance, self.certify)
            # A basis of the whole space makes Rayleigh-Ritz the dense eigenproblem, exact to round-off.
            if ritz.converged or basis.shape[1] >= free or float(ritz.values[0]) <= 0.0:
                return replace(ritz, converged=True)
            if self.operator.matvecs - before >= max_matvecs:
                return ritz
            fresh = _orthonormal(ritz.errors, basis, known)[:, : free - basis.shape[1]]
            if fresh.shape[1] == 0:
                fresh = self._random(basis, known)  # an invariant subspace: look outside of it
            if basis.shape[1] + fresh.shape[1] > self.max_basis:
                keep = ritz.mixing[:, : max(count, ritz.multiplicity) + 2 * self.block]
                basis, images = basis @ keep, images @ keep

    def _random(self, basis: Tensor, known: Tensor) -> Tensor:
        """Random orthonormal columns, orthogonal to the basis and to what is known."""
        columns = min(self.block, basis.shape[0] - basis.shape[1] - known.shape[1])
        drawn = torch.randn(
            (basis.shape[0], columns), generator=self.generator, dtype=basis.dtype, device=self.generator.device
        )
        return _orthonormal(drawn.to(basis.device), basis, known)


def _rayleigh_ritz(
    basis: Tensor,
    images: Tensor,
    count: int,
    block: int,
    tolerance: float,
    cluster_tolerance: float,
    certify: bool,
) -> _Ritz:
    projected = basis.T @ images
    values, mixing = torch.linalg.eigh((projected + projected.T) / 2)
    values, mixing = values.flip(0).clamp_min(0.0), mixing.flip(1)
    edge = float(values[0]) * (1 - cluster_tolerance)
    multiplicity = int((values >= edge).sum())
    wanted = max(count, multiplicity)
    leading = mixing[:, : wanted + block]
    values = values[: wanted + block]
    vectors = basis @ leading
    errors = images @ leading - vectors * values
    errors_norm = errors.norm(dim=0)
    # Values at round-off of the largest one are zeros: no relative residual is reached there.
    floor = basis.shape[0] * torch.finfo(values.dtype).eps * values[0]
    if certify:
        bounds = errors_norm
    else:
        # Kato and Temple: an error of second order, once the next Ritz value stands for the next eigenvalue.
        gaps = torch.cat([values[:-1] - values[1:], values.new_zeros(1)])
        bounds = torch.minimum(errors_norm, 2 * errors_norm**2 / gaps.clamp_min(torch.finfo(values.dtype).tiny))
    settled = bounds <= torch.maximum(tolerance * values, floor)
    enough = values.numel() >= wanted and bool(settled[:wanted].all())
    # The first value outside the top cluster must be known well enough to say that it is outside.
    beyond = values.numel() > multiplicity
    separated = beyond and float(values[multiplicity] + errors_norm[multiplicity]) < edge
    return _Ritz(
        values=values,
        vectors=vectors,
        mixing=mixing,
        errors=errors[:, ~settled][:, :block],
        errors_norm=errors_norm,
        multiplicity=multiplicity,
        converged=enough and (separated or not certify),
    )


def _orthonormal(block: Tensor, *others: Tensor) -> Tensor:
    """Orthonormal columns that span the part of `block` outside the others; dependent columns are dropped."""
    basis = torch.cat(others, 1)
    norms = block.norm(dim=0)
    block = block[:, norms > 0] / norms[norms > 0]
    for _ in range(2):  # twice is enough (Kahan and Parlett)
        block = block - basis @ (basis.T @ block)
    left, sizes, _ = torch.linalg.svd(block, full_matrices=False)
    left = left[:, sizes > 1e3 * torch.finfo(block.dtype).eps]
    left = left - basis @ (basis.T @ left)
    orthonormal: Tensor = torch.linalg.qr(left)[0]
    return orthonormal


def _zero(operator: LinearOperator, count: int, before: int) -> TopEigenpairs:
    n = operator.shape[1]
    zeros = torch.zeros(count, dtype=operator.dtype, device=operator.device)
    return TopEigenpairs(
        values=zeros,
        vectors=torch.eye(n, dtype=operator.dtype, device=operator.device)[:, :count],
        residuals=zeros.clone(),
        multiplicity=n,
        outcome=Outcome.NOT_INFORMATIVE,
        matvecs=operator.matvecs - before,
    )


def _without_values(operator: LinearOperator, before: int) -> TopEigenpairs:
    empty = torch.empty(0, dtype=operator.dtype, device=operator.device)
    return TopEigenpairs(
        values=empty,
        vectors=torch.empty(operator.shape[1], 0, dtype=operator.dtype, device=operator.device),
        residuals=empty,
        multiplicity=0,
        outcome=Outcome.NOT_FINITE,
        matvecs=operator.matvecs - before,
    )

"""Distance between the gradients with and without an attribute, layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.results import (
    MO_2021,
    YE_LIM_2016,
    Citation,
    Count,
    InputError,
    Leakier,
    Outcome,
    Score,
    Whole,
)
from gradleak.risk.layer_measure import GradientMeasure, coordinates

# Of the largest distance, what the angles of equal subspaces have by round-off.
_FLAT = 1e-9


class GrassmannMetric(StrEnum):
    """A distance of two subspaces by their principal angles θ: √Σθ², √Σsin²θ, or the largest θ."""

    GEODESIC = "geodesic"
    CHORDAL = "chordal"
    ASIMOV = "asimov"

    def of(self, angles: Tensor) -> float:
        """The distance that belongs to principal angles (k,) in radians."""
        if self is GrassmannMetric.ASIMOV:
            return float(angles.max())
        return float((angles if self is GrassmannMetric.GEODESIC else angles.sin()).norm())

    def largest(self, count: int) -> float:
        """The distance of two subspaces with so many angles that are orthogonal to each other."""
        return self.of(torch.full((count,), math.pi / 2, dtype=torch.float64))


@dataclass(frozen=True, kw_only=True)
class SubspaceDistance(GradientMeasure):
    """The Grassmann distance between what a layer's gradients span with and without an attribute, beside a null.

    Of each group the first m gradients of a random order are the columns of a matrix G⁽ᵃ⁾ (P_l, m), m the same for
    both. Its k leading left singular vectors span the subspace, fewer where the rank is lower. With the principal
    angles θ between the two subspaces the distance is √Σθ² (`geodesic`), √Σsin²θ (`chordal`) or max θ (`asimov`).

    Two groups that differ in nothing are not at distance 0: their gradients are different samples. So the details hold
    what random groups of these 2m gradients give: `null_mean`, `null_std`, `null_95`, the `effect_size`
    (value − null_mean)/null_std and the one-sided `p_value` (1 + number of null distances ≥ the value)/(1 +
    permutations), all layers under the same permutations; `p_value_smallest` is the least that so many can give.

    **Assumptions**: under the null rows are exchangeable between the groups; then p is valid for any n, whatever the
    distribution. It is not where rows share examples or users, or where the attribute goes along with something else
    (the label, say): then the distance is that of both. p is that of one layer: among L layers multiply by L. The value
    is an estimate, above the distance of what infinite samples span, and depends on m and k: compare layers by the
    effect size, or at the same m and k. A layer of P_l ≤ k entries is wholly spanned by either group and has no value
    (not_informative); with 2k > P_l at least 2k − P_l angles are 0 (`forced_zeros`). A small distance is no evidence of
    safety: gradients may differ in length or order within one subspace.

    Args:
        metric: `geodesic`, `chordal` or `asimov`.
        dimension: k, the dimension of the subspaces.
        columns: m, gradients of each group; None for as many as the smaller group has.
        permutations: random groups of the null, at least 19.

    Raises:
        InputError: for another metric, too small a number, or (when measured) a target that is not 0 and 1, or fewer than
            `columns` rows of either.

    **Cost**: a QR factorization of (P_l, 2m) in blocks, then per permutation two singular value decompositions of
    (m, min(2m, P_l)). 0.5 s a layer for m = 50, 199 permutations.

    **Source**: Mo et al. 2021, equations 12 and 13; distances and unequal dimensions as Ye and Lim 2016. Deviations: the
    paper averages the gradients of a set, and one mean spans one dimension, so here the gradients of examples (or
    batches) are the columns and their number is told; leading directions instead of all; the null and the effect size.

    Examples:
        >>> rows = torch.eye(4, 5).repeat(5, 1)
        >>> with_attribute = torch.tensor([0, 0, 1, 1]).repeat(5)
        >>> score = SubspaceDistance(dimension=4)({"head": rows}, with_attribute)["head"]
        >>> round(score.value / (math.pi / 2), 6), score.details["p_value"]  # two right angles
        (1.414214, 0.005)
    """

    name: ClassVar[str] = "subspace_distance"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021, YE_LIM_2016)
    summary: ClassVar[str] = "Grassmann distance between the gradients with and without an attribute, by layer"
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    needs_values: ClassVar[bool] = True
    most_values: ClassVar[int | None] = 2

    metric: GrassmannMetric | str = GrassmannMetric.GEODESIC
    dimension: Count = 8
    columns: Annotated[int, Whole(2)] | None = None
    permutations: Annotated[int, Whole(19)] = 199

    @property
    def variant(self) -> str:
        """The metric."""
        return str(self.metric)

    @property
    def _unit(self) -> str:
        return "1" if self.metric == GrassmannMetric.CHORDAL else "rad"

    def _check(self, target: Tensor) -> None:
        if target.dim() != 1 or not bool(((target == 0) | (target == 1)).all()):
            raise InputError(
                "target: expected 0 (without the attribute) or 1 (with it) for each row, (n,); for an attribute of "
                "more values compare one of them with the others"
            )
        least, needed = min(int((target == 0).sum()), int((target == 1).sum())), self.columns or 2
        if least < needed:
            raise InputError(f"target: expected at least {needed} rows with 0 and with 1, got {least} of one of them")

    def _measure(self, matrix: Tensor, target: Tensor, generator: torch.Generator) -> Score:
        groups = [_shuffled(torch.nonzero(target == value)[:, 0].cpu(), generator) for value in (0, 1)]
        columns = self.columns or min(len(group) for group in groups)
        rows = torch.cat([group[:columns] for group in groups])
        facts = {
            "metric": str(self.metric),
            "dimension": self.dimension,
            "columns": columns,
            "rows": 2 * columns,
            "entries": matrix.shape[1],
        }
        if matrix.shape[1] <= self.dimension:
            return self._without_value(
                Outcome.NOT_INFORMATIVE,
                f"the layer has {matrix.shape[1]} entries, so that subspaces of {self.dimension} dimensions are all of it",
                **facts,
            )
        points = coordinates(matrix[rows.to(matrix.device)])
        angles = self._angles(points[:columns], points[columns:])
        if angles is None:
            return self._without_value(
                Outcome.NO_SIGNAL, "all gradients of one of the two groups are zero in this layer", **facts
            )
        metric = GrassmannMetric(self.metric)
        value, null = _distance(metric, angles), []
        for _ in range(self.permutations):
            order = torch.randperm(2 * columns, generator=generator)
            drawn = self._angles(points[order[:columns]], points[order[columns:]])
            null.append(0.0 if drawn is None else _distance(metric, drawn))
        distances = torch.tensor(null, dtype=torch.float64)
        spread = float(distances.std())
        # Equal groups in another order differ by round-off and count as ties.
        reached = int((distances >= value * (1 - 1e-9)).sum())
        p_value = (1 + reached) / (1 + self.permutations)
        return self._score(
            value,
            n=2 * columns,
            note=f"{columns} gradients of each group, {len(angles)} leading directions; among random groups p = {p_value:.3g}",
            details=facts
            | {
                "angles": angles.tolist(),
                "largest": metric.largest(len(angles)),
                "forced_zeros": max(0, 2 * len(angles) - matrix.shape[1]),
                "null_mean": float(distances.mean()),
                "null_std": spread,
                "null_95": float(distances.quantile(0.95)),
                # A null without spread has no scale to state an effect in.
                "effect_size": (value - float(distances.mean())) / spread if spread > 1e-9 * value else None,
                "p_value": p_value,
                "p_value_smallest": 1 / (1 + self.permutations),
                "permutations": self.permutations,
            },
        )

    def _angles(self, first: Tensor, second: Tensor) -> Tensor | None:
        """Principal angles between the leading directions of two groups of rows, or None if one of them is zero."""
        bases = [_basis(group.T, self.dimension) for group in (first, second)]
        if any(basis.shape[1] == 0 for basis in bases):
            return None
        return _angles_of(*bases)


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """The principal angles between the spans of the columns of two matrices, in radians, the smallest first.

    θᵢ = arccos σᵢ(Q₁ᵀQ₂) with orthonormal bases Q of the two spans, and arcsin of the singular values of the part of one
    basis outside of the other where that is the more accurate (θ < 45°).

    Args:
        first: (P, p).
        second: (P, q).

    Returns:
        min(rank of first, rank of second) angles between 0 and π/2, float64.

    Raises:
        InputError: for matrices with other numbers of rows, or one that is zero or not finite.

    **Cost**: two singular value decompositions of (P, p) and (P, q).

    **Source**: Björck and Golub 1973; Knyazev and Argentati 2002 for small angles.

    Examples:
        >>> plane = torch.eye(3, 2)
        >>> tilted = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> [round(angle, 6) for angle in principal_angles(plane, tilted).tolist()]  # 0 and 45 degrees
        [0.0, 0.785398]
    """
    for name, matrix in (("first", first), ("second", second)):
        if not isinstance(matrix, Tensor) or matrix.dim() != 2 or not matrix.is_floating_point():
            raise InputError(f"{name}: expected a real matrix whose columns span the subspace")
        if not bool(torch.isfinite(matrix).all()) or not bool(matrix.any()):
            raise InputError(f"{name}: expected finite columns that are not all zero")
    if first.shape[0] != second.shape[0]:
        raise InputError(f"second: expected {first.shape[0]} rows as first has, got {second.shape[0]}")
    return _angles_of(*(_basis(matrix.double(), min(matrix.shape)) for matrix in (first, second)))


def _distance(metric: GrassmannMetric, angles: Tensor) -> float:
    """The distance; 0 where it is round-off, of which a null has a spread as well."""
    found = metric.of(angles)
    return found if found > _FLAT * metric.largest(len(angles)) else 0.0


def _basis(matrix: Tensor, dimension: int) -> Tensor:
    """An orthonormal basis of the leading directions of the columns, at most as many as the rank."""
    left: Tensor
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    floor = max(matrix.shape) * torch.finfo(matrix.dtype).eps * float(values[0])
    return left[:, : min(dimension, int((values > floor).sum()))]


def _angles_of(first: Tensor, second: Tensor) -> Tensor:
    if first.shape[1] < second.shape[1]:
        first, second = second, first
    common = first.T @ second
    cosines = torch.linalg.svdvals(common).clamp(max=1.0)
    sines = torch.linalg.svdvals(second - first @ common).clamp(max=1.0).flip(0)
    return torch.where(cosines**2 >= 0.5, sines.asin(), cosines.acos()).sort().values


def _shuffled(entries: Tensor, generator: torch.Generator) -> Tensor:
    return entries[torch.randperm(len(entries), generator=generator)]

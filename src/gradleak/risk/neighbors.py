"""Estimates of mutual information from distances to the k-th nearest neighbor, and their bias on Gaussian pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.neighbors import KDTree

Floats = NDArray[np.float64]


def _tree(rows: Floats) -> KDTree:
    """Tree of neighbors by the largest difference of a coordinate."""
    # Loaded where it is needed: a second of every process that never does.
    from sklearn.neighbors import KDTree

    return KDTree(rows, metric="chebyshev")


def information_with_inputs(first: Floats, second: Floats, neighbors: int) -> float:
    """The estimate in nats of Kraskov et al. 2004 (algorithm 1) from rows (n, p) and (n, q)."""
    joint = _tree(np.concatenate([first, second], axis=1))
    # Its own row is the first neighbor; only rows strictly nearer than the k-th are counted.
    radius = np.nextafter(joint.query(joint.data, k=neighbors + 1)[0][:, -1], 0)
    near = [_tree(space).query_radius(space, radius, count_only=True) for space in (first, second)]
    return float(
        scipy.special.digamma(len(first))
        + scipy.special.digamma(neighbors)
        - np.mean(scipy.special.digamma(near[0]) + scipy.special.digamma(near[1]))
    )


def information_with_labels(rows: Floats, labels: NDArray[np.int64], neighbors: int) -> float:
    """The estimate in nats of Ross 2014 from rows (n, p) and labels (n,)."""
    radius = np.empty(len(rows))
    used = np.empty(len(rows), dtype=int)
    sizes = np.bincount(labels)[labels]
    for label in np.unique(labels[sizes > 1]):
        here = labels == label
        count = min(neighbors, int(here.sum()) - 1)
        tree = _tree(rows[here])
        radius[here] = np.nextafter(tree.query(rows[here], k=count + 1)[0][:, -1], 0)
        used[here] = count
    # A label that occurs once has no neighbor of its kind.
    kept = sizes > 1
    if not kept.any():
        return 0.0
    rows = rows[kept]
    near = _tree(rows).query_radius(rows, radius[kept], count_only=True)
    return float(
        scipy.special.digamma(len(rows))
        + np.mean(scipy.special.digamma(used[kept]) - scipy.special.digamma(sizes[kept]) - scipy.special.digamma(near))
    )


# Draws behind one point of a calibration, the factor from point to point, and the first of them.
_DRAWS, _FACTOR, _FIRST = 2, 1.25, 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianPairs:
    """Pairs of Gaussian rows whose mutual information is known, of the size and shape of given rows.

    Attributes:
        rows: n.
        sizes: the components of both sides.
        shares: of the information, of each pair of components that depends.
        neighbors: k of the estimates.
    """

    rows: int
    sizes: tuple[int, int]
    shares: Floats
    neighbors: int
    _known: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def like(cls, first: Floats, second: Floats, neighbors: int) -> GaussianPairs:
        """As many rows and components, and the shares of the canonical correlations, of white rows (n, p) and (n, q)."""
        correlations = np.linalg.svd(first.T @ second / (len(first) - 1), compute_uv=False).clip(0.0, 1.0 - 1e-9)
        squares = np.square(correlations)
        # What independent rows of this number show by chance.
        squares[squares < 4.0 / len(first)] = 0.0
        told = -np.log1p(-squares)
        equal = np.full(len(squares), 1.0 / len(squares))
        shares = told / told.sum() if told.any() else equal
        return cls(rows=len(first), sizes=(first.shape[1], second.shape[1]), shares=shares, neighbors=neighbors)

    def truth_of(self, value: float, most: float) -> float:
        """The information at which these pairs give a value on average, in nats, but never less than the value.

        Values below 0.1 stand as they are. Infinite where pairs of `most` nats give less.
        """
        if value < _FIRST:
            return value
        point = int(math.log(value / _FIRST) / math.log(_FACTOR))
        while self._at(point) < value:
            point += 1
            if _FIRST * _FACTOR**point > most:
                return math.inf
        if point == 0:
            return value
        low, high = self._at(point - 1), self._at(point)
        share = 1.0 if high <= low else min(max((value - low) / (high - low), 0.0), 1.0)
        return max(value, _FIRST * math.pow(_FACTOR, point - 1 + share))

    def value_at(self, information: float) -> float:
        """The estimate, on average, for pairs with this information, in nats."""
        correlations = np.sqrt(-np.expm1(-2.0 * information * self.shares))
        found = []
        for draw in range(_DRAWS):
            random = np.random.default_rng(draw)
            first, second = (random.standard_normal((self.rows, size)) for size in self.sizes)
            second[:, : len(correlations)] *= np.sqrt(1.0 - np.square(correlations))
            second[:, : len(correlations)] += correlations * first[:, : len(correlations)]
            found.append(information_with_inputs(first, second, self.neighbors))
        return float(np.mean(found))

    def _at(self, point: int) -> float:
        if point not in self._known:
            self._known[point] = self.value_at(_FIRST * _FACTOR**point)
        return self._known[point]

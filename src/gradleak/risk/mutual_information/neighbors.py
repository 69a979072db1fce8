"""Mutual information by nearest neighbors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.stats
import torch
from scipy.special import digamma
from sklearn.neighbors import KDTree

from gradleak.results import HOLMES_NEMENMAN_2019, KRASKOV_2004, MO_2021, ROSS_2014, Citation, Count
from gradleak.risk.mutual_information.estimator import Estimate, InformationEstimator, Target, components_of

_PARTS = 10
# Rows of a part that its estimate makes sense for.
_PART_ROWS = 20
# Breaks ties between equal rows; the components have unit variance.
_JITTER = 1e-10


@dataclass(frozen=True, kw_only=True)
class NeighborInformation(InformationEstimator):
    """Mutual information of a layer's gradients with inputs or labels, from distances to the k-th nearest neighbor.

    For inputs ψ(n) + ψ(k) − mean[ψ(n_G) + ψ(n_T)], with n_G and n_T the rows within the distance of the k-th joint
    neighbor (maximum norm), itself included. For labels ψ(n) + mean[ψ(kᵢ) − ψ(N_y) − ψ(mᵢ)] with N_y rows of the label
    and mᵢ rows nearer than the k-th of the same label.

    **Assumptions**: independent rows and a density that hardly changes among k neighbors. **Biases**: about 0 where
    nothing depends, so estimates may be a little negative and are not clipped; too low for strong dependence and for
    many components (with inputs, already at four and some hundred rows); never above ψ(n) − ψ(k) for inputs, near
    which the outcome is saturated. G is a function of input, label and parameters: without noise I(G; input) is
    infinite for continuous inputs, and any finite number says what n rows resolve. The interval (from 200 rows on; the
    variance of estimates on 10 parts, Student) is for the draw of the rows alone; the bias can be larger.

    Args:
        neighbors: k; small for little bias, large for little variance.
        components: principal components kept.

    Raises:
        InputError: for numbers below 1, or (when measured) a target that is neither labels nor finite inputs.

    **Cost**: k-d trees, n log n for few components; 0.1 s for 1,000 rows.

    **Source**: Kraskov et al. 2004, algorithm 1; Ross 2014 for labels; the variance as Holmes and Nemenman 2019 (from one
    size of parts). Mo et al. 2021, section 4.1, use MINE; this stands beside it.

    Examples:
        >>> draw = torch.Generator().manual_seed(0)
        >>> label = torch.arange(200) % 2
        >>> rows = label[:, None] + 0.01 * torch.randn(200, 1, generator=draw)
        >>> score = NeighborInformation()({"head": rows}, label)["head"]
        >>> round(score.value, 2), round(score.details["target_entropy"], 2)
        (0.7, 0.69)
    """

    name: ClassVar[str] = "neighbor_information"
    citations: ClassVar[tuple[Citation, ...]] = (KRASKOV_2004, ROSS_2014, HOLMES_NEMENMAN_2019, MO_2021)
    summary: ClassVar[str] = "mutual information of a layer's gradients with inputs or labels, by nearest neighbors"

    components: Count = 3
    neighbors: Count = 3

    @property
    def _least_rows(self) -> int:
        return 4 * (self.neighbors + 1)

    def _estimate(self, rows: torch.Tensor, target: Target, generator: torch.Generator) -> Estimate:
        gradients = _jittered(components_of(rows, self.components), generator)
        estimate: Callable[[np.ndarray, np.ndarray, int], float]
        if target.entropy is None:
            other = _jittered(components_of(target.values, self.components), generator)
            estimate, ceiling = _of_inputs, float(digamma(len(rows)) - digamma(self.neighbors))
        else:
            other, estimate, ceiling = target.values.numpy(), _of_labels, None
        value = estimate(gradients, other, self.neighbors)
        interval = None
        if len(rows) >= _PARTS * max(_PART_ROWS, self._least_rows):
            parts = np.array_split(torch.randperm(len(rows), generator=generator).numpy(), _PARTS)
            spread = np.std([estimate(gradients[part], other[part], self.neighbors) for part in parts], ddof=1)
            reach = float(scipy.stats.t.isf(0.025, _PARTS - 1) * spread / math.sqrt(_PARTS))
            interval = (value - reach, value + reach)
        details = {"neighbors": self.neighbors, "components": gradients.shape[1]}
        return Estimate(value=value, interval=interval, ceiling=ceiling, details=details)


def _of_inputs(first: np.ndarray, second: np.ndarray, neighbors: int) -> float:
    joint = KDTree(np.concatenate([first, second], axis=1), metric="chebyshev")
    # Its own row is the first neighbor; only rows strictly nearer than the k-th are counted.
    radius = np.nextafter(joint.query(joint.data, k=neighbors + 1)[0][:, -1], 0)
    near = [KDTree(space, metric="chebyshev").query_radius(space, radius, count_only=True) for space in (first, second)]
    return float(digamma(len(first)) + digamma(neighbors) - np.mean(digamma(near[0]) + digamma(near[1])))


def _of_labels(rows: np.ndarray, labels: np.ndarray, neighbors: int) -> float:
    radius = np.empty(len(rows))
    used = np.empty(len(rows), dtype=int)
    sizes = np.bincount(labels)[labels]
    for label in np.unique(labels[sizes > 1]):
        here = labels == label
        count = min(neighbors, int(here.sum()) - 1)
        tree = KDTree(rows[here], metric="chebyshev")
        radius[here] = np.nextafter(tree.query(rows[here], k=count + 1)[0][:, -1], 0)
        used[here] = count
    # A label that occurs once has no neighbor of its kind.
    kept = sizes > 1
    if not kept.any():
        return 0.0
    rows = rows[kept]
    near = KDTree(rows, metric="chebyshev").query_radius(rows, radius[kept], count_only=True)
    return float(digamma(len(rows)) + np.mean(digamma(used[kept]) - digamma(sizes[kept]) - digamma(near)))


def _jittered(rows: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    noise = torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
    return np.ascontiguousarray((rows + _JITTER * noise).numpy())

"""Values of every row for every layer, so that layers are compared on the same rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from gradleak.results import InputError, check_count, check_seed, check_share

Floats = NDArray[np.float64]
Interval = tuple[float, float]

# Clusters below which the bootstrap does not know the tail of the largest of many pairs.
_FEW = 20
# Of the size of the contributions, what differences of equal ones have by round-off.
_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedRows:
    """The contributions of the same rows to the scores of several layers, and intervals of their differences.

    Layers are scored on the same rows (or examples), so that what makes a row hard is hard for all of them and drops out
    of a difference. For layers k and l with mean contributions m_k and m_l the interval is

        m_k − m_l ± w · c · s_kl,

    where s_kl is the standard error of the mean difference over clusters, w the `widening` of the measure's own intervals,
    and c the same for all pairs: of so many pairs the leakiest layer against any other is picked *after* looking.

    **The correction for picking**: c is the 1 − α quantile, over bootstrap draws of whole clusters, of the largest
    |m*_kl − m_kl| / s_kl of all pairs (a single-step maximum-t procedure). With probability 1 − α all intervals hold their
    difference together, whichever layers are looked at, so that equally leaky layers are told apart in at most a share α
    of all data. It is sharper than Bonferroni where layers go together. For few clusters c is moved to Student's quantile
    with the same tail, and is never below Student's for one pair. Draws of fewer than 20 clusters know too little of the
    largest of many pairs (of 8 equal layers on 3 clusters they told some apart in 32 % of all data, on 8 in 14 %), so that
    c is then at least Student's quantile for the α of one pair over the number of pairs (Bonferroni).

    **Assumptions**: clusters are independent draws of one population; what was fitted to judge a row is given. Of a
    skewed population fewer than 20 clusters say little.

    Attributes:
        values: contributions (n,) by name of the layer, whose mean over rows is the score.
        clusters: (n,) what belongs together and is drawn together.
        widening: w.
        confidence: 1 − α.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        InputError: for sizes that do not fit, or numbers that are not finite.

    **Cost**: `resamples` · L (n + L) operations for L layers.

    **Source**: Westfall and Young 1993, chapter 2 (the resampled maximum); Romano and Wolf 2005, algorithm 4.1 (its first
    step). Student's quantile for few clusters, and the widening, are ours.
    """

    values: Mapping[str, Floats]
    clusters: NDArray[np.int64]
    widening: float = 1.0
    confidence: float = 0.95
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check sizes and numbers."""
        check_share("PairedRows.confidence", self.confidence)
        check_count("PairedRows.resamples", self.resamples, least=100)
        check_seed("PairedRows.seed", self.seed)
        if not self.widening >= 1.0:
            raise InputError(f"PairedRows.widening: expected at least 1, got {self.widening}")
        for name, rows in self.values.items():
            if rows.shape != self.clusters.shape or rows.ndim != 1 or not len(rows):
                raise InputError(f"PairedRows: expected {self.clusters.shape} numbers of {name!r}, got {rows.shape}")
            if not np.isfinite(rows).all():
                raise InputError(f"PairedRows: expected finite numbers of {name!r}")

    @property
    def pairs(self) -> int:
        """The number of pairs that the intervals hold for together."""
        return len(self.values) * (len(self.values) - 1) // 2

    @cached_property
    def independent(self) -> int:
        """The number of clusters."""
        return len(np.unique(self.clusters))

    def difference(self, one: str, other: str) -> tuple[float, Interval | None]:
        """m_one − m_other, and the interval that holds for all pairs together; None for a single cluster."""
        first, second = self._place(one), self._place(other)
        sums, counts = self._by_cluster
        mean = float((sums[:, first] - sums[:, second]).sum() / counts.sum())
        if self.independent < 2:
            return mean, None
        if abs(mean) <= _ROUNDING * float((np.abs(sums[:, first]) + np.abs(sums[:, second])).sum() / counts.sum()):
            mean = 0.0
        reach = self.widening * self.critical * float(_errors(sums, counts, first)[second])
        return mean, (mean - reach, mean + reach)

    @cached_property
    def critical(self) -> float:
        """The number of standard errors c that no pair exceeds with probability 1 − α; at least two clusters."""
        sums, counts = self._by_cluster
        clusters = len(counts)
        random, shares = np.random.default_rng(self.seed), np.full(clusters, 1.0 / clusters)
        apart = np.empty((self.resamples, sums.shape[1]))
        for place in range(self.resamples):
            drawn = random.multinomial(clusters, shares).astype(np.float64)
            apart[place] = (drawn @ sums) / (drawn @ counts)
        apart -= sums.sum(axis=0) / counts.sum()
        largest = np.zeros(self.resamples)
        for place in range(sums.shape[1] - 1):
            errors = _errors(sums, counts, place)[place + 1 :]
            known = errors > 0.0
            if known.any():
                ratios = np.abs(apart[:, place, None] - apart[:, place + 1 :][:, known]) / errors[known]
                largest = np.maximum(largest, ratios.max(axis=1))
        alpha = 1.0 - self.confidence
        # A bootstrap of n clusters has a spread that is too small by √((n − 1)/n).
        found = float(np.quantile(largest, self.confidence)) * math.sqrt(clusters / (clusters - 1.0))
        found = max(found, float(scipy.stats.norm.isf(alpha / 2.0)))
        tail = max(float(scipy.stats.norm.sf(found)), 1e-12)
        if clusters < _FEW:
            tail = min(tail, alpha / 2.0 / max(1, self.pairs))
        return float(scipy.stats.t.isf(tail, clusters - 1))

    @cached_property
    def _by_cluster(self) -> tuple[Floats, Floats]:
        """Sums of contributions (clusters, layers) and numbers of rows (clusters,)."""
        _, places = np.unique(self.clusters, return_inverse=True)
        sums = [np.bincount(places, weights=rows) for rows in self.values.values()]
        return np.stack(sums, axis=1), np.bincount(places).astype(np.float64)

    def _place(self, name: str) -> int:
        if name not in self.values:
            raise InputError(f"PairedRows: expected one of {', '.join(self.values)}, got {name!r}")
        return list(self.values).index(name)


def _errors(sums: Floats, counts: Floats, place: int) -> Floats:
    """The standard error of the mean difference of one layer and each of all (layers,), over clusters of any size."""
    apart = sums[:, place, None] - sums
    rest = apart - counts[:, None] * (apart.sum(axis=0) / counts.sum())
    clusters = len(counts)
    found: Floats = np.sqrt(np.square(rest).sum(axis=0) * clusters / (clusters - 1.0)) / counts.sum()
    # Constant differences leave round-off behind.
    found[found < _ROUNDING * np.abs(apart).max(initial=0.0)] = 0.0
    return found

"""Correlation of a measure of layers with what an attack finds in them, over the layers of several networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from studies import correlations
from studies.correlations import FEWEST
from studies.summaries import Interval, percentiles

# A bootstrap of fewer pairs gives intervals of no width where the few happen to lie on a line.
_FEWEST_FOR_INTERVALS = 8


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Correlations over pairs of network and layer; None where they are not defined.

    Attributes:
        title: what with what.
        pairs: how many.
        pearson: of both divided by their largest within the network.
        pearson_interval: bootstrap over pairs, within networks.
        p_value: of Pearson's R, pairs taken as independent.
        pearson_raw: of the numbers as they are.
        spearman: of the divided ones.
        spearman_interval: likewise.
        within: mean over networks of Spearman's within each.
        within_interval: likewise.
        by_network: its parts; networks with fewer than three pairs are left out.
    """

    title: str
    pairs: int
    pearson: float | None
    pearson_interval: Interval | None
    p_value: float | None
    pearson_raw: float | None
    spearman: float | None
    spearman_interval: Interval | None
    within: float | None
    within_interval: Interval | None
    by_network: Mapping[str, float | None]


def correlate(
    title: str,
    networks: Sequence[str],
    found: Sequence[float],
    measure: Sequence[float],
    *,
    resamples: int,
    seed: int,
) -> Correlation | None:
    """The correlations of one measure; None for fewer than three pairs.

    Intervals are percentile bootstraps that draw pairs anew within each network: they cover which layers there are, not which
    networks, and are too narrow where sets share layers. Fewer than eight pairs have none.

    Args:
        title: what with what.
        networks: of each pair.
        found: by the attack.
        measure: in closed form.
        resamples: bootstrap resamples.
        seed: of the bootstrap.
    """
    if len(found) < FEWEST:
        return None
    names = np.array(networks)
    places = [np.flatnonzero(names == name) for name in dict.fromkeys(networks)]
    raw = np.array([found, measure], dtype=np.float64).T
    scaled = raw.copy()
    for mine in places:
        largest = np.abs(raw[mine]).max(axis=0)
        scaled[mine] = raw[mine] / np.where(largest > 0.0, largest, 1.0)
    random = np.random.default_rng(seed)
    draws = [[mine[random.integers(0, len(mine), len(mine))] for mine in places] for _ in range(resamples)]

    def interval(statistic: Callable[[list[NDArray[np.int64]]], float | None]) -> Interval | None:
        if len(found) < _FEWEST_FOR_INTERVALS:
            return None
        values = [value for draw in draws if (value := statistic(draw)) is not None]
        # Draws in which one side does not vary say nothing; where they are many, there is no interval.
        return percentiles(values, of=resamples)

    def pearson(draw: list[NDArray[np.int64]]) -> float | None:
        return correlations.pearson(scaled[np.concatenate(draw)])

    def spearman(draw: list[NDArray[np.int64]]) -> float | None:
        return correlations.spearman(scaled[np.concatenate(draw)])

    def within(draw: list[NDArray[np.int64]]) -> float | None:
        parts = [value for mine in draw if (value := correlations.spearman(raw[mine])) is not None]
        return float(np.mean(parts)) if parts else None

    value = pearson(places)
    return Correlation(
        title=title,
        pairs=len(found),
        pearson=value,
        pearson_interval=interval(pearson),
        p_value=None if value is None else float(stats.pearsonr(*scaled.T).pvalue),
        pearson_raw=correlations.pearson(raw),
        spearman=spearman(places),
        spearman_interval=interval(spearman),
        within=within(places),
        within_interval=interval(within),
        by_network={str(names[mine[0]]): correlations.spearman(raw[mine]) for mine in places if len(mine) >= FEWEST},
    )


__all__ = ["Correlation", "correlate"]

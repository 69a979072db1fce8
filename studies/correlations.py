"""Correlations over images, layers and models, of ranks too, each also of many draws at once for a bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from studies.summaries import Interval, percentiles

Floats = NDArray[np.float64]
FEWEST = 3
"""Rows below which there is no coefficient."""


def paired(*columns: Sequence[float | None] | Floats) -> Floats:
    """The rows in which every value is known and finite, (n, columns)."""
    rows = np.array(
        [[np.nan if value is None else value for value in row] for row in zip(*columns, strict=True)], dtype=float
    ).reshape(-1, len(columns))
    known: Floats = rows[np.isfinite(rows).all(axis=1)]
    return known


def pearson(rows: Floats) -> float | None:
    """Pearson's R of the first two columns (n, at least 2); None for fewer than three rows, or where one does not vary."""
    return _number(pearsons(rows[None])[0])


def spearman(rows: Floats) -> float | None:
    """Spearman's correlation of the first two columns; None for fewer than three rows, or where one does not vary."""
    return _number(spearmans(rows[None])[0])


def partial_spearman(rows: Floats) -> float | None:
    """Spearman's correlation of the first two columns with the ranks of the third taken out of both.

    (r₁₂ − r₁₃ r₂₃) / √((1 − r₁₃²)(1 − r₂₃²)) of rank correlations; None where it is not defined.
    """
    return _number(partial_spearmans(rows[None])[0])


def pearsons(draws: Floats) -> Floats:
    """`pearson` of each draw (r, n, at least 2), (r,); NaN where it is not defined."""
    return _correlated(draws)[:, 0, 1]


def spearmans(draws: Floats) -> Floats:
    """`spearman` of each draw (r, n, at least 2), (r,); NaN where it is not defined."""
    return _correlated(_ranks(draws))[:, 0, 1]


def partial_spearmans(draws: Floats) -> Floats:
    """`partial_spearman` of each draw (r, n, 3), (r,); NaN where it is not defined."""
    found = _correlated(_ranks(draws))
    both, first, second = found[:, 0, 1], found[:, 0, 2], found[:, 1, 2]
    left = (1 - first**2) * (1 - second**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        values: Floats = np.where(left > 1e-12, (both - first * second) / np.sqrt(left), np.nan)
    return values


def mean_interval(
    parts: Sequence[Floats], rule: Callable[[Floats], Floats], *, resamples: int, seed: int
) -> Interval | None:
    """Percentile bootstrap of 95 % over rows, within each part, of the mean of a coefficient; None without any.

    Args:
        parts: rows (n, columns) of each.
        rule: `pearsons`, `spearmans` or `partial_spearmans`.
        resamples: how many.
        seed: of the draws.
    """
    random = np.random.default_rng(seed)
    found = np.stack([
        rule(part[random.integers(0, len(part), (resamples, len(part)))])
        if len(part) >= FEWEST
        else np.full(resamples, np.nan)
        for part in parts
    ])  # fmt: skip
    known = np.isfinite(found)
    counts = known.sum(axis=0)
    means = np.where(known, found, 0.0).sum(axis=0)[counts > 0] / counts[counts > 0]
    return percentiles(means, of=resamples)


def _ranks(draws: Floats) -> Floats:
    ranks: Floats = stats.rankdata(draws, axis=1) if draws.shape[1] else draws
    return ranks


def _correlated(draws: Floats) -> Floats:
    """Correlations of the columns of each draw, (r, columns, columns); NaN where a column does not vary."""
    if draws.shape[1] < FEWEST:
        return np.full((len(draws), draws.shape[2], draws.shape[2]), np.nan)
    centered = draws - draws.mean(axis=1, keepdims=True)
    products = np.einsum("rni,rnj->rij", centered, centered)
    norms = np.sqrt(np.einsum("rii->ri", products))
    # What is left of a constant after its mean is taken off is round-off.
    norms = np.where(norms > 1e-12 * np.abs(draws).max(axis=1), norms, np.nan)
    found: Floats = products / (norms[:, :, None] * norms[:, None, :])
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


__all__ = [
    "FEWEST",
    "Floats",
    "mean_interval",
    "paired",
    "partial_spearman",
    "partial_spearmans",
    "pearson",
    "pearsons",
    "spearman",
    "spearmans",
]

"""Numbers over images, seeds and models: what they are together, how sure that is, and how it is printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gradleak.results import median as middle

Interval = tuple[float, float]


def known(values: Sequence[float | None]) -> list[float]:
    """Those that are numbers."""
    return [value for value in values if value is not None]


def median(values: Sequence[float | None]) -> float | None:
    """Median of those that are numbers; None without any."""
    return middle(known(values))


def geometric_mean(values: Sequence[float], *, seed: int, resamples: int = 2000) -> tuple[float, Interval]:
    """With its percentile bootstrap interval of 95 %."""
    logs = np.log(np.asarray(values))
    low, high = np.exp(resampled(logs, np.mean, seed=seed, resamples=resamples))
    return math.exp(float(logs.mean())), (float(low), float(high))


def resampled(
    values: Sequence[float] | NDArray[np.float64], rule: Callable[..., Any], *, seed: int, resamples: int = 2000
) -> Interval:
    """The percentile bootstrap interval of 95 % of a mean or median.

    Args:
        values: at least one number.
        rule: `numpy.mean` or `numpy.median`.
        seed: of the draws.
        resamples: how many.
    """
    numbers = np.asarray(values, dtype=float)
    places = np.random.default_rng(seed).integers(0, len(numbers), (resamples, len(numbers)))
    return _ends(rule(numbers[places], axis=1))


def percentiles(values: Sequence[float] | NDArray[np.float64], *, of: int) -> Interval | None:
    """Ends of the percentile bootstrap interval of 95 %; None where fewer than half of the draws have a value.

    Args:
        values: of the draws that have one.
        of: how many draws there were.
    """
    if not len(values) or len(values) < of / 2:
        return None
    return _ends(values)


def _ends(values: Sequence[float] | NDArray[np.float64]) -> Interval:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def student(values: Sequence[float] | NDArray[np.float64]) -> Interval | None:
    """Student's interval of 95 % for the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    reach = float(stats.t.isf(0.025, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - reach, float(np.mean(values)) + reach


def median_interval(values: Sequence[float]) -> Interval | None:
    """Interval that holds the median with 95 %: the innermost pair of order statistics; None for too few."""
    count = len(values)
    outside = int(stats.binom.ppf(0.025, count, 0.5)) - 1
    while outside >= 0 and stats.binom.cdf(outside, count, 0.5) > 0.025:
        outside -= 1
    return None if outside < 0 else (values[outside], values[count - 1 - outside])


def interval_between(low: float | None, high: float | None) -> Interval | None:
    """The interval of two ends, which are both known or none."""
    return None if low is None or high is None else (low, high)


def shown(value: float | None, form: str = ".3g") -> str:
    """A number as it is printed, "-" for none."""
    return "-" if value is None else format(value, form)


def shown_with(value: float | None, interval: Interval | None, form: str = ".3g") -> str:
    """A number with its interval as it is printed, alone where it has none, "-" for none."""
    if value is None or interval is None:
        return shown(value, form)
    return f"{value:{form}} ({interval[0]:{form}} to {interval[1]:{form}})"


__all__ = [
    "Interval",
    "geometric_mean",
    "interval_between",
    "known",
    "median",
    "median_interval",
    "percentiles",
    "resampled",
    "shown",
    "shown_with",
    "student",
]

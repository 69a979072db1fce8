"""Intervals of rates and of areas under ROC curves that keep their word near 0 and 1, where verdicts are made."""

from __future__ import annotations

import math

import scipy.stats

Interval = tuple[float, float]


def rate_interval(successes: float, trials: float, confidence: float = 0.95) -> Interval:
    """The Clopper–Pearson interval of a rate: of at least the stated coverage for every rate and number of trials.

    The ends solve P(X ≥ s) = α/2 and P(X ≤ s) = α/2 for binomial X, by quantiles of the beta distribution, which also
    takes successes that are not a whole number (ties credited by their share).

    **Assumptions**: independent trials of one success rate. Exact then, and wider than needed: it never falls short of
    the stated coverage. Credits between 0 and 1 spread less than a binomial count of the same mean.

    Args:
        successes: s, from 0 to `trials`.
        trials: n; 0 gives (0, 1).
        confidence: 1 − α.

    **Source**: Clopper and Pearson 1934.

    Examples:
        >>> low, high = rate_interval(0, 100)
        >>> round(low, 6), round(high, 6)
        (0.0, 0.036217)
    """
    half = (1.0 - confidence) / 2.0
    low = float(scipy.stats.beta.ppf(half, successes, trials - successes + 1.0)) if successes > 0 else 0.0
    high = float(scipy.stats.beta.isf(half, successes + 1.0, trials - successes)) if successes < trials else 1.0
    return low, high


def area_interval(area: float, variance: float, *, pairs: float, ceiling: float, confidence: float = 0.95) -> Interval:
    """The interval of an area under a ROC curve: Wilson's, for as many trials as the variance amounts to.

    A rate of n trials has the variance A(1 − A)/n; an area with variance V counts as one of n = A(1 − A)/V trials, and
    the ends are those of Wilson's interval at this n. It never leaves [0, 1] and does not shrink to a point where every
    pair stands in the right order. n is kept between `pairs`, which is its smallest value for any distribution (Birnbaum
    and Klose 1957: V ≤ A(1 − A)/min(n₊, n₋)), and `ceiling`, since a handful of pairs in the wrong order says
    little of their variance.

    **Assumptions**: independent trials; the variance is DeLong's or of its kind. Of the stated coverage for many
    trials, checked by simulation for few.

    Args:
        area: A, from 0 to 1.
        variance: V, an estimate.
        pairs: min(n₊, n₋), at least 1; of trials that share rows, as many as they count for.
        ceiling: the largest n.
        confidence: 1 − α.

    **Source**: Wilson 1927; DeLong et al. 1988.
    """
    spread = area * (1.0 - area)
    trials = float(pairs) if spread <= 0.0 else min(max(spread / max(variance, 1e-300), pairs), max(ceiling, pairs))
    square = float(scipy.stats.norm.isf((1.0 - confidence) / 2.0)) ** 2
    center = (area + square / (2.0 * trials)) / (1.0 + square / trials)
    reach = math.sqrt(square) / (1.0 + square / trials) * math.sqrt(spread / trials + square / (4.0 * trials**2))
    # Round-off would leave out an area of exactly 0 or 1.
    return max(0.0, min(center - reach, area)), min(1.0, max(center + reach, area))

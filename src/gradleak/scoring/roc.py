"""Shares and curves of a binary decision (ROC), with exact intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

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


Floats = NDArray[np.float64]
Truth = NDArray[np.int64]

# Beyond this many points a curve is thinned: enough for both a linear and a logarithmic axis.
POINTS = 80
# Log-odds that agree to so many decimal places tie: equal ones come out of sums in another order apart by round-off.
DIGITS = 9


def class_scores(log_posteriors: Floats) -> Floats:
    """The logarithm of the odds of every class against all others, (n, m), for log-posteriors (n, m).

    They order trials as the posterior does, and still tell 1 − 1e-30 from 1 − 1e-40, which the posterior and its
    logarithm do not: with many rounds most posteriors end there. Normalization of the log-posteriors cancels.

    Args:
        log_posteriors: (n, m), m ≥ 2; −∞ is allowed where another class of the row is finite.
    """
    classes = log_posteriors.shape[1]
    odds = np.empty_like(log_posteriors)
    for place in range(classes):
        rest = np.delete(log_posteriors, place, axis=1)
        top = rest.max(axis=1)
        # A class against rivals that are all impossible has infinite odds; no difference of infinities is taken.
        sound = np.isfinite(top)
        odds[~sound, place] = np.inf
        others = top[sound] + np.log(np.exp(rest[sound] - top[sound, None]).sum(axis=1))
        odds[sound, place] = log_posteriors[sound, place] - others
    return np.round(odds, DIGITS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Area:
    """The area under the ROC curve of one class against the rest.

    Attributes:
        value: share of pairs in the right order, ties by half.
        influence: of every trial on it, (n,): its variance over n estimates that of `value`.
    """

    value: float
    influence: Floats


def area(scores: Floats, positive: NDArray[np.bool_]) -> Area:
    """The AUROC of scores (n,) for positive trials (n,), with DeLong's structural components; both kinds must occur.

    Args:
        scores: higher for trials that look positive; infinities are allowed.
        positive: which trials are.

    **Cost**: O(n log n). **Source**: DeLong et al. 1988, by the ranks of Sun and Xu 2014.
    """
    ones, zeros = int(positive.sum()), int((~positive).sum())
    ranks = scipy.stats.rankdata(scores)
    right = np.empty(len(scores))
    right[positive] = (ranks[positive] - scipy.stats.rankdata(scores[positive])) / zeros
    right[~positive] = 1.0 - (ranks[~positive] - scipy.stats.rankdata(scores[~positive])) / ones
    value = float(right[positive].mean())
    weights = np.where(positive, len(scores) / ones, len(scores) / zeros)
    return Area(value=value, influence=(right - value) * weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """A ROC curve: cumulated counts at every threshold, from the strictest to the loosest, (0, 0) first.

    Attributes:
        false: negatives at or above the threshold.
        true: positives at or above it.
    """

    false: Floats
    true: Floats

    @property
    def negatives(self) -> int:
        """Number of negatives."""
        return int(self.false[-1])

    @property
    def positives(self) -> int:
        """Number of positives."""
        return int(self.true[-1])

    def rate(self, false: float) -> float:
        """The largest share of positives found with at most so many false alarms, a real number.

        Trials with equal scores are accepted by lot, so that the curve is a straight line across them; nothing is read
        between thresholds otherwise.
        """
        last = int(np.searchsorted(self.false, false + 1e-9, side="right")) - 1
        found = float(self.true[last])
        if last + 1 < len(self.false):
            step = float(self.false[last + 1] - self.false[last])
            found += max(false - float(self.false[last]), 0.0) / step * float(self.true[last + 1] - self.true[last])
        return found / self.positives

    def rate_interval(
        self, share: float, confidence: float, *, positives: float | None = None, negatives: float | None = None
    ) -> Interval:
        """An interval of the share found at a false-positive rate, over the draw of positives and of negatives.

        How many negatives lie above the true threshold is binomial; at both ends of its central range the curve says how
        many positives would be found. That and the Clopper–Pearson interval of the share found are joined as independent
        errors are, each side's distances by the root of their squares (MOVER).

        **Assumptions**: of the stated coverage by simulation, from five expected false positives on.

        Args:
            share: the false-positive rate.
            confidence: 1 − α.
            positives: as how many independent ones they count; None for all.
            negatives: likewise.

        **Source**: Zou and Donner 2008 (MOVER).
        """
        half = (1.0 - confidence) / 2.0
        amount = self.negatives if negatives is None else max(math.floor(negatives), 1)
        law, each = scipy.stats.binom(amount, share), self.negatives / amount
        least, most = int(law.ppf(half)), int(law.isf(half))
        found = self.rate(share * self.negatives)
        # Before its k-th false alarm the curve has found at least what it had after the one before.
        strict = self.rate((least - 1) * each) if least > 0 else 0.0
        loose = self.rate(min(most * each, self.negatives))
        trials = float(self.positives if positives is None else positives)
        low, high = rate_interval(found * trials, trials, confidence)
        return (
            max(0.0, found - math.hypot(found - min(strict, found), found - low)),
            min(1.0, found + math.hypot(max(loose, found) - found, high - found)),
        )

    def points(self, most: int = POINTS) -> tuple[list[float], list[float]]:
        """False- and true-positive rates of its corners, thinned evenly on a linear and on a logarithmic axis.

        Args:
            most: about how many points may stay.
        """
        false, true = self.false / self.negatives, self.true / self.positives
        chosen = np.arange(len(false))
        if len(false) > most:
            third = max(most // 3, 2)
            wanted = np.concatenate([np.linspace(0, 1, third), np.geomspace(1 / self.negatives, 1, third)])
            by_false = np.searchsorted(false, wanted + 1e-12, side="right") - 1
            by_true = np.searchsorted(true, np.linspace(0, 1, third))
            chosen = np.unique(np.concatenate([[0, len(false) - 1], by_false, np.minimum(by_true, len(true) - 1)]))
        return [float(rate) for rate in false[chosen]], [float(rate) for rate in true[chosen]]


def curve(scores: Floats, positive: NDArray[np.bool_]) -> Curve:
    """The ROC curve of scores (n,) for positive trials (n,); both kinds must occur.

    Args:
        scores: higher for trials that look positive.
        positive: which trials are.
    """
    order = np.argsort(-scores, kind="stable")
    sorted_scores, hits = scores[order], positive[order]
    # A threshold below each run of equal scores; inf - inf is avoided by comparing.
    ends = np.append(np.flatnonzero(sorted_scores[1:] != sorted_scores[:-1]), len(scores) - 1)
    true = np.cumsum(hits)[ends]
    false = ends + 1 - true
    # Corners only: where neither count alone goes on.
    steps = np.stack([np.diff(false, prepend=0), np.diff(true, prepend=0)])
    inner = np.flatnonzero(steps[0, :-1] * steps[1, 1:] == steps[1, :-1] * steps[0, 1:])
    kept = np.setdiff1d(np.arange(len(ends)), inner)
    return Curve(
        false=np.concatenate([[0.0], false[kept].astype(float)]), true=np.concatenate([[0.0], true[kept].astype(float)])
    )


def enough_negatives(negatives: int, share: float, least: float) -> bool:
    """True if so many negatives leave at least `least` of them above the threshold of a false-positive rate."""
    return negatives * share >= least * (1 - 1e-9) and math.isfinite(share)

"""Error rates at thresholds: counts, their exact bounds, and the epsilon that they certify."""

from __future__ import annotations

import math

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from gradleak.privacy.lower_bounds.trials import Values

# Neighboring candidates differ by this factor in how many trials lie beyond them.
_SPACING = 1.25


def upper_rate(successes: ArrayLike, trials: ArrayLike, error: float) -> Values:
    """The largest rate p with P(X ≤ successes) ≥ error, X binomial: Clopper and Pearson's one-sided upper bound.

    Args:
        successes: any shape, from 0 to `trials`; numbers that are not whole are taken by the beta distribution.
        trials: n, of a shape that goes with it.
        error: α, of this side.
    """
    count, trials = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    inside = count < trials
    return np.where(inside, scipy.special.betainccinv(count + 1.0, np.where(inside, trials - count, 1.0), error), 1.0)


def lower_rate(successes: ArrayLike, trials: ArrayLike, error: float) -> Values:
    """The smallest rate p with P(X ≥ successes) ≥ error, X binomial: Clopper and Pearson's one-sided lower bound.

    Args:
        successes: any shape, from 0 to `trials`; numbers that are not whole are taken by the beta distribution.
        trials: n, of a shape that goes with it.
        error: α, of this side.
    """
    count, trials = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    some = count > 0
    return np.where(some, scipy.special.betaincinv(np.where(some, count, 1.0), trials - count + 1.0, error), 0.0)


def epsilon_of_rates(false_positive: ArrayLike, true_positive: ArrayLike, delta: float) -> Values:
    """ε that a test with these rates shows: max(ln((TPR − δ)/FPR), ln((1 − FPR − δ)/(1 − TPR))).

    The first is the condition of (ε, δ) privacy for the event that the test rejects, the second, with the hypotheses in
    each other's place, for its complement. −∞ where neither numerator is positive, ∞ where a denominator is 0 and its
    numerator is not.

    Args:
        false_positive: FPR, any shape; from above for a lower bound.
        true_positive: TPR, of the same shape; from below for a lower bound.
        delta: δ.

    **Source**: Li et al. 2024, section 7, with FNR = 1 − TPR.
    """
    fpr, tpr = np.asarray(false_positive, dtype=np.float64), np.asarray(true_positive, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        rejects = np.log(np.maximum(tpr - delta, 0.0)) - np.log(fpr)
        accepts = np.log(np.maximum(1.0 - fpr - delta, 0.0)) - np.log1p(-tpr)
    return np.fmax(np.where(tpr > delta, rejects, -np.inf), np.where(1.0 - fpr > delta, accepts, -np.inf))


def certified_epsilon(
    false_positives: ArrayLike, true_positives: ArrayLike, trials: tuple[int, int], *, delta: float, error: float
) -> Values:
    """ε that these counts certify at one threshold with probability 1 − error: each rate is bounded at error/2.

    One pair of bounds serves both forms of `epsilon_of_rates`, so that their maximum costs nothing.

    Args:
        false_positives: trials of H0 that the test rejects, any shape.
        true_positives: trials of H1 that it rejects, of the same shape.
        trials: of H0 and of H1.
        delta: δ.
        error: α.
    """
    high = upper_rate(false_positives, trials[0], error / 2.0)
    low = lower_rate(true_positives, trials[1], error / 2.0)
    return epsilon_of_rates(high, low, delta)


def two_sided_interval(
    false_positives: int, true_positives: int, trials: tuple[int, int], *, delta: float, error: float
) -> tuple[float, float]:
    """The interval of `epsilon_of_rates` at one threshold, both rates by Clopper and Pearson; the ends at least 0.

    Args:
        false_positives: trials of H0 that the test rejects.
        true_positives: trials of H1 that it rejects.
        trials: of H0 and of H1.
        delta: δ.
        error: α, for both ends and both rates together.
    """
    low = certified_epsilon(false_positives, true_positives, trials, delta=delta, error=error / 2.0)
    least = lower_rate(false_positives, trials[0], error / 4.0)
    most = upper_rate(true_positives, trials[1], error / 4.0)
    high = epsilon_of_rates(least, most, delta)
    return max(0.0, float(low)), max(0.0, float(high))


def counts_above(ordered: Values, thresholds: Values) -> Values:
    """Number of values of a sample above each threshold.

    Args:
        ordered: shape (n,), ascending.
        thresholds: any shape.
    """
    return (len(ordered) - np.searchsorted(ordered, thresholds, side="right")).astype(np.float64)


def geometric_ranks(count: int) -> list[int]:
    """Whole numbers from 1 to `count`, each about 1.25 times the one before.

    Args:
        count: at least 1.
    """
    ranks, rank = [], 1
    while rank <= count:
        ranks.append(rank)
        rank = max(rank + 1, math.ceil(rank * _SPACING))
    return ranks


def candidate_thresholds(null: Values, alternative: Values) -> Values:
    """Thresholds at geometric ranks from both ends of both samples, and first the middle of the gap where they part.

    Args:
        null: shape (n0,), ascending.
        alternative: shape (n1,), ascending.
    """
    middle = null[-1] / 2.0 + alternative[0] / 2.0
    chosen = [np.array([middle])]
    for ordered in (null, alternative):
        ranks = np.array(geometric_ranks(len(ordered)))
        chosen += [ordered[-ranks], ordered[ranks - 1]]
    return np.concatenate(chosen)

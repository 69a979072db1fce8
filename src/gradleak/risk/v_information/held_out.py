"""Held-out log-likelihood: how much better a fitted attacker is than the shares of the values alone."""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
import scipy.special
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

LARGEST_EXPONENT = 4.0


def folds_of(labels: Places, clusters: Places, folds: int, seed: int) -> list[Places]:
    """The held-out rows of every fold; each holds about the same shares of the values, and no cluster is cut.

    Args:
        labels: (n,) from 0.
        clusters: (n,) what belongs together.
        folds: at least 2, at most the clusters of the rarest value.
        seed: of the draw.

    **Source**: scikit-learn's `StratifiedKFold`, or `StratifiedGroupKFold` where rows belong together.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    rows = np.zeros((len(labels), 1))
    if len(np.unique(clusters)) == len(clusters):
        split = StratifiedKFold(n_splits=folds, shuffle=True, random_state=seed).split(rows, labels)
    else:
        split = StratifiedGroupKFold(n_splits=folds, shuffle=True, random_state=seed).split(rows, labels, clusters)
    return [np.asarray(held, dtype=np.int64) for _, held in split]


def exponent_of(log_posteriors: Floats, labels: Places, law: Floats) -> float:
    """The exponent t in [0, 4] with the largest mean gain on rows that the model did not see, labels smoothed by a few rows.

    With t = 0 the attacker ignores the gradient, which definition 1 of Mo et al. asks of a family; an overconfident model
    then costs it nothing.

    **Smoothing**: where all of the few rows that judge are told rightly, the likelihood grows with t without end, and one row
    told wrongly among those that count later costs more than all others gain. So every label is taken to be drawn anew from
    the law with probability m/(m + n(1 − Σ P²)), which makes one of the rows of every value wrong. For two values in equal
    shares these are Platt's targets (N + 1)/(N + 2). What is told without a mistake thereby loses about m/n nats.

    Args:
        log_posteriors: (n, m).
        labels: (n,).
        law: P(a), (m,), positive.

    **Source**: Platt 1999, "Probabilistic outputs for support vector machines", section 2.2; more than two values are ours.
    """
    count, values = log_posteriors.shape
    share = values / (values + count * (1.0 - float(np.square(law).sum())))
    targets = share * law + (1.0 - share) * np.eye(values)[labels]

    def loss(exponent: float) -> float:
        gains = [gains_of(log_posteriors, np.full(count, value), law, exponent) for value in range(values)]
        return -float((targets * np.stack(gains, axis=1)).sum(axis=1).mean())

    found = scipy.optimize.minimize_scalar(loss, bounds=(0.0, LARGEST_EXPONENT), method="bounded")
    # The mean is concave in the exponent, and 0 at 0, which a bounded search never quite reaches.
    return float(found.x) if found.fun < 0.0 else 0.0


def gains_of(log_posteriors: Floats, labels: Places, law: Floats, exponent: float) -> Floats:
    """Log `f[g](a)` − log `f[∅](a)` of every row, in nats, for f[g] ∝ P(a) (q(a|g)/P(a))^t and f[∅] = P.

    Args:
        log_posteriors: log q, (n, m).
        labels: (n,).
        law: P(a), (m,), positive.
        exponent: t.
    """
    if exponent == 0.0:
        return np.zeros(len(labels))
    tempered = exponent * (log_posteriors - np.log(law))
    norm = scipy.special.logsumexp(tempered + np.log(law), axis=1)
    found: Floats = tempered[np.arange(len(labels)), labels] - norm
    return found


def cluster_interval(
    values: Floats, clusters: Places, *, confidence: float, resamples: int, folds: int, seed: int
) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean over rows, with whole clusters drawn anew, and stretched for the folds.

    Gains of one fold are independent given its model; those of two folds are not, since each was judged by a model that
    learned from the other. The distances of the ends from the mean take the factor √(1 + K/(K − 1)) for K folds.

    **Source**: Nadeau and Bengio 2003, section 3 (the corrected variance), for a ratio of 1/(K − 1) of rows that judge to
    rows that teach.
    """
    names, places = np.unique(clusters, return_inverse=True)
    sums, counts = np.bincount(places, weights=values), np.bincount(places).astype(np.float64)
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    for place in range(resamples):
        drawn = random.integers(0, len(names), len(names))
        means[place] = sums[drawn].sum() / counts[drawn].sum()
    half = (1.0 - confidence) / 2.0
    low, high = (float(end) for end in np.quantile(means, [half, 1.0 - half]))
    mean, factor = float(values.mean()), widening(folds)
    return mean + factor * (min(low, mean) - mean), mean + factor * (max(high, mean) - mean)


def widening(folds: int) -> float:
    """√(1 + K/(K − 1)): by how much an interval over the rows of K folds is stretched (see `cluster_interval`)."""
    return math.sqrt(1.0 + folds / (folds - 1.0))

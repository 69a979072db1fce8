"""Worth of a trained model on rows it has not seen: one number over several seeds, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy
from numpy.typing import NDArray

from gradleak.results import InputError

Floats = NDArray[np.float64]
LEVEL = 0.05
RESAMPLES = 2000


class Metric(StrEnum):
    """Metric of a model on held-out rows; higher is better."""

    ACCURACY = "accuracy"
    AUROC = "auroc"
    R2 = "r2"


@dataclass(frozen=True, kw_only=True)
class Worth:
    """A metric over seeds.

    Attributes:
        value: mean over the seeds.
        interval: of 95 %, over test rows, and over seeds where there are two or more.
        per_seed: the metric of every seed.
        blind: what the best answer that ignores the input reaches: the share of the largest class, 0.5, or 0.
        rows: number of test rows.
    """

    value: float
    interval: tuple[float, float]
    per_seed: tuple[float, ...]
    blind: float
    rows: int


def worth(metric: Metric, outputs: Sequence[Floats], targets: Floats, *, seed: int = 0) -> Worth:
    """The mean of a metric over models that were trained with different seeds, with a 95 % interval.

    The interval joins two sources: the choice of test rows (Wilson's for accuracies; DeLong's variance on the logit scale
    for AUROC; a percentile bootstrap over rows for R²), and the training (Student's t over the seeds, of the two bounded
    metrics on the logit scale). Limits are joined as
    those of a sum of independent errors (MOVER): each side's distances by the root of their squares. All models are judged
    on the same rows, whose interval is therefore not shortened by more seeds. With one seed it covers the rows alone.

    **Assumptions**: test rows independent of each other and of the training. The spread over seeds holds some of the
    sampling of rows, so that the interval is a little too wide.

    Args:
        metric: which one.
        outputs: of every seed, (rows, columns): logits, one column for two classes or a regression.
        targets: class indices (rows,), or numbers (rows,) or (rows, columns) for R².
        seed: of the bootstrap.

    Raises:
        InputError: without a model, for rows that do not agree, or targets of one class or one value, where AUROC and
            R² are not defined.

    **Source**: Wilson 1927; DeLong et al. 1988; Zou and Donner 2008 (MOVER).
    """
    if not outputs or any(len(given) != len(targets) for given in outputs):
        raise InputError(
            f"worth: expected outputs of at least one seed for {len(targets)} rows, got {[len(given) for given in outputs]}"
        )
    judge = {Metric.ACCURACY: _accuracy, Metric.AUROC: _auroc, Metric.R2: _r2}[metric]
    values, (low, high), blind = judge(outputs, targets, seed)
    mean = float(np.mean(values))
    bounded = metric is not Metric.R2
    down, up = _over_seeds(values, bounded=bounded)
    return Worth(
        value=mean,
        interval=(
            max(0.0 if bounded else -math.inf, mean - math.hypot(mean - low, mean - down)),
            min(1.0, mean + math.hypot(high - mean, up - mean)),
        ),
        per_seed=tuple(float(value) for value in values),
        blind=blind,
        rows=len(targets),
    )


def _over_seeds(values: Floats, *, bounded: bool) -> tuple[float, float]:
    """Limits of the mean over all seeds that there could be; the mean itself twice for one seed."""
    mean = float(np.mean(values))
    if len(values) == 1 or not np.ptp(values):
        return mean, mean
    reach = float(scipy.stats.t.ppf(1 - LEVEL / 2, len(values) - 1) * np.std(values, ddof=1)) / math.sqrt(len(values))
    if not bounded or not 0 < mean < 1:
        return mean - reach, mean + reach
    # Values near a limit of 0 or 1 are skewed away from it.
    reach /= mean * (1 - mean)
    middle = scipy.special.logit(mean)
    return float(scipy.special.expit(middle - reach)), float(scipy.special.expit(middle + reach))


def constant_answers(metric: Metric, outputs: Floats) -> bool:
    """True if a model gives one answer for all rows: one class, or for AUROC and R² one number up to round-off."""
    if metric is Metric.ACCURACY:
        chosen = classes(outputs)
        return bool((chosen == chosen[0]).all())
    answers = scores(outputs) if metric is Metric.AUROC else outputs
    return same_for_all(answers.reshape(len(answers), -1))


def same_for_all(outputs: Floats) -> bool:
    """True if the rows of (rows, columns) are equal up to round-off."""
    reach = 1e-9 * max(float(np.abs(outputs).max()), 1e-30)
    return bool((np.ptp(outputs, axis=0) <= reach).all())


def classes(outputs: Floats) -> NDArray[np.int64]:
    """The class with the largest logit; of one column, whether it is above 0."""
    found = outputs.argmax(axis=1) if outputs.shape[1] > 1 else outputs[:, 0] > 0
    return np.asarray(found, dtype=np.int64)


def scores(outputs: Floats) -> Floats:
    """The logit of the second class over the first."""
    found: Floats = outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs[:, 0]
    return found


def _accuracy(outputs: Sequence[Floats], targets: Floats, seed: int) -> tuple[Floats, tuple[float, float], float]:
    right = np.stack([classes(given) == targets for given in outputs])
    rows = len(targets)
    hits = float(right.mean()) * rows
    # Wilson's interval for whole numbers; a mean over seeds lies between two of them.
    low = scipy.stats.binomtest(math.floor(hits + 1e-9), rows).proportion_ci(1 - LEVEL, "wilson").low
    high = scipy.stats.binomtest(math.ceil(hits - 1e-9), rows).proportion_ci(1 - LEVEL, "wilson").high
    _, counts = np.unique(targets, return_counts=True)
    return right.mean(axis=1), (float(low), float(high)), float(counts.max() / rows)


def _auroc(outputs: Sequence[Floats], targets: Floats, seed: int) -> tuple[Floats, tuple[float, float], float]:
    positive = targets == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise InputError("auroc: expected test rows of both classes, got one")
    above, below, values = np.zeros(ones), np.zeros(zeros), []
    for given in outputs:
        score = scores(given)
        order = scipy.stats.rankdata(score)
        # The share of the other class that a row is placed right of, ties by half.
        right = (order[positive] - scipy.stats.rankdata(score[positive])) / zeros
        wrong = 1 - (order[~positive] - scipy.stats.rankdata(score[~positive])) / ones
        above, below = above + right / len(outputs), below + wrong / len(outputs)
        values.append(float(right.mean()))
    mean = float(above.mean())
    variance = (above.var(ddof=1) / ones if ones > 1 else 0.25) + (below.var(ddof=1) / zeros if zeros > 1 else 0.25)
    return np.array(values), _auroc_limits(mean, float(variance), min(ones, zeros)), 0.5


def _auroc_limits(mean: float, variance: float, pairs: int) -> tuple[float, float]:
    if 0 < mean < 1 and variance > 0:
        reach = float(scipy.stats.norm.ppf(1 - LEVEL / 2)) * math.sqrt(variance) / (mean * (1 - mean))
        middle = scipy.special.logit(mean)
        low, high = float(scipy.special.expit(middle - reach)), float(scipy.special.expit(middle + reach))
    else:
        low, high = mean, mean
    # Disjoint pairs are independent: all of them right (or wrong) is unlikely beyond this.
    edge = (LEVEL / 2) ** (1 / pairs)
    return (min(low, edge) if mean == 1 else low, max(high, 1 - edge) if mean == 0 else high)


def _r2(outputs: Sequence[Floats], targets: Floats, seed: int) -> tuple[Floats, tuple[float, float], float]:
    truth = targets.reshape(len(targets), -1)
    if not (np.ptp(truth, axis=0) > 0).any():
        raise InputError("r2: expected test targets that differ, got one value")
    errors = np.stack([np.square(given.reshape(truth.shape) - truth).sum(axis=1) for given in outputs])

    def explained(places: NDArray[np.int64]) -> Floats:
        chosen = truth[places]
        total = np.square(chosen - chosen.mean(axis=0)).sum()
        found: Floats = 1 - errors[:, places].sum(axis=1) / max(total, np.finfo(float).tiny)
        return found

    every = np.arange(len(truth))
    values = explained(every)
    random = np.random.default_rng(seed)
    draws = [float(explained(random.integers(0, len(truth), len(truth))).mean()) for _ in range(RESAMPLES)]
    low, high = np.percentile(draws, [100 * LEVEL / 2, 100 * (1 - LEVEL / 2)])
    return values, (min(float(low), float(values.mean())), max(float(high), float(values.mean()))), 0.0

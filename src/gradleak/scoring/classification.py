"""An adversary's posteriors against the truth: success rate, AUROC, advantage, and what it finds without false alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, check_share
from gradleak.scoring.clusters import LEAST_ERRORS, Clusters
from gradleak.scoring.roc import (
    Curve,
    Floats,
    Interval,
    Truth,
    area,
    area_interval,
    class_scores,
    curve,
    enough_negatives,
    rate_interval,
)

SUCCESS, AUROC, ADVANTAGE, TPR = "attack_success_rate", "auroc", "advantage", "tpr_at_fpr"
SCORE_NAMES = (SUCCESS, AUROC, ADVANTAGE, TPR)

# A rate of false positives counts as resolved where at least so many negatives are expected above its threshold.
LEAST_FALSE_POSITIVES = 5.0
# From this share of trials on users count as told, each as one piece of evidence at least.
NEARLY_ALL = 0.9
# Log-posteriors of one trial that lie as close as this tie: sums over rounds end there by round-off.
TIE = 1e-9


def score_posteriors(
    log_posteriors: ArrayLike,
    truth: ArrayLike,
    *,
    blind: float,
    rows: ArrayLike | None = None,
    of_users: bool = False,
    false_positive_rates: Sequence[float] = (0.01,),
    least_false_positives: float = LEAST_FALSE_POSITIVES,
    confidence: float = 0.95,
) -> list[Score]:
    """Scores of an adversary's guesses of a variable with m values: four, each with its interval.

    - `attack_success_rate`: p, the share of trials whose most probable value is the true one; values that tie share the
      credit, as if the guess were drawn among them.
    - `auroc`: the mean over the values that occur of the area under the ROC curve of that value against all others.
    - `advantage`: max(p − p*, 0)/(1 − p*) over the best blind guess p*. `details["unclipped"]` is (p − p*)/(1 − p*), and
      `details["unclipped_interval"]` its interval; `leaks` reads the verdict from there.
    - `tpr_at_fpr`, one for each false-positive rate asked: for two values the share of trials with value 1 that are
      found when this share of the others is taken for one; for more, the mean over the values that occur. The threshold
      is that of the trials themselves. Equal scores are accepted by lot; nothing else is interpolated. Where fewer than
      `least_false_positives` trials of a kind are expected above the threshold the outcome is `not_resolvable`.

    The trials of a game draw batches from the same few private rows, and what these happen to be like does not average out
    over trials. With `rows` every interval covers the draw of the rows and of the trials: it is the wider one of the
    interval over trials and one of the same form for as many independent trials as the variance of both amounts to (see
    `Clusters`). `details["trial_interval"]` is that of the trials alone, with these rows given, and of the advantage
    `details["unclipped_trial_interval"]`. Without `rows` there is no other. `details["covers"]` says which it is.

    **Assumptions**: trials are independent draws given the rows, rows are independent draws of each value, and p* is known,
    not estimated. The training and the fitted adversary are given; `pooled` adds other seeds.

    Args:
        log_posteriors: (n, m) logarithms of posteriors, prior included, up to a constant of the row.
        truth: (n,) whole numbers from 0 to m − 1.
        blind: p*, in (0, 1]: the success rate of the best guess that ignores the update, max P(a).
        rows: (n, k) whole numbers: which rows (or users) every trial was made of; None for trials that share none, or
            for a statement on these rows alone.
        of_users: whether `rows` are users, of whom every trial takes other rows.
        false_positive_rates: where true-positive rates are asked for, each between 0 and 1.
        least_false_positives: how many expected false positives resolve a rate.
        confidence: of the intervals.

    Returns:
        Scores with evidence "attack": success rate (`details["confusion"]`: (m, m) counts, truth by guess), AUROC
        (`details["roc"]`: points of the curve of value 1, or with m > 2 of the mean over values), advantage, and one TPR
        a rate. Without a number the outcome is `not_resolvable` (no trials, one value only, too few) or `not_finite`;
        with p* = 1 the advantage is `not_informative`.

    Raises:
        InputError: for sizes that do not fit, a truth out of range, or a rate out of range.

    **Cost**: O(m n log n).

    **Source**: Li et al. 2024, section 5.1.2. Deviations: ties are credited by their share; p* is a maximum where the
    paper writes arg max; intervals are ours (Clopper–Pearson for rates; DeLong's variance in Wilson's interval for
    areas; Hoeffding's for rows).

    Examples:
        >>> posteriors = np.log([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
        >>> [score.value for score in score_posteriors(posteriors, [0, 1, 1, 1], blind=0.75)][:3]
        [0.75, 1.0, 0.0]
    """
    logs, true = _checked(log_posteriors, truth)
    if not 0.0 < blind <= 1.0:
        raise InputError(f"blind: expected the success rate of a guess, in (0, 1], got {blind!r}")
    check_share("confidence", confidence)
    for rate in false_positive_rates:
        check_share("false_positive_rates", rate)
    obstacle = _obstacle(logs)
    if obstacle:
        names = [*SCORE_NAMES[:3], *[TPR] * len(false_positive_rates)]
        return [_without(name, obstacle, len(true)) for name in names]
    clusters = None if rows is None else Clusters.of(rows, true, of_users=of_users)
    success = _success(logs, true, clusters, confidence)
    return [
        success,
        _auroc(logs, true, clusters, confidence),
        _advantage(success, true, blind, confidence),
        *(_found(logs, true, clusters, rate, least_false_positives, confidence) for rate in false_positive_rates),
    ]


def leaks(score: Score | Mapping[str, Any]) -> bool:
    """True if an advantage is more than chance: its interval, not clipped at 0, lies above 0.

    It is that over rows and trials where the score knows the rows, with the seeds that were played given.

    Args:
        score: an advantage of `score_posteriors` or `pooled`, or its line in a record.

    Raises:
        InputError: for another score.
    """
    name, value, details = (
        (score.name, score.value, score.details)
        if isinstance(score, Score)
        else (score["name"], score["value"], score.get("details") or {})
    )
    if name != ADVANTAGE:
        raise InputError(f"leaks: expected the score {ADVANTAGE}, got {name}")
    interval = details.get("unclipped_interval")
    return value is not None and interval is not None and float(interval[0]) > 0.0


def confusion(log_posteriors: ArrayLike, truth: ArrayLike) -> Floats:
    """Confusion matrix (m, m), truth by guess; a trial with a tie is split among its guesses.

    Args:
        log_posteriors: (n, m).
        truth: (n,).
    """
    logs, true = _checked(log_posteriors, truth)
    return _counts(_credit(logs), true)


def _checked(log_posteriors: ArrayLike, truth: ArrayLike) -> tuple[Floats, Truth]:
    logs, given = np.asarray(log_posteriors, dtype=np.float64), np.asarray(truth)
    if logs.ndim != 2 or logs.shape[1] < 2:
        raise InputError(f"log_posteriors: expected (n, m) with m of at least 2, got {logs.shape}")
    if given.shape != logs.shape[:1] or (not np.issubdtype(given.dtype, np.integer) and given.size):
        raise InputError(f"truth: expected {logs.shape[0]} whole numbers, got {given.shape} {given.dtype}")
    true = given.astype(np.int64)
    if true.size and not 0 <= int(true.min()) <= int(true.max()) < logs.shape[1]:
        raise InputError(
            f"truth: expected 0 to {logs.shape[1] - 1}, the columns of log_posteriors, got {true.min()} to {true.max()}"
        )
    return logs, true


def _obstacle(logs: Floats) -> tuple[Outcome, str] | None:
    if not len(logs):
        return Outcome.NOT_RESOLVABLE, "there is no trial"
    # −∞ says "impossible" and is a posterior; a row without a finite entry is none.
    bad = int((np.isnan(logs).any(axis=1) | np.isposinf(logs).any(axis=1) | np.isneginf(logs).all(axis=1)).sum())
    if bad:
        return Outcome.NOT_FINITE, f"{bad} of {len(logs)} trials have no finite posterior"
    return None


def _credit(logs: Floats) -> Floats:
    """Guessed values, (n, m): 1 for the most probable one, or a share for each of those that tie."""
    best = logs >= logs.max(axis=1, keepdims=True) - TIE
    shares: Floats = best / best.sum(axis=1, keepdims=True)
    return shares


def _counts(credit: Floats, true: Truth) -> Floats:
    table = np.zeros((credit.shape[1], credit.shape[1]))
    np.add.at(table, true, credit)
    return table


def _success(logs: Floats, true: Truth, clusters: Clusters | None, confidence: float) -> Score:
    credit = _credit(logs)
    right = credit[np.arange(len(true)), true]
    ties = int((credit.max(axis=1) < 1.0).sum())
    trial, full = _rate_intervals(right, clusters, confidence)
    return _score(
        SUCCESS,
        float(right.sum()) / len(true),
        full,
        len(true),
        note=f"{ties} trials tie and share their credit" if ties else "",
        details={
            "confusion": _counts(credit, true).tolist(),
            "ties": ties,
            **_covered(trial, clusters),
            "confidence": confidence,
        },
    )


def _rate_intervals(right: Floats, clusters: Clusters | None, confidence: float) -> tuple[Interval, Interval]:
    """Intervals of a rate: over trials, and over rows and trials."""
    trials, hits = len(right), float(right.sum())
    trial = rate_interval(hits, trials, confidence)
    if clusters is None:
        return trial, trial
    amount = _effective(right, np.ones(trials, dtype=bool), clusters, confidence)
    return trial, _wider(trial, rate_interval(hits / trials * amount, amount, confidence))


def _effective(hits: Floats, chosen: NDArray[np.bool_], clusters: Clusters, confidence: float) -> float:
    """As how many independent trials the chosen ones count, for the rate of hits among them."""
    trials, right = int(chosen.sum()), float(hits[chosen].sum())
    if min(right, trials - right) < LEAST_ERRORS:
        return clusters.independent(chosen, told=True)
    rate = right / trials
    influence = np.where(chosen, (hits - rate) * len(hits) / trials, 0.0)
    spread = rate * (1.0 - rate)
    amount = spread / (spread / trials + clusters.variance(influence, confidence=confidence))
    # A handful of users gives a variance that is nearly all its own error.
    return max(amount, clusters.independent(chosen, told=True)) if clusters.of_users and rate > NEARLY_ALL else amount


def _wider(one: Interval, other: Interval) -> Interval:
    return min(one[0], other[0]), max(one[1], other[1])


def _covered(trial: Interval, clusters: Clusters | None) -> dict[str, Any]:
    covers = "trials, given their rows" if clusters is None else "rows and trials"
    return {"trial_interval": list(trial), "covers": covers}


def _auroc(logs: Floats, true: Truth, clusters: Clusters | None, confidence: float) -> Score:
    classes, absent = _present(logs, true)
    if len(classes) < 2:
        return _without(AUROC, _one_class(classes), len(true))
    scores = class_scores(logs)
    areas = {place: area(scores[:, place], true == place) for place in classes}
    value = math.fsum(found.value for found in areas.values()) / len(areas)
    trial, full = _area_intervals(value, [found.influence for found in areas.values()], true, clusters, confidence)
    details: dict[str, Any] = {
        "classes": classes,
        "per_class": [areas[place].value for place in classes],
        "roc": _roc({place: curve(scores[:, place], true == place) for place in _shown(logs, classes)}),
        **_covered(trial, clusters),
        "confidence": confidence,
    }
    notes = [_absence(absent)]
    if full[1] < 0.5:
        notes.append("below 0.5: the updates tell the values apart, and this adversary reads them the wrong way round")
    return _score(AUROC, value, full, len(true), note="; ".join(filter(None, notes)), details=details)


def _area_intervals(
    value: float, influences: Sequence[Floats], true: Truth, clusters: Clusters | None, confidence: float
) -> tuple[Interval, Interval]:
    """Intervals of the mean of the areas of the values that occur: over trials, and over rows and trials."""
    influence: Floats = np.mean(influences, axis=0)
    trials, kinds = len(true), [true == place for place in np.unique(true)]
    variance = float(np.square(influence).sum()) / (trials * max(trials - 1, 1))
    # A few pairs in the wrong order tell too small a variance; simulations of the coverage hold with this ceiling.
    ceiling = float(trials * len(kinds))
    smallest = min(min(int(kind.sum()), int((~kind).sum())) for kind in kinds)
    few = smallest < LEAST_ERRORS
    trial = area_interval(value, variance, pairs=smallest, ceiling=smallest if few else ceiling, confidence=confidence)
    if clusters is None:
        return trial, trial
    few = few or value * (1.0 - value) * trials < LEAST_ERRORS
    pairs = min(clusters.independent(side, told=few) for kind in kinds for side in (kind, ~kind))
    wide = area_interval(
        value,
        variance + clusters.variance(influence, confidence=confidence),
        pairs=pairs,
        ceiling=pairs if few else ceiling,
        confidence=confidence,
    )
    return trial, _wider(trial, wide)


def _advantage(success: Score, true: Truth, blind: float, confidence: float) -> Score:
    if success.value is None or success.interval is None:
        return _without(ADVANTAGE, (success.outcome, success.note), len(true))
    if blind >= 1.0:
        why = "the best blind guess is always right (p* = 1), so that nothing is left to gain"
        return _without(ADVANTAGE, (Outcome.NOT_INFORMATIVE, why), len(true))
    low, high = (float((end - blind) / (1.0 - blind)) for end in success.interval)
    trial = [float((end - blind) / (1.0 - blind)) for end in success.details["trial_interval"]]
    unclipped = (success.value - blind) / (1.0 - blind)
    most = int(np.bincount(true).max())
    details = {
        "unclipped": unclipped,
        "unclipped_interval": [low, high],
        "unclipped_trial_interval": trial,
        "trial_interval": [max(end, 0.0) for end in trial],
        "covers": success.details["covers"],
        "blind": blind,
        "blind_observed": most / len(true),
        "success_rate": success.value,
        "confidence": confidence,
    }
    return _score(
        ADVANTAGE,
        max(unclipped, 0.0),
        (max(low, 0.0), max(high, 0.0)),
        len(true),
        note=_blind_note(most, len(true), blind),
        details=details,
    )


def _blind_note(most: int, trials: int, blind: float) -> str:
    """A p* below what the trials themselves allow a blind guesser makes an advantage of nothing; say so."""
    if rate_interval(most, trials, 0.999)[0] <= blind:
        return ""
    return (
        f"one value makes up {most / trials:.1%} of the trials, more than p* = {blind:.4g} allows: the trials were not drawn "
        "from the prior behind p*, and the advantage is too large"
    )


def _found(
    logs: Floats, true: Truth, clusters: Clusters | None, share: float, least: float, confidence: float
) -> Score:
    details = {"false_positive_rate": share, "least_false_positives": least, "confidence": confidence}
    classes, absent = _present(logs, true)
    if len(classes) < 2:
        return _without(TPR, _one_class(classes), len(true), details)
    scores, shown = class_scores(logs), _shown(logs, classes)
    negatives = min(int((true != place).sum()) for place in shown)
    if not enough_negatives(negatives, share, least):
        why = (
            f"{negatives} negatives leave {negatives * share:.3g} above the threshold of a false-positive rate of "
            f"{share:.3g}, and {least:.3g} are asked for: at least {math.ceil(least / share - 1e-9)} negatives would do"
        )
        return _without(TPR, (Outcome.NOT_RESOLVABLE, why), len(true), details)
    curves = [curve(scores[:, place], true == place) for place in shown]
    found = [line.rate(share * line.negatives) for line in curves]
    value = math.fsum(found) / len(found)
    trial = full = _mean_interval(value, [line.rate_interval(share, confidence) for line in curves])
    if clusters is not None:
        ends = []
        for place, line in zip(shown, curves, strict=True):
            positive = true == place
            hits = (scores[:, place] >= _threshold(scores[~positive, place], share)).astype(np.float64)
            amounts = [_effective(hits, kind, clusters, confidence) for kind in (positive, ~positive)]
            ends.append(line.rate_interval(share, confidence, positives=amounts[0], negatives=amounts[1]))
        full = _wider(trial, _mean_interval(value, ends))
    return _score(
        TPR,
        value,
        full,
        len(true),
        note=_absence(absent),
        details={
            **details,
            "classes": shown,
            "per_class": found,
            "negatives": negatives,
            **_covered(trial, clusters),
        },
    )


def _mean_interval(value: float, ends: Sequence[Interval]) -> Interval:
    """The mean of the ends, as if the errors of all classes went the same way: wide enough."""
    low, high = (math.fsum(end) / len(ends) for end in zip(*ends, strict=True))
    return min(low, value), max(high, value)


def _threshold(negatives: Floats, share: float) -> float:
    """The score above which this share of the negatives lies."""
    return float(np.sort(negatives)[::-1][max(int(share * len(negatives)) - 1, 0)])


def _present(logs: Floats, true: Truth) -> tuple[list[int], list[int]]:
    counts: NDArray[np.int64] = np.bincount(true, minlength=logs.shape[1])
    return [place for place, n in enumerate(counts) if n], [place for place, n in enumerate(counts) if not n]


def _shown(logs: Floats, classes: Sequence[int]) -> list[int]:
    """The classes whose curves count: of two the second, whose curve mirrors that of the first; else all that occur."""
    return [1] if logs.shape[1] == 2 else list(classes)


def _roc(curves: Mapping[int, Curve]) -> dict[str, Any]:
    if len(curves) == 1:
        ((place, line),) = curves.items()
        false, true = line.points()
        return {"of": place, "fpr": false, "tpr": true}
    grid = np.unique(np.concatenate([line.points()[0] for line in curves.values()]))
    if len(grid) > 100:
        grid = np.unique(np.concatenate([[0.0], np.geomspace(grid[1], 1.0, 60), np.linspace(0.0, 1.0, 41)]))
    means = [float(np.mean([line.rate(rate * line.negatives) for line in curves.values()])) for rate in grid]
    return {"of": "mean", "fpr": [float(rate) for rate in grid], "tpr": means}


def _one_class(classes: Sequence[int]) -> tuple[Outcome, str]:
    return Outcome.NOT_RESOLVABLE, f"every trial has the value {classes[0]}, and it takes two to tell them apart"


def _absence(absent: Sequence[int]) -> str:
    return f"values that never occurred are left out: {', '.join(map(str, absent))}" if absent else ""


def _score(name: str, value: float, interval: Interval, n: int, *, note: str = "", details: Mapping[str, Any]) -> Score:
    return Score(
        name=name,
        value=value,
        unit="auroc" if name == AUROC else "share",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ATTACK,
        interval=interval,
        n=n,
        note=note,
        details=details,
    )


def _without(name: str, why: tuple[Outcome, str], n: int, details: Mapping[str, Any] | None = None) -> Score:
    return Score(
        name=name,
        value=None,
        unit="auroc" if name == AUROC else "share",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ATTACK,
        n=n,
        outcome=why[0],
        note=why[1],
        details=details or {},
    )

"""Scores of several seeds as one: mean and spread over the seeds as the paper prints them, and an interval that holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from gradleak.results import InputError, Score
from gradleak.scoring.classification import ADVANTAGE
from gradleak.scoring.roc import POINTS, Floats, Interval

RESAMPLES = 2000


def pooled(
    per_seed: Sequence[Sequence[Score]], *, resamples: int = RESAMPLES, seed: int = 0, shared: float = 0.0
) -> list[Score]:
    """The mean of every score over seeds, with the spread over them and an interval for the mean of all seeds.

    `details` holds `per_seed`, `seeds` (how many have a value), `sd` (the sample standard deviation over seeds, which is
    what the paper prints after ±) and three intervals. `trial_interval` covers the draw of trials alone, with these seeds
    and their rows given: distances to the seeds' own limits, joined by the root of their squares (MOVER).
    `given_interval` does so with the seeds' intervals over rows and trials, where they have them, with the training and
    the fitted adversary of these seeds given. The errors of rows of two seeds that share rows go together; `shared` is
    taken for their correlation. `bootstrap_interval` is the percentile bootstrap over seeds, rows and trials: seeds are
    drawn with replacement and each is moved by the error that its own interval states. It is too short for few seeds
    (their spread is underestimated and the tails are normal: about 85 % instead of 95 % for five), so that `interval` is
    Student's t over the seeds, joined with `given_interval` to whichever end lies farther. With one seed only
    `given_interval` is left, and the note says so.

    For the advantage the value is the mean of the seeds' advantages, each clipped at 0 as in the paper, which is above 0
    where there is nothing; intervals and `unclipped` are of the unclipped ones. `details["unclipped_interval"]`, from which
    `leaks` reads, is `given_interval`: that updates leak for the adversaries of these seeds is sure also where two seeds are
    too few to say how much they leak to others (Student's factor is 12.7 then). A note says where the two disagree.

    **Assumptions**: seeds (splits, training, fitted adversary) are independent of each other; means over them are about
    normal. Seeds that share private rows are less spread than fresh ones would be, which Student's interval does not see.

    Args:
        per_seed: of every seed what `score_posteriors` returned with the same arguments, in the same order.
        resamples: bootstrap resamples.
        seed: of the bootstrap.
        shared: which share of its private rows a seed has in common with another, from 0 to 1.

    Returns:
        One score for each that the seeds have; `roc` is the mean of the seeds' curves at equal false-positive rates. Seeds
        without a value are left out and counted in the note; if none has one, the first seed's outcome stands.

    Raises:
        InputError: without a seed, or for seeds with different scores.

    **Source**: Li et al. 2024, section 5.1.4 (mean and standard deviation over 5 seeds); Zou and Donner 2008 (MOVER).
    """
    if not per_seed:
        raise InputError("pooled: expected the scores of at least one seed, got none")
    kinds = [[(score.name, score.details.get("false_positive_rate")) for score in scores] for scores in per_seed]
    if any(kind != kinds[0] for kind in kinds):
        raise InputError(f"pooled: expected the same scores of every seed, got {kinds}")
    random = np.random.default_rng(seed)
    return [_pooled(list(same), random, resamples, shared) for same in zip(*per_seed, strict=True)]


def _pooled(scores: Sequence[Score], random: np.random.Generator, resamples: int, shared: float) -> Score:
    found = [score for score in scores if score.value is not None and score.interval is not None]
    lost = [score for score in scores if score.value is None or score.interval is None]
    if not found:
        return replace(scores[0], n=sum(score.n for score in scores))
    first, trials = found[0], sum(score.n for score in found)
    confidence = float(first.details.get("confidence", 0.95))
    values = np.array([_value(score) for score in found])
    ends = np.array([_ends(score) for score in found])
    of_trials = np.array([_trial_ends(score) for score in found])
    trial, given = _joined(values, of_trials), _joined(values, ends, of_trials, shared)
    if len(found) == 1:
        full, boot = given, None
    else:
        full, boot = _over_seeds(values, given, confidence), _bootstrap(values, ends, confidence, random, resamples)
    shown = np.array([float(score.value or 0.0) for score in found])
    value = float(shown.mean())
    details: dict[str, Any] = _common(first.details) | {
        "seeds": len(found),
        "per_seed": shown.tolist(),
        "sd": float(shown.std(ddof=1)) if len(found) > 1 else None,
        "trial_interval": list(_clipped(trial)),
        "given_interval": list(_clipped(given)),
        "shared": shared,
        "bootstrap_interval": None if boot is None else list(_clipped(boot)),
    }
    notes = list(dict.fromkeys(score.note for score in found if score.note))
    if first.name == ADVANTAGE:
        details |= {
            "unclipped": float(values.mean()),
            "unclipped_interval": list(given),
            "unclipped_trial_interval": list(trial),
            "unclipped_interval_over_seeds": list(full),
        }
        if full[0] <= 0.0 < given[0]:
            notes.append(
                f"more than chance in these {len(found)} seeds ({given[0]:.3g} to {given[1]:.3g}); they are too few, or differ "
                "too much, to say how it is in others"
            )
    if "confusion" in first.details:
        details["confusion"] = np.sum([score.details["confusion"] for score in found], axis=0).tolist()
    if "roc" in first.details:
        details["roc"] = _mean_curve([score.details["roc"] for score in found])
    low, high = _clipped(full)
    if len(found) == 1:
        notes.append(
            f"one seed: the interval covers the draw of {first.details.get('covers', 'trials')}, not that of the training"
        )
    if lost:
        notes.append(f"{len(lost)} of {len(scores)} seeds without a value ({lost[0].outcome.label}: {lost[0].note})")
    return replace(
        first,
        value=value,
        interval=(min(low, value), max(high, value)),
        n=trials,
        note="; ".join(notes),
        details=details,
    )


def _mean_curve(curves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean true-positive rate at every false-positive rate that a curve has a corner at."""
    grid = np.unique(np.concatenate([np.asarray(line["fpr"], dtype=np.float64) for line in curves]))
    if len(grid) > 2 * POINTS:
        grid = np.unique(
            np.concatenate([[0.0], np.geomspace(grid[1], 1.0, POINTS), np.linspace(0.0, 1.0, POINTS // 2)])
        )
    means = np.mean([np.interp(grid, *_upper(line)) for line in curves], axis=0)
    return {"of": curves[0]["of"], "fpr": grid.tolist(), "tpr": means.tolist()}


def _upper(line: Mapping[str, Any]) -> tuple[Floats, Floats]:
    """The corners of a curve with the largest true-positive rate at each false-positive rate."""
    false, true = np.asarray(line["fpr"], dtype=np.float64), np.asarray(line["tpr"], dtype=np.float64)
    last = np.append(false[1:] != false[:-1], True)
    return false[last], true[last]


def _common(details: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that the seeds share, not what was found."""
    kept = ("blind", "confidence", "false_positive_rate", "least_false_positives", "classes", "covers")
    return {name: details[name] for name in kept if name in details}


def _value(score: Score) -> float:
    return float(score.details["unclipped"] if score.name == ADVANTAGE else score.value or 0.0)


def _ends(score: Score) -> Interval:
    low, high = score.details["unclipped_interval"] if score.name == ADVANTAGE else score.interval or (0.0, 1.0)
    return float(low), float(high)


def _clipped(interval: Interval) -> Interval:
    return min(max(interval[0], 0.0), 1.0), min(max(interval[1], 0.0), 1.0)


def _trial_ends(score: Score) -> Interval:
    name = "unclipped_trial_interval" if score.name == ADVANTAGE else "trial_interval"
    found = score.details.get(name)
    return _ends(score) if found is None else (float(found[0]), float(found[1]))


def _joined(values: Floats, ends: Floats, of_trials: Floats | None = None, shared: float = 0.0) -> Interval:
    """The mean of the seeds with their limits; what exceeds the limits of the trials is correlated over seeds."""
    squares = np.square(ends - values[:, None])
    total = squares.sum(axis=0)
    if of_trials is not None and shared > 0.0:
        rows = np.sqrt(np.maximum(squares - np.square(of_trials - values[:, None]), 0.0))
        total = total + shared * (np.square(rows.sum(axis=0)) - np.square(rows).sum(axis=0))
    down, up = np.sqrt(total) / len(values)
    return float(values.mean() - down), float(values.mean() + up)


def _over_seeds(values: Floats, trial: Interval, confidence: float) -> Interval:
    quantile = float(scipy.stats.t.isf((1.0 - confidence) / 2.0, len(values) - 1))
    reach = quantile * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    return min(mean - reach, trial[0]), max(mean + reach, trial[1])


def _bootstrap(
    values: Floats, ends: Floats, confidence: float, random: np.random.Generator, resamples: int
) -> Interval:
    drawn = random.integers(0, len(values), (resamples, len(values)))
    error = random.standard_normal(drawn.shape)
    normal = float(scipy.stats.norm.isf((1.0 - confidence) / 2.0))
    # The error of a seed's trials has another scale on either side of its value.
    scales = np.abs(ends - values[:, None])[drawn] / normal
    means = (values[drawn] + error * np.where(error < 0, scales[..., 0], scales[..., 1])).mean(axis=1)
    half = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [half, 1.0 - half])
    return float(low), float(high)

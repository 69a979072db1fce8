"""Base of every lower bound on epsilon: trials in, a bound out; error rates and their intervals."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, final

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from gradleak.results import (
    Citation,
    Count,
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Score,
    Settings,
    Share,
)

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialScores:
    """One number a trial: the values of a test statistic under both hypotheses.

    **Assumptions**: of the bounds that read them: trials are independent, and the two samples are.

    Attributes:
        null: shape (n0,): values under H0, finite; kept as a read-only float64 array.
        alternative: shape (n1,): values under H1, likewise.
        name: of the statistic, in lower snake case.

    Raises:
        InputError: for a sample that is empty, not one-dimensional or not finite.
    """

    null: Values
    alternative: Values
    name: str = "statistic"

    def __post_init__(self) -> None:
        """Keep read-only float64 copies."""
        for name in ("null", "alternative"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.ndim != 1 or not values.size:
                raise InputError(f"TrialScores.{name}: expected one number a trial, got the shape {values.shape}")
            if not np.isfinite(values).all():
                wrong = int((~np.isfinite(values)).sum())
                raise InputError(
                    f"TrialScores.{name}: expected finite numbers, got {wrong} NaN or infinite of {values.size}"
                )
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of trials of H0 and of H1."""
        return len(self.null), len(self.alternative)


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


# So near to the largest value that so many trials can certify, the number says how many they were.
SATURATION = 0.5


class Direction(StrEnum):
    """Direction in which values of a statistic speak for H1."""

    HIGHER = "higher_values_for_h1"
    LOWER = "lower_values_for_h1"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Reading of the trials by an estimator.

    Attributes:
        value: the bound or estimate before it is held at 0 or above; None where nothing can be said.
        interval: (low, high) of a two-sided interval.
        used: trials of H0 and of H1 behind the number.
        direction: which values speak for H1.
        threshold: where they begin, or None.
        details: further facts.
    """

    value: float | None
    interval: tuple[float, float] | None
    used: tuple[int, int]
    direction: Direction
    threshold: float | None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EpsilonEstimator(Settings, ABC):
    """Epsilon of two hypotheses from the trials of an audit.

    With P₀ and P₁ the laws of what is released under H0 and H1, the quantity is the smallest ε at which
    P₀(S) ≤ e^ε P₁(S) + δ and P₁(S) ≤ e^ε P₀(S) + δ for all S.

    Attributes:
        delta: δ, between 0 and 1.
        confidence: 1 − α of a lower bound, one-sided, and of the interval, two-sided.
        comparisons: how many bounds are looked at of which the largest will be told (several statistics, records or
            settings); each is then given at 1 − α/comparisons, so that all hold together with the stated confidence.

    Raises:
        InputError: for a number out of range.
    """

    delta: Share
    confidence: Share = 0.95
    comparisons: Count = 1

    evidence: ClassVar[Evidence] = Evidence.LOWER_BOUND
    selection: ClassVar[str]
    citations: ClassVar[tuple[Citation, ...]] = ()

    @final
    def estimate(self, scores: TrialScores, *, seed: int = 0) -> Score:
        """The score of these trials, with everything that is needed to read it.

        The name is "epsilon_lower_bound" with evidence lower_bound, or "epsilon_estimate" with evidence estimate; n is
        the number of trials behind the number. `details` hold delta, confidence (with which all comparisons hold
        together), comparisons, selection (how the threshold was chosen), direction, threshold, trials used under each
        hypothesis, and `largest_certifiable`: the value if the hypotheses had been told apart in every trial. Outcomes:

        - converged: the value, 0 where nothing is certified;
        - saturated: above 0 and within 0.5 of the largest certifiable value; the bound holds, and how far above epsilon is
          cannot be resolved by so many trials;
        - not_resolvable, without a value: so few trials can certify nothing.

        The interval is two-sided, of what was measured where the bound was taken; its lower end lies below the bound,
        which is one-sided, and its upper end bounds nothing: a better statistic may tell more.

        Args:
            scores: the statistic under both hypotheses.
            seed: of the random split, where there is one.
        """
        largest = self.largest_certifiable(*scores.counts)
        if largest <= 0.0:
            reading = None
            value, outcome = None, Outcome.NOT_RESOLVABLE
            note = f"{scores.counts[0]} and {scores.counts[1]} trials can certify no epsilon above 0 at this δ and confidence"
        else:
            reading = self._read(scores, np.random.default_rng(seed))
            value = None if reading.value is None else max(0.0, reading.value)
            outcome, note = self._judge(value, largest)
        return Score(
            name="epsilon_lower_bound" if self.evidence is Evidence.LOWER_BOUND else "epsilon_estimate",
            value=value,
            unit="epsilon",
            leakier=Leakier.HIGHER,
            evidence=self.evidence,
            interval=None if reading is None or value is None else reading.interval,
            n=sum(reading.used) if reading is not None else sum(scores.counts),
            outcome=outcome,
            note=note,
            details={
                "statistic": scores.name,
                "estimator": type(self).__name__,
                "delta": self.delta,
                "confidence": self.confidence,
                "comparisons": self.comparisons,
                "selection": self.selection,
                "largest_certifiable": largest,
                **({} if reading is None else _facts(reading)),
            },
        )

    @property
    def error(self) -> float:
        """α of one number, after the correction for `comparisons`."""
        return (1.0 - self.confidence) / self.comparisons

    @abstractmethod
    def largest_certifiable(self, null: int, alternative: int) -> float:
        """The value if so many trials of H0 and of H1 were told apart without a mistake; at most 0 for too few.

        Args:
            null: trials of H0.
            alternative: trials of H1.
        """

    @abstractmethod
    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        """The number, and where it was read."""

    def _judge(self, value: float | None, largest: float) -> tuple[Outcome, str]:
        if value is None:
            return Outcome.NOT_RESOLVABLE, "no threshold leaves a rate that these trials resolve"
        if value > 0.0 and value >= largest - SATURATION:
            return (
                Outcome.SATURATED,
                f"saturated, not resolvable: so many trials can certify at most {largest:.3g}; more trials would show more",
            )
        if value == 0.0 and self.evidence is Evidence.LOWER_BOUND:
            return Outcome.CONVERGED, "nothing is certified, which does not show that nothing leaks"
        return Outcome.CONVERGED, ""


def _facts(reading: Reading) -> dict[str, Any]:
    return {
        "direction": reading.direction.value,
        "threshold": reading.threshold,
        "null_trials": reading.used[0],
        "alternative_trials": reading.used[1],
        **reading.details,
    }


def best_bound(bounds: Sequence[Score]) -> Score:
    """The largest of several lower bounds, with a note that says whether the choice among them is covered.

    It is if each was given with `comparisons` of at least their number.

    Args:
        bounds: scores of estimators whose evidence is lower_bound; at least one.

    Raises:
        InputError: for none, or a score that is no lower bound.
    """
    if not bounds or any(score.evidence is not Evidence.LOWER_BOUND for score in bounds):
        raise InputError("best_bound: expected lower bounds, at least one; estimates are no bounds")
    best = max(bounds, key=lambda score: -1.0 if score.value is None else score.value)
    fewest = min(int(score.details.get("comparisons", 1)) for score in bounds)
    if fewest >= len(bounds):
        return best
    warning = (
        f"the largest of {len(bounds)} bounds, each given as one of {fewest}: its confidence does not cover the choice; use "
        f"comparisons={len(bounds)}"
    )
    return replace(best, note=f"{best.note}; {warning}" if best.note else warning)

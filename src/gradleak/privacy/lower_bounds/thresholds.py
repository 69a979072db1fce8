"""Lower bounds on epsilon by a threshold: split trials, one set of trials corrected for the choice, and none (plug-in)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradleak.privacy.lower_bounds.estimator import (
    Direction,
    EpsilonEstimator,
    Reading,
    TrialScores,
    Values,
    candidate_thresholds,
    certified_epsilon,
    counts_above,
    epsilon_of_rates,
    geometric_ranks,
    two_sided_interval,
)
from gradleak.results import CLOPPER_PEARSON_1934, JAGIELSKI_2020, LI_2024, Citation, Evidence, Share


@dataclass(frozen=True, kw_only=True)
class SplitThresholdEpsilon(EpsilonEstimator):
    """A lower bound on ε by Clopper and Pearson at one threshold, which was chosen on other trials.

    The first `share` of the trials, drawn at random, chooses threshold and direction: those that would certify most of
    the rest if the rest had the same rates. The rest is counted once: P(ε̂ > ε) ≤ α, whatever the statistic is.

    **Assumptions**: independent trials of each hypothesis; nothing about the laws.

    Attributes:
        share: of the trials that choose, between 0 and 1.

    **Cost**: a sort of the trials.

    **Source**: Li et al. 2024, section 7, there without a split; Jagielski et al. 2020; Nasr et al. 2021 for the
    interval. Deviations: threshold and direction are chosen on a separate split, each rate has half of the error, and
    both directions are searched.
    """

    share: Share = 0.2
    selection: ClassVar[str] = "threshold and direction chosen on a separate split"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, JAGIELSKI_2020, CLOPPER_PEARSON_1934)

    def largest_certifiable(self, null: int, alternative: int) -> float:
        """The value if all trials of the second part were told apart; at most 0 for too few.

        Args:
            null: trials of H0.
            alternative: trials of H1.
        """
        chosen = [part_size(count, self.share) for count in (null, alternative)]
        counted = null - chosen[0], alternative - chosen[1]
        if not all((*chosen, *counted)):
            return 0.0
        # Not by a confidence, which a small error over many comparisons would round to 1.
        return float(certified_epsilon(0, counted[1], counted, delta=self.delta, error=self.error))

    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        choosing, counting = split(scores, self.share, generator)
        trials = counting.counts
        best = None
        for direction in Direction:
            threshold, promise = self._promising(choosing, trials, direction)
            if best is None or promise > best[0]:
                best = promise, direction, threshold
        assert best is not None
        _, direction, threshold = best
        null, alternative = directed(counting, direction)
        sign = 1.0 if direction is Direction.HIGHER else -1.0
        false, true = (int(np.count_nonzero(values > threshold)) for values in (null, alternative))
        return Reading(
            value=float(certified_epsilon(false, true, trials, delta=self.delta, error=self.error)),
            interval=two_sided_interval(false, true, trials, delta=self.delta, error=self.error),
            used=trials,
            direction=direction,
            threshold=sign * threshold,
            details=rates(false, true, trials, self.delta),
        )

    def _promising(self, scores: TrialScores, trials: tuple[int, int], direction: Direction) -> tuple[float, float]:
        null, alternative = (np.sort(values) for values in directed(scores, direction))
        thresholds = candidate_thresholds(null, alternative)
        # Half a trial is added on either side: a count of 0 of few would promise too much.
        false, true = (
            (counts_above(ordered, thresholds) + 0.5) / (len(ordered) + 1.0) * count
            for ordered, count in zip((null, alternative), trials, strict=True)
        )
        promised = certified_epsilon(false, true, trials, delta=self.delta, error=self.error)
        best = int(np.argmax(promised))
        return float(thresholds[best]), float(promised[best])


def part_size(count: int, share: float) -> int:
    """Number of `count` trials that make up `share` of them, rounded up.

    Args:
        count: of all.
        share: between 0 and 1.
    """
    return int(np.ceil(count * share))


def split(scores: TrialScores, share: float, generator: np.random.Generator) -> tuple[TrialScores, TrialScores]:
    """Two parts of the trials at random, `share` of either hypothesis in the first.

    Args:
        scores: of all trials.
        share: between 0 and 1.
        generator: of the draw.
    """
    parts = []
    for values in (scores.null, scores.alternative):
        shuffled = generator.permutation(values)
        size = part_size(len(values), share)
        parts.append((shuffled[:size], shuffled[size:]))
    (null, rest), (alternative, others) = parts
    return (
        TrialScores(null=null, alternative=alternative, name=scores.name),
        TrialScores(null=rest, alternative=others, name=scores.name),
    )


def directed(scores: TrialScores, direction: Direction) -> tuple[Values, Values]:
    """Both samples, their signs changed where lower values speak for H1.

    Args:
        scores: of the trials.
        direction: which values speak for H1.
    """
    if direction is Direction.HIGHER:
        return scores.null, scores.alternative
    return -scores.null, -scores.alternative


def rates(false_positives: int, true_positives: int, trials: tuple[int, int], delta: float) -> dict[str, float]:
    """Both rates at a threshold, and the ε that they show if taken at their word.

    Args:
        false_positives: trials of H0 that the test rejects.
        true_positives: trials of H1 that it rejects.
        trials: of H0 and of H1.
        delta: δ.
    """
    fpr, tpr = false_positives / trials[0], true_positives / trials[1]
    return {
        "false_positive_rate": fpr,
        "true_positive_rate": tpr,
        "estimate": max(0.0, float(epsilon_of_rates(fpr, tpr, delta))),
    }


@dataclass(frozen=True, kw_only=True)
class CorrectedThresholdEpsilon(EpsilonEstimator):
    """A lower bound on ε that holds at all of its thresholds at once, so that the best of them may be told.

    Thresholds are the k-th largest and k-th smallest values of either sample, with k on a grid fixed beforehand (about
    1.25 apart by factor), in both directions. At the k-th largest value of one sample the share of its law beyond is at most
    Beta(k, n − k + 1) distributed, whatever the law; given that sample the threshold is fixed, and the count of the other
    one is binomial. Each threshold has its part of the error (Bonferroni), and half of that each of its two rates. No
    trial is spent on the choice.

    **Assumptions**: independent trials of each hypothesis, and the two samples of each other; nothing about the laws.

    **Cost**: a sort of the trials.

    **Source**: ours, from the law of order statistics and Clopper and Pearson 1934; the quantity is that of Li et al.
    2024, section 7.
    """

    selection: ClassVar[str] = "best of a fixed grid of ranks in both directions, corrected for the choice (Bonferroni)"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, CLOPPER_PEARSON_1934)

    def largest_certifiable(self, null: int, alternative: int) -> float:
        """The value if all trials were told apart.

        Args:
            null: trials of H0.
            alternative: trials of H1.
        """
        # Not by a confidence, which so small a part would round to 1.
        part = self._part(null, alternative)
        return float(certified_epsilon(0, alternative, (null, alternative), delta=self.delta, error=part))

    def _part(self, null: int, alternative: int) -> float:
        """Part of the error for one threshold: ranks of either sample, from either end."""
        return self.error / (2 * (len(geometric_ranks(null)) + len(geometric_ranks(alternative))))

    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        del generator
        part = self._part(*scores.counts)
        best = None
        for direction in Direction:
            null, alternative = (np.sort(values) for values in directed(scores, direction))
            for swapped in (False, True):
                # In the other hypothesis's place, mirrored: a test between them that rejects what the first accepts.
                own, other = (-alternative[::-1], -null[::-1]) if swapped else (null, alternative)
                found, threshold = self._sweep(own, other, part)
                if best is None or found > best[0]:
                    best = found, direction, -threshold if swapped else threshold, swapped
        assert best is not None
        value, direction, threshold, swapped = best
        null, alternative = directed(scores, direction)
        false, true = (
            int(np.count_nonzero(values >= threshold if swapped else values > threshold))
            for values in (null, alternative)
        )
        low, high = two_sided_interval(false, true, scores.counts, delta=self.delta, error=part)
        return Reading(
            value=value,
            # With ties the counts may look better than the ranks, which alone were fixed beforehand.
            interval=(min(low, max(0.0, value)), high),
            used=scores.counts,
            direction=direction,
            threshold=threshold if direction is Direction.HIGHER else -threshold,
            details=rates(false, true, scores.counts, self.delta),
        )

    def _sweep(self, own: Values, other: Values, part: float) -> tuple[float, float]:
        """The best bound at thresholds that are the largest values of `own`, and its threshold; both ascending."""
        ranks = np.array(geometric_ranks(len(own)))
        thresholds = own[-ranks]
        above = len(other) - np.searchsorted(other, thresholds, side="right")
        # With ties fewer than k − 1 of `own` lie above; the rank was fixed beforehand, the count was not.
        certified = certified_epsilon(ranks - 1, above, (len(own), len(other)), delta=self.delta, error=part)
        best = int(np.argmax(certified))
        return float(certified[best]), float(thresholds[best])


@dataclass(frozen=True, kw_only=True)
class PlugInEpsilon(EpsilonEstimator):
    """The naive estimate of ε: the largest log-ratio over all thresholds, with measured rates in place of true ones.

    max over c of max(ln((1 − δ − FPR)/FNR), ln((1 − δ − FNR)/FPR)). It is an estimate and never a bound: the maximum over
    thresholds finds the luckiest tail, and gives several units of ε for pure noise. The interval is Clopper and
    Pearson's at that one threshold and does not cover the choice either.

    A ratio with no trial in its denominator is taken as if one were there, so that the value is at most the logarithm of
    the number of trials. That matters for tied values alone: without ties a threshold beside it has one.

    **Cost**: a sort of the trials.

    **Source**: Li et al. 2024, section 7. Deviations: both directions are searched, and an error rate of 0 in the
    denominator (an infinite ratio) counts as one trial.
    """

    evidence: ClassVar[Evidence] = Evidence.ESTIMATE
    selection: ClassVar[str] = "best of all thresholds on the same trials, not corrected (naive plug-in)"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    def largest_certifiable(self, null: int, alternative: int) -> float:
        """The largest value it can take: one trial of the larger sample in the denominator; it certifies nothing.

        Args:
            null: trials of H0.
            alternative: trials of H1.
        """
        return math.log((1.0 - self.delta) * max(null, alternative))

    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        del generator
        best = None
        for direction in Direction:
            null, alternative = (np.sort(values) for values in directed(scores, direction))
            value, threshold = self._largest(null, alternative)
            if best is None or value > best[0]:
                best = value, direction, threshold
        assert best is not None
        value, direction, threshold = best
        false, true = (int(np.count_nonzero(values > threshold)) for values in directed(scores, direction))
        return Reading(
            value=value,
            interval=two_sided_interval(false, true, scores.counts, delta=self.delta, error=self.error),
            used=scores.counts,
            direction=direction,
            threshold=threshold if direction is Direction.HIGHER else -threshold,
            details=rates(false, true, scores.counts, self.delta),
        )

    def _largest(self, null: Values, alternative: Values) -> tuple[float, float]:
        thresholds = np.concatenate([null, alternative])
        false, true = counts_above(null, thresholds), counts_above(alternative, thresholds)
        # Not 1 - TPR, whose round-off would not be one trial.
        fpr, fnr = false / len(null), (len(alternative) - true) / len(alternative)
        ratios = np.maximum(
            self._ratio(1.0 - self.delta - fpr, fnr, 1.0 / len(alternative)),
            self._ratio(1.0 - self.delta - fnr, fpr, 1.0 / len(null)),
        )
        best = int(np.argmax(ratios))
        return float(ratios[best]), float(thresholds[best])

    @staticmethod
    def _ratio(numerator: Values, denominator: Values, least: float) -> Values:
        told = numerator > 0.0
        return np.where(told, np.log(np.where(told, numerator, 1.0) / np.maximum(denominator, least)), -np.inf)

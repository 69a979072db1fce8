"""A threshold chosen on some of the trials, and a bound by all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradleak.privacy.lower_bounds.estimator import Direction, EpsilonEstimator, Reading
from gradleak.privacy.lower_bounds.rates import (
    candidate_thresholds,
    certified_epsilon,
    counts_above,
    epsilon_of_rates,
    two_sided_interval,
)
from gradleak.privacy.lower_bounds.trials import TrialScores, Values
from gradleak.results import CLOPPER_PEARSON_1934, JAGIELSKI_2020, LI_2024, Citation, Share


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

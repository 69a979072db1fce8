"""The best of many thresholds on all trials, corrected for the choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradleak.privacy.lower_bounds.estimator import Direction, EpsilonEstimator, Reading
from gradleak.privacy.lower_bounds.rates import certified_epsilon, geometric_ranks, two_sided_interval
from gradleak.privacy.lower_bounds.split_threshold import directed, rates
from gradleak.privacy.lower_bounds.trials import TrialScores, Values
from gradleak.results import CLOPPER_PEARSON_1934, LI_2024, Citation


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

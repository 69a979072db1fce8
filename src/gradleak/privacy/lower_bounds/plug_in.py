"""The largest log-ratio of measured rates: what is often quoted, and no bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradleak.privacy.lower_bounds.estimator import Direction, EpsilonEstimator, Reading
from gradleak.privacy.lower_bounds.rates import counts_above, two_sided_interval
from gradleak.privacy.lower_bounds.split_threshold import directed, rates
from gradleak.privacy.lower_bounds.trials import TrialScores, Values
from gradleak.results import LI_2024, Citation, Evidence


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

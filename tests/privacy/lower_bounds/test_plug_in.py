"""The naive estimate: what it computes, and that it is none of the bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.privacy.lower_bounds.trials import DELTA, gaussian_trials

from gradleak.privacy.lower_bounds import PlugInEpsilon, TrialScores
from gradleak.results import Evidence, Outcome


def test_the_value_is_the_paper_s_maximum_by_a_loop() -> None:
    scores = gaussian_trials(1.0, 300, 1)
    best = -math.inf
    for critical in np.concatenate([scores.null, scores.alternative]):
        for sign in (1, -1):
            false_positive = float(np.mean(sign * scores.null > sign * critical))
            false_negative = float(np.mean(sign * scores.alternative <= sign * critical))
            if false_negative > 0 and 1 - DELTA - false_positive > 0:
                best = max(best, math.log((1 - DELTA - false_positive) / false_negative))
            if false_positive > 0 and 1 - DELTA - false_negative > 0:
                best = max(best, math.log((1 - DELTA - false_negative) / false_positive))
    score = PlugInEpsilon(delta=DELTA).estimate(scores)
    assert score.value == pytest.approx(best)
    assert score.details["estimate"] == pytest.approx(best)


def test_pure_noise_looks_like_a_loss() -> None:
    # U49: the maximum over thresholds finds the luckiest tail; never a bound, and its interval covers no choice.
    scores = [PlugInEpsilon(delta=DELTA).estimate(gaussian_trials(0.0, 5000, seed)) for seed in range(40)]
    values = [score.value or 0.0 for score in scores]
    assert min(values) > 0.4
    assert max(values) > 1.5
    assert all(score.evidence is Evidence.ESTIMATE for score in scores)
    assert all("naive plug-in" in score.details["selection"] for score in scores)


def test_it_cannot_exceed_the_logarithm_of_the_trials() -> None:
    score = PlugInEpsilon(delta=DELTA).estimate(gaussian_trials(30.0, 5000, 0))
    assert score.outcome is Outcome.SATURATED
    assert score.value == pytest.approx(math.log(5000 * (1 - DELTA)), rel=1e-3)
    assert score.interval is not None
    # One trial each: no threshold leaves an error in a denominator.
    alone = PlugInEpsilon(delta=DELTA).estimate(TrialScores(null=np.array([0.0]), alternative=np.array([1.0])))
    assert alone.outcome is Outcome.NOT_RESOLVABLE
    assert alone.value is None


@pytest.mark.parametrize("values", [(0.0, 1.0), (1.0, 0.0), (0.0, 5e-324)])
def test_tied_values_that_are_told_apart_count_as_one_error(values: tuple[float, float]) -> None:
    # No threshold has an error at all: the ratio is infinite, and says no more than one trial would.
    null, alternative = (np.full(2000, value) for value in values)
    score = PlugInEpsilon(delta=DELTA).estimate(TrialScores(null=null, alternative=alternative))
    assert score.outcome is Outcome.SATURATED
    assert score.value == pytest.approx(math.log(2000 * (1 - DELTA)))
    # Half of H1 shows what H0 never does.
    half = PlugInEpsilon(delta=DELTA).estimate(TrialScores(null=np.zeros(2000), alternative=np.arange(2000.0) % 2))
    assert half.value == pytest.approx(math.log(2000 * (0.5 - DELTA)))

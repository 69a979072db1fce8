from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from tests.privacy.lower_bounds.trials import DELTA, gaussian_trials

from gradleak.privacy.lower_bounds import SplitThresholdEpsilon, TrialScores, largest_certifiable_epsilon
from gradleak.privacy.lower_bounds.thresholds import part_size, split


def test_the_bound_is_clopper_and_pearson_s_on_the_second_part() -> None:
    # Whatever the first part chose, the counts of the second are the binomial experiment that scipy bounds.
    scores, estimator = gaussian_trials(1.5, 4000, 3), SplitThresholdEpsilon(delta=DELTA, share=0.25)
    found = estimator.estimate(scores, seed=9)
    _, counting = split(scores, 0.25, np.random.default_rng(9))
    assert counting.counts == (3000, 3000)
    threshold = found.details["threshold"]
    false, true = (int((values > threshold).sum()) for values in (counting.null, counting.alternative))
    high = scipy.stats.binomtest(false, 3000).proportion_ci(0.95).high
    low = scipy.stats.binomtest(true, 3000).proportion_ci(0.95).low
    forms = math.log((low - DELTA) / high), math.log((1 - high - DELTA) / (1 - low))
    assert found.value == pytest.approx(max(forms), rel=1e-8)
    assert found.details["false_positive_rate"] == false / 3000
    assert found.details["estimate"] >= found.value
    assert found.n == 6000


def test_parts_are_disjoint_and_whole() -> None:
    scores = TrialScores(null=np.arange(10.0), alternative=np.arange(100.0, 107.0))
    one, other = split(scores, 0.3, np.random.default_rng(0))
    assert one.counts == (3, 3)
    assert sorted([*one.null, *other.null]) == scores.null.tolist()
    assert sorted([*one.alternative, *other.alternative]) == scores.alternative.tolist()
    assert part_size(1, 0.01) == 1


def test_its_largest_value_is_that_of_the_trials_it_counts() -> None:
    estimator = SplitThresholdEpsilon(delta=DELTA, share=0.5)
    assert estimator.largest_certifiable(10_000, 10_000) == largest_certifiable_epsilon(5000, 5000, delta=DELTA)
    score = estimator.estimate(gaussian_trials(30.0, 10_000, 0))
    assert score.value == pytest.approx(score.details["largest_certifiable"], rel=1e-9)


def test_a_gap_is_cut_in_its_middle() -> None:
    score = SplitThresholdEpsilon(delta=DELTA).estimate(
        TrialScores(null=np.linspace(0.0, 1.0, 500), alternative=np.linspace(9.0, 10.0, 500))
    )
    assert score.details["threshold"] == pytest.approx(5.0, abs=0.1)


def test_unlike_numbers_of_trials() -> None:
    generator = np.random.default_rng(0)
    scores = TrialScores(null=generator.normal(size=20_000), alternative=generator.normal(3.0, 1.0, size=2000))
    score = SplitThresholdEpsilon(delta=DELTA).estimate(scores)
    assert (score.details["null_trials"], score.details["alternative_trials"]) == (16_000, 1600)
    assert score.value is not None
    assert 4.0 < score.value < 16.7

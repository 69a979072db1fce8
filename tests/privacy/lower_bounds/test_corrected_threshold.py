from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from tests.privacy.lower_bounds.trials import DELTA, gaussian_trials

from gradleak.privacy.lower_bounds import CorrectedThresholdEpsilon, SplitThresholdEpsilon, TrialScores
from gradleak.privacy.lower_bounds.estimator import geometric_ranks


def test_the_bound_is_that_of_scipy_at_its_rank_with_its_part_of_the_error() -> None:
    scores = gaussian_trials(2.0, 3000, 4)
    found = CorrectedThresholdEpsilon(delta=DELTA).estimate(scores)
    part = 0.05 / (4 * len(geometric_ranks(3000)))
    best = -np.inf
    for sign in (1.0, -1.0):
        for own, other in (
            (sign * scores.null, sign * scores.alternative),
            (-sign * scores.alternative, -sign * scores.null),
        ):
            for rank in geometric_ranks(3000):
                threshold = np.sort(own)[-rank]
                high = scipy.stats.beta.isf(part / 2, rank, 3000 - rank + 1)
                above = int((other > threshold).sum())
                low = scipy.stats.beta.ppf(part / 2, above, 3000 - above + 1) if above else 0.0
                if low > DELTA:
                    best = max(best, np.log((low - DELTA) / high), np.log(max(1 - high - DELTA, 1e-300) / (1 - low)))
    assert found.value == pytest.approx(best, rel=1e-8)
    assert found.n == 6000


def test_ranks_bound_the_law_beyond_them_whatever_it_is() -> None:
    # The share of a law beyond its k-th largest of n draws stays below the Beta quantile as often as it says.
    generator = np.random.default_rng(0)
    for rank in (1, 5, 200):
        beyond = 1 - np.sort(generator.random((4000, 1000)), axis=1)[:, -rank]
        kept = np.mean(beyond <= scipy.stats.beta.isf(0.05, rank, 1000 - rank + 1))
        assert kept == pytest.approx(0.95, abs=0.015)


def test_ties_are_counted_by_rank() -> None:
    # A coin that shows H1 in 9 of 10: with 1,000 trials and rounding to whole numbers every rank is tied.
    generator = np.random.default_rng(0)
    scores = TrialScores(null=(generator.random(1000) < 0.1) * 1.0, alternative=(generator.random(1000) < 0.9) * 1.0)
    score = CorrectedThresholdEpsilon(delta=DELTA).estimate(scores)
    assert score.value is not None
    assert score.interval is not None
    assert 0.0 < score.value < np.log(9)
    # The counts at that threshold look better than its rank does.
    assert score.interval[0] <= score.value < score.interval[1]


def test_a_correction_costs_less_than_half_of_the_trials() -> None:
    scores = [gaussian_trials(1.0, 4000, seed) for seed in range(20)]
    corrected = np.median([CorrectedThresholdEpsilon(delta=DELTA).estimate(trials).value for trials in scores])
    halves = np.median([SplitThresholdEpsilon(delta=DELTA, share=0.5).estimate(trials).value for trials in scores])
    assert corrected > halves

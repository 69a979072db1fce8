"""Rates against scipy's exact binomial test, and epsilon against the definition of privacy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from gradleak.privacy.lower_bounds.estimator import (
    candidate_thresholds,
    certified_epsilon,
    counts_above,
    epsilon_of_rates,
    geometric_ranks,
    lower_rate,
    two_sided_interval,
    upper_rate,
)
from gradleak.scoring.roc import rate_interval


@pytest.mark.parametrize(
    ("count", "trials"), [(0, 10), (3, 10), (10, 10), (1, 5000), (4999, 5000), (0, 1), (812, 20_000)]
)
@pytest.mark.parametrize("error", [0.025, 0.001, 1e-6])
def test_bounds_of_rates_are_those_of_scipy(count: int, trials: int, error: float) -> None:
    theirs = scipy.stats.binomtest(count, trials).proportion_ci(confidence_level=1 - 2 * error, method="exact")
    # scipy stops its search for the root at an absolute error of 1e-12.
    low, high = float(lower_rate(count, trials, error)), float(upper_rate(count, trials, error))
    assert (low, high) == pytest.approx((theirs.low, theirs.high), rel=1e-8, abs=2e-12)
    assert rate_interval(count, trials, 1 - 2 * error) == pytest.approx((low, high), rel=1e-7)
    # By what they are: the tails of the binomial law at these rates.
    assert count == 0 or scipy.stats.binom.sf(count - 1, trials, low) == pytest.approx(error, rel=1e-6)
    assert count == trials or scipy.stats.binom.cdf(count, trials, high) == pytest.approx(error, rel=1e-6)


def test_epsilon_of_rates_takes_the_larger_of_both_forms() -> None:
    delta = 0.01
    assert float(epsilon_of_rates(0.1, 0.5, delta)) == pytest.approx(math.log((0.5 - delta) / 0.1))
    assert float(epsilon_of_rates(0.5, 0.9, delta)) == pytest.approx(math.log((1 - 0.5 - delta) / 0.1))
    assert float(epsilon_of_rates(0.5, 0.9, delta)) > math.log((0.9 - delta) / 0.5)
    assert float(epsilon_of_rates(0.0, 0.5, delta)) == math.inf
    # Rates that δ alone explains certify nothing, whatever the denominators are.
    assert float(epsilon_of_rates(0.0, 0.005, delta)) < 0.0
    assert float(epsilon_of_rates(1.0, 0.005, delta)) == -math.inf
    assert epsilon_of_rates([0.1, 0.5], [0.5, 0.9], delta).shape == (2,)


def test_randomized_response_has_the_epsilon_of_its_rates() -> None:
    # The answer is true with probability e^ε/(1 + e^ε), whose two rates meet the definition with equality.
    for epsilon in (0.1, 1.0, 5.0):
        right = 1 / (1 + math.exp(-epsilon))
        assert float(epsilon_of_rates(1 - right, right, 1e-12)) == pytest.approx(epsilon, rel=1e-6)


def test_counts_certify_what_their_worst_rates_show() -> None:
    low = scipy.stats.binomtest(400, 1000).proportion_ci(0.95).low
    high = scipy.stats.binomtest(20, 2000).proportion_ci(0.95).high
    found = float(certified_epsilon(20, 400, (2000, 1000), delta=1e-5, error=0.05))
    assert found == pytest.approx(math.log((low - 1e-5) / high), rel=1e-8)
    lowest, highest = two_sided_interval(20, 400, (2000, 1000), delta=1e-5, error=0.05)
    assert lowest < found < math.log(0.4 / 0.01) < highest
    assert two_sided_interval(0, 1000, (2000, 1000), delta=1e-5, error=0.05)[1] == math.inf


def test_thresholds_and_counts_by_hand() -> None:
    assert geometric_ranks(10) == [1, 2, 3, 4, 5, 7, 9]
    assert geometric_ranks(1) == [1]
    assert len(geometric_ranks(10**6)) < 70
    assert counts_above(np.array([1.0, 2.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0, 3.0])).tolist() == [4, 3, 1, 0]
    null, alternative = np.array([0.0, 1.0]), np.array([4.0, 5.0])
    assert candidate_thresholds(null, alternative)[0] == 2.5
    assert set(candidate_thresholds(null, alternative)[1:]) == {0.0, 1.0, 4.0, 5.0}

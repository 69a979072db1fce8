"""The truth against dp-accounting, and what trials can certify against other ways to it."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats

from gradleak.accounting import exact_gaussian_epsilon
from gradleak.privacy.lower_bounds import attainable_epsilon, gaussian_dp_epsilon, largest_certifiable_epsilon
from gradleak.results import InputError


@pytest.mark.parametrize("mu", [1e-3, 0.1, 0.5, 1.0, 2.0, 4.0, 20.0, 200.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_epsilon_of_a_distance_is_that_of_dp_accounting(mu: float, delta: float) -> None:
    with np.errstate(all="ignore"):
        theirs = dp_accounting.get_epsilon_gaussian(1 / mu, delta)
    assert gaussian_dp_epsilon(mu, delta) == pytest.approx(theirs, rel=1e-7, abs=1e-9)


def test_epsilon_of_a_distance_at_the_paper_s_setting() -> None:
    exact = exact_gaussian_epsilon(2.0, 0.1, 1e-5).value
    assert gaussian_dp_epsilon(20.0, 1e-5) == pytest.approx(exact, rel=1e-7)
    assert gaussian_dp_epsilon(0.0, 1e-5) == 0.0
    # Total variation below δ.
    assert gaussian_dp_epsilon(1e-5, 1e-5) == 0.0


def test_five_thousand_trials_certify_at_most_about_seven() -> None:
    largest = largest_certifiable_epsilon(5000, 5000, delta=1e-5)
    assert largest == pytest.approx(7.21, abs=0.005)
    low = scipy.stats.binomtest(5000, 5000).proportion_ci(0.95).low
    high = scipy.stats.binomtest(0, 5000).proportion_ci(0.95).high
    assert largest == pytest.approx(math.log((low - 1e-5) / high), rel=1e-8)
    # Of unlike samples the larger one makes the denominator.
    few = largest_certifiable_epsilon(5000, 100, delta=1e-5)
    assert few == pytest.approx(largest_certifiable_epsilon(100, 5000, delta=1e-5))
    assert largest_certifiable_epsilon(100, 100, delta=1e-5) < few < largest
    assert largest_certifiable_epsilon(3, 3, delta=1e-5) < 0.0


@pytest.mark.parametrize(("mu", "share"), [(0.5, 0.46), (1.0, 0.50), (2.0, 0.45), (3.0, 0.37), (4.0, 0.30)])
def test_thresholds_certify_half_of_the_truth_or_less_at_ten_thousand(mu: float, share: float) -> None:
    best = attainable_epsilon(mu, 10_000, delta=1e-5)
    assert best / gaussian_dp_epsilon(mu, 1e-5) == pytest.approx(share, abs=0.01)


def test_the_attainable_value_is_the_median_run_of_the_best_threshold() -> None:
    # Simulated counts at many thresholds, scipy's own bounds.
    mu, n, generator = 1.0, 2000, np.random.default_rng(0)
    medians = []
    for threshold in np.linspace(1.0, 4.5, 36):
        false, true = (generator.binomial(n, scipy.stats.norm.sf(threshold - shift), 400) for shift in (0.0, mu))
        high, low = scipy.stats.beta.isf(0.025, false + 1, n - false), scipy.stats.beta.ppf(0.025, true, n - true + 1)
        medians.append(np.median(np.log((low - 1e-5) / high)))
    assert attainable_epsilon(mu, n, delta=1e-5) == pytest.approx(max(medians), rel=0.03)


def test_more_trials_attain_more_and_noise_nothing() -> None:
    values = [attainable_epsilon(1.0, n, delta=1e-5) for n in (100, 1000, 10_000, 1_000_000)]
    assert values == sorted(values)
    assert values[-1] < gaussian_dp_epsilon(1.0, 1e-5)
    assert attainable_epsilon(0.0, 10_000, delta=1e-5) == 0.0


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="mu: expected a finite number of at least 0"):
        gaussian_dp_epsilon(-1.0, 1e-5)
    with pytest.raises(InputError, match="delta: expected a number between 0 and 1"):
        gaussian_dp_epsilon(1.0, 0.0)
    with pytest.raises(InputError, match="alternative: expected a whole number of at least 1"):
        largest_certifiable_epsilon(5, 0, delta=1e-5)
    with pytest.raises(InputError, match="n: expected a whole number of at least 1"):
        attainable_epsilon(1.0, 0, delta=1e-5)

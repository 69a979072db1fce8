from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from gradleak.scoring.roc import area, area_interval, rate_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (3, 10), (10, 10), (499, 500), (2500, 5000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_rates_have_the_interval_of_scipy(successes: int, trials: int, confidence: float) -> None:
    exact = scipy.stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    assert rate_interval(successes, trials, confidence) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_no_trial_says_nothing() -> None:
    assert rate_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.3, 0.97])
def test_the_coverage_of_a_rate_is_never_short(rate: float) -> None:
    """Summed over all outcomes of 60 trials, without simulation."""
    covered = 0.0
    for successes in range(61):
        low, high = rate_interval(successes, 60)
        covered += float(scipy.stats.binom.pmf(successes, 60, rate)) * (low <= rate <= high)
    assert covered >= 0.95


def test_shared_credit_lies_between_whole_numbers() -> None:
    below, between, above = (rate_interval(successes, 50) for successes in (20, 20.5, 21))
    assert below[0] < between[0] < above[0]
    assert below[1] < between[1] < above[1]


def test_an_area_with_the_variance_of_a_rate_has_wilsons_interval() -> None:
    for hits, trials in ((5, 50), (50, 50), (400, 1000)):
        share = hits / trials
        wilson = scipy.stats.binomtest(hits, trials).proportion_ci(0.95, method="wilson")
        found = area_interval(share, share * (1 - share) / trials, pairs=trials, ceiling=trials)
        assert found == pytest.approx((wilson.low, wilson.high), abs=1e-9)


def test_a_perfect_order_of_few_pairs_is_no_proof() -> None:
    low, high = area_interval(1.0, 0.0, pairs=10, ceiling=1000)
    assert high == 1.0
    assert low == pytest.approx(10 / (10 + scipy.stats.norm.isf(0.025) ** 2))
    # Ten disjoint pairs of a true area of 0.74 are all in order in 5 % of all cases, and 0.69 in 2.5 %.
    assert 0.025 ** (1 / 10) < low < 0.05 ** (1 / 10) + 0.02
    assert area_interval(0.0, 0.0, pairs=10, ceiling=1000)[0] == 0.0


def test_the_influence_of_a_trial_is_what_leaving_it_out_changes() -> None:
    random = np.random.default_rng(0)
    positive = random.random(80) < 0.4
    scores = np.round(random.standard_normal(80) + positive, 1)
    whole = area(scores, positive)
    assert whole.influence.sum() == pytest.approx(0.0, abs=1e-9)
    for place in range(0, 80, 7):
        kept = np.arange(80) != place
        change = whole.value - area(scores[kept], positive[kept]).value
        # A jackknife: change = influence / (n − 1), up to the share of its own kind.
        kind = positive.sum() if positive[place] else (~positive).sum()
        assert change == pytest.approx(whole.influence[place] / 80 * kind / (kind - 1), abs=1e-12)

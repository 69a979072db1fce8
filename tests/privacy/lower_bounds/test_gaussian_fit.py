"""The bound on μ, against scipy's binomial test and simulated mechanisms of other statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from tests.privacy.lower_bounds.trials import DELTA, gaussian_trials

from gradleak.accounting import exact_gaussian_epsilon
from gradleak.privacy.lower_bounds import GaussianFitEpsilon, TrialScores, gaussian_dp_epsilon, gaussian_dp_mu
from gradleak.results import InputError


def test_the_bound_is_scipy_s_for_the_share_of_right_answers() -> None:
    found = GaussianFitEpsilon(delta=DELTA).estimate(gaussian_trials(1.0, 5000, 2))
    trials = found.n
    assert trials == 9000
    right = round(found.details["right_answers"] * trials)
    low, high = scipy.stats.binomtest(right, trials).proportion_ci(0.95)
    mu = 2 * scipy.stats.norm.ppf(low)
    assert found.details["mu"] == pytest.approx(mu, rel=1e-6)
    assert found.value == pytest.approx(exact_gaussian_epsilon(mu, 1.0, DELTA).value, rel=1e-6)
    assert found.interval is not None
    assert found.interval[0] == found.value
    assert found.interval[1] == pytest.approx(gaussian_dp_epsilon(2 * scipy.stats.norm.ppf(high), DELTA), rel=1e-6)
    assert found.details["mu_estimate"] == pytest.approx(1.0, abs=0.06)


def test_the_interval_holds_the_truth_where_the_split_chose_the_wrong_direction() -> None:
    # Of hypotheses that are hardly told apart the split chooses the direction almost by chance.
    truth, mu, wrong, missed = gaussian_dp_epsilon(0.04, DELTA), 0.04, 0, 0
    for seed in range(200):
        found = GaussianFitEpsilon(delta=DELTA).estimate(gaussian_trials(mu, 2000, seed), seed=seed)
        assert found.interval is not None
        missed += not found.interval[0] <= truth <= found.interval[1]
        wrong += found.details["direction"] == "lower_values_for_h1"
    assert wrong > 40
    assert missed <= scipy.stats.binom.ppf(0.999, 200, 0.05)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_no_test_is_right_more_often_than_the_best_one(mu: float) -> None:
    # Φ(μ/2): what the bound rests on, by quadrature of the two densities.
    grid = np.linspace(-10.0, 10.0 + mu, 200_001)
    densities = np.maximum(scipy.stats.norm.pdf(grid), scipy.stats.norm.pdf(grid - mu))
    assert scipy.integrate.trapezoid(densities, grid) / 2 == pytest.approx(scipy.stats.norm.cdf(mu / 2), abs=1e-6)


def test_unlike_coins_have_lighter_tails_than_like_ones() -> None:
    # Hoeffding 1956, theorem 4, at a false-positive rate of 0.05 and a miss rate of 0.45: exact laws by convolution.
    each = 60
    law = np.convolve(
        scipy.stats.binom.pmf(np.arange(each + 1), each, 0.95), scipy.stats.binom.pmf(np.arange(each + 1), each, 0.55)
    )
    tails = law[::-1].cumsum()[::-1]
    like = scipy.stats.binom.sf(np.arange(2 * each + 1) - 1, 2 * each, 0.75)
    outer = like <= 0.25
    assert outer.sum() > 20
    assert (tails[outer] <= like[outer] + 1e-12).all()


def test_a_poorer_statistic_only_loses() -> None:
    # The distance of definition 7.2 in 50 dimensions, of a mechanism with μ = 3.
    generator = np.random.default_rng(0)
    truth, values, best = gaussian_dp_epsilon(3.0, DELTA), [], []
    for seed in range(30):
        noise = generator.standard_normal((2, 2000, 50))
        noise[1, :, 0] += 3.0
        null, alternative = np.linalg.norm(noise, axis=2)
        distance = TrialScores(null=null, alternative=alternative, name="distance")
        likelihood = TrialScores(null=noise[0, :, 0], alternative=noise[1, :, 0], name="likelihood_ratio")
        values.append(GaussianFitEpsilon(delta=DELTA).estimate(distance, seed=seed).value or 0.0)
        best.append(GaussianFitEpsilon(delta=DELTA).estimate(likelihood, seed=seed).value or 0.0)
    assert max(values) < truth
    assert 0.0 < np.median(values) < 0.5 * truth
    assert 0.9 * truth < np.median(best) < truth


def test_a_law_that_is_not_gaussian_breaks_the_assumption() -> None:
    # Laplace noise of scale 1 and a shift of 1 has ε = 1; a Gaussian curve through its rates says more.
    generator = np.random.default_rng(0)
    scores = TrialScores(null=generator.laplace(size=20_000), alternative=1.0 + generator.laplace(size=20_000))
    score = GaussianFitEpsilon(delta=DELTA).estimate(scores)
    assert score.value is not None
    assert score.value > 2.0
    assert "Gaussian trade-off curve assumed" in score.details["selection"]


def test_of_several_alternatives_the_farthest_is_bounded() -> None:
    # H1 draws one of three shifts of 1, 2 and 2.5 in directions of their own; the statistic is the mixture's likelihood ratio.
    generator, shifts = np.random.default_rng(1), np.diag([1.0, 2.0, 2.5])
    values = []
    for seed in range(100):
        null, noise = generator.standard_normal((2, 1500, 3))
        alternative = noise + shifts[generator.integers(0, 3, 1500)]
        null, alternative = (
            scipy.special.logsumexp(points @ shifts - (shifts**2).sum(axis=0) / 2, axis=1)
            for points in (null, alternative)
        )
        scores = TrialScores(null=null, alternative=alternative, name="likelihood_ratio")
        values.append(GaussianFitEpsilon(delta=DELTA).estimate(scores, seed=seed).value or 0.0)
    assert max(values) < gaussian_dp_epsilon(2.5, DELTA)
    assert np.median(values) > 0.2 * gaussian_dp_epsilon(2.5, DELTA)


def test_low_confidence_is_refused() -> None:
    with pytest.raises(InputError, match=r"GaussianFitEpsilon.confidence: expected at least 0.5, got 0.4"):
        GaussianFitEpsilon(delta=DELTA, confidence=0.4)
    assert math.isfinite(GaussianFitEpsilon(delta=DELTA).largest_certifiable(2, 2))


@pytest.mark.parametrize(("mu", "delta"), [(1e-3, 1e-2), (0.1, 1e-5), (1.0, 1e-5), (30.0, 1e-9)])
def test_mu_of_an_epsilon_is_the_inverse(mu: float, delta: float) -> None:
    epsilon = gaussian_dp_epsilon(mu, delta)
    if epsilon == 0.0:
        with pytest.raises(InputError, match="epsilon"):
            gaussian_dp_mu(epsilon, delta)
    else:
        assert gaussian_dp_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)

"""The recursion against the binomial law, the game against canaries of one run."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from tests.privacy.lower_bounds.trials import DELTA, gaussian_trials

from gradleak.privacy.lower_bounds import OneRunEpsilon, TradeOff, TrialScores, gaussian_dp_epsilon
from gradleak.privacy.lower_bounds.one_run import _inverse, _largest_refused, fair_coins, refuses
from gradleak.results import InputError, Outcome


def _fewest_refused(coins: int, guesses: int, epsilon: float, delta: float) -> int:
    inverse = _inverse(TradeOff.EPSILON_DELTA, epsilon, delta)
    return min(
        (right for right in range(guesses + 1) if refuses(coins, guesses, right, error=0.05, inverse=inverse)),
        default=guesses + 1,
    )


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("coins", "guesses"), [(200, 200), (400, 50), (30, 30)])
def test_the_recursion_keeps_the_level_for_randomized_response_and_wastes_little(
    epsilon: float, coins: int, guesses: int
) -> None:
    # For δ = 0 the worst mechanism guesses each coin rightly with probability e^ε/(1 + e^ε): a binomial law.
    fewest = _fewest_refused(coins, guesses, epsilon, 1e-15)
    right = 1 / (1 + math.exp(-epsilon))
    assert scipy.stats.binom.sf(fewest - 1, guesses, right) <= 0.05
    exact = int(scipy.stats.binom.isf(0.05, guesses, right)) + 1
    assert exact <= fewest <= exact + 2


def test_delta_costs_right_guesses() -> None:
    # The law of a mechanism that shows each coin outright with probability δ, else by randomized response.
    coins, epsilon, delta = 300, 1.0, 0.02
    fewest = _fewest_refused(coins, coins, epsilon, delta)
    right = delta + (1 - delta) / (1 + math.exp(-epsilon))
    assert scipy.stats.binom.sf(fewest - 1, coins, right) <= 0.05
    assert fewest > _fewest_refused(coins, coins, epsilon, 1e-12)


def test_the_parameter_found_is_where_refusing_ends() -> None:
    for curve in TradeOff:
        found = _largest_refused(1000, 400, 330, 0.05, DELTA, curve)
        assert refuses(1000, 400, 330, error=0.05, inverse=_inverse(curve, found, DELTA))
        assert not refuses(1000, 400, 330, error=0.05, inverse=_inverse(curve, found + 1e-6, DELTA))


def test_the_curves_are_those_of_the_definitions() -> None:
    masses = np.linspace(0.001, 0.999, 50)
    privacy, gaussian = _inverse(TradeOff.EPSILON_DELTA, 1.2, 0.05), _inverse(TradeOff.GAUSSIAN, 1.2, 0.05)
    for mass in masses:
        other = privacy(mass)
        # P(S) ≤ e^ε Q(S) + δ for the event and for its complement, one of them with equality.
        slack = math.exp(1.2) * other + 0.05 - mass, math.exp(1.2) * (1 - mass) + 0.05 - (1 - other)
        assert min(slack) >= -1e-12
        assert other == 0.0 or min(slack) == pytest.approx(0.0, abs=1e-12)
        assert scipy.stats.norm.ppf(mass) - scipy.stats.norm.ppf(gaussian(mass)) == pytest.approx(1.2)


def test_canaries_of_one_run_that_share_their_noise() -> None:
    # One release: the sum of the canaries that were taken in, each in a direction of its own, with Gaussian noise and an
    # offset common to all of them. Their scores are dependent, the coins are fair, and μ is known.
    generator, coins, mu = np.random.default_rng(0), 4000, 1.5
    truth, found = gaussian_dp_epsilon(mu, DELTA), []
    for seed in range(40):
        heads = generator.random(coins) < 0.5
        scores = mu * heads + generator.standard_normal(coins) + 5.0 * generator.standard_normal()
        trials = TrialScores(null=scores[~heads], alternative=scores[heads])
        score = OneRunEpsilon(delta=DELTA, coins=True).estimate(trials, seed=seed)
        assert score.details["coins"] == coins - coins // 5
        assert score.details["right_guesses"] <= score.details["guesses"] <= score.details["coins"]
        found.append(score.value or 0.0)
    assert max(found) < truth
    assert np.median(found) > 0.35 * truth


def test_fixed_numbers_of_trials_are_turned_into_fair_coins() -> None:
    assert fair_coins(10_000) == 19_434
    assert fair_coins(1) == 0
    heads = np.random.default_rng(0).binomial(fair_coins(200), 0.5, 100_000)
    assert np.mean((heads > 200) | (fair_coins(200) - heads > 200)) < 2e-4
    score = OneRunEpsilon(delta=DELTA).estimate(gaussian_trials(1.0, 1000, 0))
    assert score.details["coins"] == fair_coins(1000) - math.ceil(0.2 * fair_coins(1000))
    assert score.details["null_trials"] != score.details["alternative_trials"]


def test_numbers_that_no_fair_coin_gives_are_refused() -> None:
    scores = TrialScores(null=np.zeros(1000), alternative=np.zeros(400))
    with pytest.raises(
        InputError, match="expected about as many trials of H0 as of H1, as fair coins give, got 1000 and 400"
    ):
        OneRunEpsilon(delta=DELTA, coins=True).estimate(scores)
    with pytest.raises(
        InputError, match=r"OneRunEpsilon.curve: expected one of epsilon_delta, gaussian, got 'laplace'"
    ):
        OneRunEpsilon(delta=DELTA, curve="laplace")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"OneRunEpsilon.coins: expected True or False"):
        OneRunEpsilon(delta=DELTA, coins=1)  # type: ignore[arg-type]


def test_all_coins_right_is_what_can_be_certified_at_most() -> None:
    score = OneRunEpsilon(delta=DELTA, coins=True).estimate(
        TrialScores(null=np.linspace(0.0, 1.0, 500), alternative=np.linspace(2.0, 3.0, 500))
    )
    assert score.outcome is Outcome.SATURATED
    # All of m right has probability q^m for randomized response.
    assert score.details["largest_certifiable"] == pytest.approx(
        scipy.special.logit(0.05 ** (1 / score.details["coins"])), abs=0.35
    )

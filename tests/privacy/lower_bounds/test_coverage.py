"""Coverage by simulation: lower bounds stay below the truth as often as they say, and come near it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.stats
from tests.pairs import covering
from tests.privacy.lower_bounds.trials import DELTA

from gradleak.privacy.lower_bounds import (
    CorrectedThresholdEpsilon,
    EpsilonEstimator,
    GaussianFitEpsilon,
    OneRunEpsilon,
    SplitThresholdEpsilon,
    TradeOff,
    TrialScores,
    attainable_epsilon,
    gaussian_dp_epsilon,
)

BOUNDS: dict[str, EpsilonEstimator] = {
    "split": SplitThresholdEpsilon(delta=DELTA),
    "corrected": CorrectedThresholdEpsilon(delta=DELTA),
    "gaussian_fit": GaussianFitEpsilon(delta=DELTA),
    "one_run": OneRunEpsilon(delta=DELTA),
    "one_run_gaussian": OneRunEpsilon(delta=DELTA, curve=TradeOff.GAUSSIAN),
}
# Of these the numbers of trials alone say what any of them can certify.
DISTRIBUTION_FREE = ("split", "corrected", "one_run")


@cache
def _simulated(mu: float, trials: int, runs: int) -> dict[str, np.ndarray]:
    """Every bound in every run, all on the same trials."""
    generator = np.random.default_rng((17, round(1000 * mu), trials))
    found: dict[str, list[float]] = {name: [] for name in BOUNDS}
    for seed in range(runs):
        scores = TrialScores(null=generator.standard_normal(trials), alternative=mu + generator.standard_normal(trials))
        for name, estimator in BOUNDS.items():
            value = estimator.estimate(scores, seed=seed).value
            assert value is not None
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items()}


def _keeps_its_word(values: list[float | None], truth: float) -> bool:
    """Whether no more runs exceed the truth than a coverage of 95 % gives but once in a thousand times."""
    kept = sum(value is not None and value <= truth for value in values)
    return kept >= scipy.stats.binom.ppf(0.001, len(values), 0.95)


@covering("bound, mu", list(BOUNDS), [0.0, 0.5, 2.0], pairs=False)
def test_a_bound_stays_below_the_truth_in_95_of_100_runs(bound: str, mu: float) -> None:
    # U49 and U50, in 300 runs of 1,000 trials a hypothesis; with μ = 0 every value above 0 is wrong.
    values = _simulated(mu, 1000, 300)[bound]
    assert np.mean(values <= gaussian_dp_epsilon(mu, DELTA)) >= 0.95


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_the_gaussian_fit_reaches_80_percent_of_the_truth(mu: float) -> None:
    values = _simulated(mu, 10_000, 15)["gaussian_fit"]
    assert np.median(values) >= 0.8 * gaussian_dp_epsilon(mu, DELTA)


@pytest.mark.parametrize("bound", DISTRIBUTION_FREE)
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 3.0, 4.0])
def test_bounds_without_assumptions_reach_80_percent_of_the_best_threshold(bound: str, mu: float) -> None:
    values = _simulated(mu, 10_000, 15)[bound]
    assert np.median(values) >= 0.8 * attainable_epsilon(mu, 10_000, delta=DELTA)


@pytest.mark.parametrize("bound", DISTRIBUTION_FREE)
def test_laplace_noise_breaks_no_bound_that_assumes_nothing(bound: str) -> None:
    # A shift of 1 in Laplace noise of scale 1: ε is 1 up to δ, and attained in both tails, so that nothing is to spare.
    generator = np.random.default_rng(5)
    values = []
    for seed in range(150):
        scores = TrialScores(null=generator.laplace(size=2000), alternative=1.0 + generator.laplace(size=2000))
        values.append(BOUNDS[bound].estimate(scores, seed=seed).value)
    assert _keeps_its_word(values, 1.0)
    assert np.median(values) > 0.6


@pytest.mark.parametrize("bound", DISTRIBUTION_FREE)
def test_randomized_response_is_no_exception(bound: str) -> None:
    # Two values only, so that every threshold is tied: right with probability e^ε/(1 + e^ε), ε = 2.
    generator = np.random.default_rng(6)
    right = 1 / (1 + np.exp(-2.0))
    values = []
    for seed in range(150):
        answers = generator.random((2, 1000)) < np.array([[1 - right], [right]])
        scores = TrialScores(null=answers[0] * 1.0, alternative=answers[1] * 1.0)
        values.append(BOUNDS[bound].estimate(scores, seed=seed).value)
    assert _keeps_its_word(values, 2.0)
    assert np.median(values) > 1.5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.0, 2.0, 3.0, 4.0])
def test_a_thousand_runs_of_ten_thousand_trials(mu: float) -> None:
    truth, best = gaussian_dp_epsilon(mu, DELTA), attainable_epsilon(mu, 10_000, delta=DELTA)
    simulated = _simulated(mu, 10_000, 1000)
    for name, values in simulated.items():
        assert np.mean(values <= truth) >= 0.95, name
    if mu in (0.5, 1.0, 2.0):
        assert np.median(simulated["gaussian_fit"]) >= 0.8 * truth
    for name in DISTRIBUTION_FREE:
        assert np.median(simulated[name]) >= 0.8 * best, name

"""What travels with every number, and how it ends."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.privacy.lower_bounds.trials import DELTA, gaussian_trials

from gradleak.privacy.lower_bounds import (
    CorrectedThresholdEpsilon,
    Direction,
    EpsilonEstimator,
    GaussianFitEpsilon,
    OneRunEpsilon,
    PlugInEpsilon,
    SplitThresholdEpsilon,
    TrialScores,
    best_bound,
    gaussian_dp_epsilon,
)
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score

BOUNDS: list[EpsilonEstimator] = [
    SplitThresholdEpsilon(delta=DELTA),
    CorrectedThresholdEpsilon(delta=DELTA),
    GaussianFitEpsilon(delta=DELTA),
    OneRunEpsilon(delta=DELTA),
    OneRunEpsilon(delta=DELTA, curve="gaussian"),  # type: ignore[arg-type]
]
ALL: list[EpsilonEstimator] = [*BOUNDS, PlugInEpsilon(delta=DELTA)]


def _label(estimator: EpsilonEstimator) -> str:
    return f"{type(estimator).__name__}-{getattr(estimator, 'curve', 'no_curve')}"


each = pytest.mark.parametrize("estimator", ALL, ids=_label)
each_bound = pytest.mark.parametrize("estimator", BOUNDS, ids=_label)


@each
def test_everything_that_is_needed_to_read_it_travels_with_the_number(estimator: EpsilonEstimator) -> None:
    # U50.
    score = estimator.estimate(gaussian_trials(1.5, 1000, 0), seed=3)
    bound = estimator.evidence is Evidence.LOWER_BOUND
    assert score.name == ("epsilon_lower_bound" if bound else "epsilon_estimate")
    assert score.leakier is Leakier.HIGHER
    assert score.evidence is (Evidence.ESTIMATE if isinstance(estimator, PlugInEpsilon) else Evidence.LOWER_BOUND)
    assert score.outcome is Outcome.CONVERGED
    details = score.details
    assert details["delta"] == DELTA
    assert details["confidence"] == 0.95
    assert details["comparisons"] == 1
    assert details["statistic"] == "statistic"
    assert details["estimator"] == type(estimator).__name__
    assert len(details["selection"]) > 20
    assert details["direction"] == Direction.HIGHER.value
    assert score.n == details["null_trials"] + details["alternative_trials"] <= 2000
    assert score.value is not None
    assert 0.0 < score.value < details["largest_certifiable"]
    if score.interval is not None:
        assert score.interval[0] <= score.value <= score.interval[1]
    written = json.loads(json.dumps(score.to_dict()))
    assert Score.from_dict(written).to_dict() == score.to_dict()


@each
def test_both_directions_are_found(estimator: EpsilonEstimator) -> None:
    # U49: the reverse direction was missed.
    forward = estimator.estimate(gaussian_trials(2.0, 2000, 5), seed=1)
    backward = estimator.estimate(gaussian_trials(2.0, 2000, 5, reversed_=True), seed=1)
    assert forward.value is not None
    assert backward.value is not None
    assert forward.details["direction"] == "higher_values_for_h1"
    assert backward.details["direction"] == "lower_values_for_h1"
    assert backward.value == pytest.approx(forward.value, rel=0.02)
    if forward.details["threshold"] is not None:
        assert backward.details["threshold"] == pytest.approx(-forward.details["threshold"], abs=0.1)


@each
def test_either_hypothesis_may_have_the_heavier_tail(estimator: EpsilonEstimator) -> None:
    # Privacy binds both ways: trials with the hypotheses in each other's place certify as much.
    scores = gaussian_trials(2.0, 2000, 5)
    swapped = TrialScores(null=scores.alternative, alternative=scores.null)
    one, other = (estimator.estimate(trials, seed=1) for trials in (scores, swapped))
    assert one.value is not None
    assert other.value == pytest.approx(one.value, rel=0.25)
    assert other.details["direction"] == "lower_values_for_h1"


@each
def test_same_seed_same_number_and_trials_stay_as_they_are(estimator: EpsilonEstimator) -> None:
    scores = gaussian_trials(1.0, 500, 0)
    before = scores.null.copy(), scores.alternative.copy()
    assert estimator.estimate(scores, seed=2).to_dict() == estimator.estimate(scores, seed=2).to_dict()
    assert np.array_equal(before[0], scores.null)
    assert np.array_equal(before[1], scores.alternative)


@each
def test_order_and_scale_of_the_trials_change_nothing_that_matters(estimator: EpsilonEstimator) -> None:
    scores = gaussian_trials(2.0, 2000, 7)
    twice = TrialScores(null=np.exp(scores.null), alternative=np.exp(scores.alternative))
    one, other = estimator.estimate(scores, seed=0), estimator.estimate(twice, seed=0)
    assert one.value is not None
    # Ranks are all that counts.
    assert other.value == pytest.approx(one.value, rel=0.01)


@each
def test_perfect_separation_is_saturated_and_keeps_its_value(estimator: EpsilonEstimator) -> None:
    score = estimator.estimate(gaussian_trials(50.0, 5000, 0))
    assert score.outcome is Outcome.SATURATED
    assert "saturated, not resolvable" in score.note
    assert score.value is not None
    assert score.value >= score.details["largest_certifiable"] - 0.5
    assert score.value <= score.details["largest_certifiable"] + 1e-9
    assert score.value < gaussian_dp_epsilon(50.0, DELTA)


@each_bound
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_handful_of_trials_resolves_nothing(estimator: EpsilonEstimator, count: int) -> None:
    # U51: a word, neither 0 nor NaN.
    score = estimator.estimate(TrialScores(null=np.zeros(count), alternative=np.ones(count)))
    if score.details["largest_certifiable"] > 0.0:
        assert isinstance(estimator, GaussianFitEpsilon)  # whose shape is assumed
        return
    assert score.outcome is Outcome.NOT_RESOLVABLE
    assert score.value is None
    assert score.interval is None
    assert "can certify no epsilon above 0" in score.note


@each_bound
def test_an_error_that_a_confidence_cannot_express_is_kept(estimator: EpsilonEstimator) -> None:
    # 1 - error would be 1.
    scores = gaussian_trials(4.0, 2000, 0)
    for strict in (replace(estimator, comparisons=10**15), replace(estimator, confidence=1 - 2**-53)):
        score = strict.estimate(scores)
        assert (score.value or 0.0) < gaussian_dp_epsilon(4.0, DELTA)
        assert score.details["largest_certifiable"] < 35.0


def test_nothing_certified_is_never_saturated() -> None:
    # All that ten trials can certify is 0.53, and at so large a δ 2,000 less.
    estimator = SplitThresholdEpsilon(delta=DELTA)
    noise, apart = (estimator.estimate(gaussian_trials(mu, 10, 1)) for mu in (0.0, 50.0))
    assert (noise.value, noise.outcome) == (0.0, Outcome.CONVERGED)
    assert "does not show that nothing leaks" in noise.note
    few = CorrectedThresholdEpsilon(delta=0.99)
    assert 0.0 < few.largest_certifiable(2000, 2000) < 0.5
    assert few.estimate(gaussian_trials(0.0, 2000, 1)).outcome is Outcome.CONVERGED
    assert apart.outcome is Outcome.SATURATED


def test_two_hundred_trials_certify_no_rate_of_one_in_a_thousand() -> None:
    # U51: a false-positive rate below 1.9 % cannot be told from 0.
    score = CorrectedThresholdEpsilon(delta=DELTA).estimate(gaussian_trials(6.0, 200, 0))
    assert score.outcome is Outcome.SATURATED
    assert score.value is not None
    assert score.value < math.log(1 / 0.001) - 2.0


@each
def test_ties_and_constants_certify_nothing(estimator: EpsilonEstimator) -> None:
    constant = TrialScores(null=np.zeros(1000), alternative=np.zeros(1000))
    score = estimator.estimate(constant)
    assert score.value == 0.0
    assert score.outcome is Outcome.CONVERGED
    generator = np.random.default_rng(0)
    coin = TrialScores(null=generator.integers(0, 2, 1000), alternative=generator.integers(0, 2, 1000))
    value = estimator.estimate(coin).value
    assert value is not None
    assert value < (0.3 if isinstance(estimator, PlugInEpsilon) else 0.05)


@each_bound
def test_nothing_certified_is_said_to_be_no_evidence_of_safety(estimator: EpsilonEstimator) -> None:
    score = estimator.estimate(gaussian_trials(0.0, 1000, 1))
    assert score.value == 0.0
    assert "does not show that nothing leaks" in score.note


def test_more_comparisons_cost_confidence_and_cover_the_choice() -> None:
    # U52.
    scores = gaussian_trials(1.0, 2000, 0)
    one, forty = (SplitThresholdEpsilon(delta=DELTA, comparisons=count).estimate(scores) for count in (1, 40))
    assert one.value is not None
    assert forty.value is not None
    assert forty.value < one.value
    assert forty.details["comparisons"] == 40
    # Each of 40 at an error of 0.05/40.
    strict = SplitThresholdEpsilon(delta=DELTA, confidence=1 - 0.05 / 40).estimate(scores)
    assert forty.value == pytest.approx(strict.value)

    uncovered = best_bound([one, SplitThresholdEpsilon(delta=DELTA).estimate(scores, seed=1)])
    assert "the largest of 2 bounds" in uncovered.note
    assert "does not cover the choice" in uncovered.note
    assert best_bound([forty] * 40) is forty
    with pytest.raises(InputError, match="estimates are no bounds"):
        best_bound([PlugInEpsilon(delta=DELTA).estimate(scores)])
    with pytest.raises(InputError, match="at least one"):
        best_bound([])


def test_the_best_of_forty_noises_would_not_be_covered() -> None:
    # U52: 25 sweeps of 40 statistics that say nothing, of which the largest bound is told.
    scores = [gaussian_trials(0.0, 400, seed) for seed in range(40 * 25)]
    wrong = []
    for comparisons in (1, 40):
        estimator = GaussianFitEpsilon(delta=DELTA, comparisons=comparisons)
        values = [estimator.estimate(trials).value for trials in scores]
        told = [
            any(value is None or value > 0.0 for value in values[start : start + 40]) for start in range(0, 1000, 40)
        ]
        wrong.append(sum(told))
    assert wrong[0] >= 10
    assert wrong[1] <= 2


@each
def test_numbers_out_of_range_are_refused(estimator: EpsilonEstimator) -> None:
    kind = type(estimator)
    with pytest.raises(InputError, match=rf"{kind.__name__}.delta: expected a number between 0 and 1"):
        kind(delta=0.0)
    with pytest.raises(InputError, match=rf"{kind.__name__}.confidence: expected a number between 0 and 1"):
        kind(delta=DELTA, confidence=1.0)
    with pytest.raises(InputError, match=rf"{kind.__name__}.comparisons: expected a whole number of at least 1"):
        kind(delta=DELTA, comparisons=0)
    if hasattr(estimator, "share"):
        with pytest.raises(InputError, match=rf"{kind.__name__}.share"):
            kind(delta=DELTA, share=1.0)  # type: ignore[call-arg]

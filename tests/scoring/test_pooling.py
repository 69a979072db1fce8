from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from gradleak.results import InputError, Outcome, Score
from gradleak.scoring.classification import leaks, score_posteriors
from gradleak.scoring.pooling import pooled

Floats = NDArray[np.float64]


def game(random: np.random.Generator, trials: int, distance: float) -> list[Score]:
    truth = random.integers(0, 2, trials)
    evidence = distance * (random.standard_normal(trials) + distance * truth - distance / 2)
    return score_posteriors(np.stack([np.zeros(trials), evidence], axis=1), truth, blind=0.5)


def named(scores: list[Score], name: str) -> Score:
    return next(score for score in scores if score.name == name)


def number(score: Score) -> float:
    assert score.value is not None
    return score.value


def test_mean_and_deviation_over_seeds_are_those_of_numpy() -> None:
    random = np.random.default_rng(0)
    seeds = [game(random, 300, distance) for distance in (1.0, 1.2, 1.4)]
    for place, score in enumerate(pooled(seeds)):
        values = [scores[place].value for scores in seeds]
        if None in values:
            continue
        assert score.value == pytest.approx(np.mean(values))  # type: ignore[arg-type]
        assert score.details["sd"] == pytest.approx(np.std(values, ddof=1))  # type: ignore[arg-type]
        assert score.details["per_seed"] == values
        assert (score.n, score.details["seeds"]) == (900, 3)
        assert score.interval is not None
        assert score.interval[0] <= number(score) <= score.interval[1]
    confusion = [named(scores, "attack_success_rate").details["confusion"] for scores in seeds]
    np.testing.assert_array_equal(
        named(pooled(seeds), "attack_success_rate").details["confusion"], np.sum(confusion, axis=0)
    )


def test_seeds_that_differ_have_students_interval() -> None:
    random = np.random.default_rng(1)
    seeds = [game(random, 2000, distance) for distance in (0.5, 1.0, 1.5, 2.0)]
    values = [number(named(scores, "auroc")) for scores in seeds]
    student = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    assert named(pooled(seeds), "auroc").interval == pytest.approx((student[0], min(student[1], 1.0)))


def test_seeds_that_agree_keep_the_uncertainty_of_their_trials() -> None:
    perfect = score_posteriors(np.log([[0.9, 0.1], [0.1, 0.9]] * 50), [0, 1] * 50, blind=0.5)
    score = named(pooled([perfect] * 3), "auroc")
    assert score.value == 1.0
    assert score.details["sd"] == 0.0
    assert score.interval is not None
    assert score.interval[0] < 0.99
    # Three times the trials make the distance shorter by the root of three.
    single = named(perfect, "auroc").interval
    assert single is not None
    assert 1 - score.interval[0] == pytest.approx((1 - single[0]) / np.sqrt(3))


def test_one_seed_says_what_its_interval_covers() -> None:
    only = pooled([game(np.random.default_rng(2), 300, 1.0)])
    assert all("one seed" in score.note for score in only if score.value is not None)
    assert named(only, "auroc").details["bootstrap_interval"] is None
    assert named(only, "auroc").details["sd"] is None


def test_nothing_found_is_no_leak_although_its_mean_is_above_zero() -> None:
    random = np.random.default_rng(3)
    seeds = []
    for _ in range(5):
        seeds.append(score_posteriors(random.standard_normal((200, 2)), random.integers(0, 2, 200), blind=0.5))
    advantage = named(pooled(seeds), "advantage")
    assert number(advantage) > 0
    assert advantage.details["unclipped"] < number(advantage)
    assert not leaks(advantage)
    assert leaks(named(pooled([game(random, 200, 2.0) for _ in range(3)]), "advantage"))


def test_a_second_seed_does_not_take_a_leak_back() -> None:
    """Two seeds of large advantages that differ a little: Student's interval over seeds holds nearly everything."""
    random = np.random.default_rng(8)
    seeds = [game(random, 500, distance) for distance in (1.5, 2.5)]
    advantage = named(pooled(seeds), "advantage")
    assert all(leaks(named(scores, "advantage")) for scores in seeds)
    assert advantage.interval is not None
    assert advantage.interval[0] == 0.0
    assert leaks(advantage)
    assert "more than chance in these 2 seeds" in advantage.note


def test_seeds_without_a_value_are_counted() -> None:
    random = np.random.default_rng(4)
    few, many = game(random, 100, 1.0), game(random, 2000, 1.0)
    score = named(pooled([few, many]), "tpr_at_fpr")
    assert score.details["seeds"] == 1
    assert "1 of 2 seeds without a value (not_resolvable" in score.note
    lost = named(pooled([few, few]), "tpr_at_fpr")
    assert (lost.value, lost.outcome) == (None, Outcome.NOT_RESOLVABLE)


def test_the_mean_curve_lies_between_those_of_the_seeds() -> None:
    random = np.random.default_rng(5)
    seeds = [game(random, 800, 0.7), game(random, 800, 2.0)]
    mean = named(pooled(seeds), "auroc").details["roc"]
    assert (mean["fpr"][0], mean["fpr"][-1], mean["tpr"][-1]) == (0.0, 1.0, 1.0)
    low, high = (named(scores, "auroc").details["roc"] for scores in seeds)
    for rate in (0.05, 0.2, 0.5):
        middle = np.interp(rate, mean["fpr"], mean["tpr"])
        assert np.interp(rate, low["fpr"], low["tpr"]) < middle < np.interp(rate, high["fpr"], high["tpr"])


def test_same_seed_same_numbers() -> None:
    seeds = [game(np.random.default_rng(place), 300, 1.0) for place in range(3)]
    assert pooled(seeds) == pooled(seeds)
    assert pooled(seeds, seed=1)[0].details["bootstrap_interval"] != pooled(seeds)[0].details["bootstrap_interval"]


@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.03), (5, 0.03), (5, 0.0)])
def test_the_interval_over_seeds_covers_the_mean_of_all_seeds(seeds: int, spread: float) -> None:
    """Where seeds differ the percentile bootstrap falls short; Student's interval does not."""
    random, hits, short, games, trials = np.random.default_rng(6), 0, 0, 100, 400
    for _ in range(games):
        scores = []
        for rate in np.clip(random.normal(0.8, spread, seeds), 0, 1):
            right = (np.arange(trials) < random.binomial(trials, rate)).astype(np.int64)
            # A guess of 1 in every trial, right where the truth is 1.
            scores.append(score_posteriors(np.tile([-1.0, 0.0], (trials, 1)), right, blind=0.5)[:1])
        (score,) = pooled(scores, resamples=100)
        assert score.interval is not None
        hits += score.interval[0] <= 0.8 <= score.interval[1]
        low, high = score.details["bootstrap_interval"]
        short += low <= 0.8 <= high
    assert 0.9 * games <= hits
    assert short <= hits


def test_scores_of_another_kind_are_refused() -> None:
    random = np.random.default_rng(7)
    with pytest.raises(InputError, match="at least one seed"):
        pooled([])
    with pytest.raises(InputError, match="same scores"):
        pooled([game(random, 50, 1.0), game(random, 50, 1.0)[:2]])

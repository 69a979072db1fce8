from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, roc_auc_score, roc_curve

from gradleak.results import Evidence, InputError, Outcome, Score
from gradleak.scoring.classification import confusion, leaks, score_posteriors
from gradleak.scoring.roc import class_scores, curve

Floats = NDArray[np.float64]
Trials = tuple[Floats, NDArray[np.int64]]


def normalized(logs: Floats) -> Floats:
    return logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)


def binormal(random: np.random.Generator, trials: int, distance: float, share: float = 0.5) -> Trials:
    """Two values whose evidence is normal, `distance` apart; posteriors by Bayes' rule with even odds."""
    truth = (random.random(trials) < share).astype(np.int64)
    evidence = distance * (random.standard_normal(trials) + distance * truth - distance / 2)
    return normalized(np.stack([np.zeros(trials), evidence], axis=1)), truth


def many_classes(random: np.random.Generator, trials: int, classes: int, distance: float) -> Trials:
    truth = random.integers(0, classes, trials)
    logs = distance * random.standard_normal((trials, classes))
    logs[np.arange(trials), truth] += distance**2
    return normalized(logs), truth


def by_name(scores: list[Score]) -> dict[str, Score]:
    return {score.name: score for score in scores}


def value(score: Score) -> float:
    assert score.value is not None
    return score.value


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_numbers_are_those_of_scikit_learn(classes: int) -> None:
    logs, truth = many_classes(np.random.default_rng(classes), 3000, classes, 0.9)
    found = by_name(score_posteriors(logs, truth, blind=1 / classes))
    guesses = logs.argmax(axis=1)
    assert value(found["attack_success_rate"]) == pytest.approx(float((guesses == truth).mean()))
    posterior = np.exp(logs)
    sklearn = roc_auc_score(truth, posterior[:, 1] if classes == 2 else posterior, multi_class="ovr", average="macro")
    assert value(found["auroc"]) == pytest.approx(float(sklearn), abs=1e-12)
    table = found["attack_success_rate"].details["confusion"]
    np.testing.assert_array_equal(table, confusion_matrix(truth, guesses, labels=range(classes)))
    rates = []
    for place in [1] if classes == 2 else range(classes):
        false, true, _ = roc_curve(truth == place, posterior[:, place], drop_intermediate=False)
        # The highest point at 1 %: curves rise straight up.
        rates.append(max(true[false <= 0.01 + 1e-12]))
    assert value(found["tpr_at_fpr"]) == pytest.approx(float(np.mean(rates)), abs=1e-12)
    assert value(found["advantage"]) == pytest.approx((np.mean(guesses == truth) - 1 / classes) / (1 - 1 / classes))
    assert all(score.evidence is Evidence.ATTACK and score.n == 3000 for score in found.values())


def test_tied_scores_are_accepted_by_lot() -> None:
    truth = np.array([0] * 100 + [1] * 100)
    # Half of the positives and a tenth of the negatives share the highest score.
    high = np.concatenate([np.arange(100) < 10, np.arange(100) < 50])
    logs = normalized(np.stack([np.zeros(200), np.where(high, 2.0, -2.0)], axis=1))
    found = score_posteriors(logs, truth, blind=0.5, false_positive_rates=[0.05, 0.1, 0.55])
    # Linear between the corners (0, 0), (0.1, 0.5) and (1, 1), as numpy interpolates them.
    for score, rate in zip(found[3:], (0.05, 0.1, 0.55), strict=True):
        assert value(score) == pytest.approx(np.interp(rate, [0, 0.1, 1], [0, 0.5, 1]))


def test_ties_of_the_guess_share_the_credit_whatever_the_order_of_the_values() -> None:
    logs = np.log([[0.4, 0.4, 0.2], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7]])
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        place = np.argsort(order)
        scores = by_name(score_posteriors(logs[:, order], place[[0, 2, 2]], blind=0.5))
        assert value(scores["attack_success_rate"]) == pytest.approx((0.5 + 1 / 3 + 1) / 3)
        assert scores["attack_success_rate"].details["ties"] == 2
    assert confusion(logs, [0, 2, 2]).sum() == pytest.approx(3)


def test_saturated_posteriors_still_have_an_order() -> None:
    """With many rounds posteriors are 1 − 1e-40, which no float tells from 1; their log-odds do."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, 2000)
    odds = 200 + 20 * (random.standard_normal(2000) + 2 * truth)
    logs = normalized(np.stack([np.zeros(2000), odds], axis=1))
    assert len(np.unique(np.exp(logs[:, 1]))) == 1
    found = by_name(score_posteriors(logs, truth, blind=0.5))
    assert value(found["auroc"]) == pytest.approx(float(roc_auc_score(truth, odds)), abs=1e-12)
    three = np.concatenate([logs, np.full((2000, 1), -np.inf)], axis=1)
    np.testing.assert_allclose(class_scores(three)[:, 1], odds, atol=1e-9)


def test_an_impossible_value_is_a_posterior() -> None:
    logs = np.array([[0.0, -np.inf], [-np.inf, 0.0], [-0.7, -0.7]])
    found = by_name(score_posteriors(logs, [0, 1, 1], blind=0.5))
    assert value(found["attack_success_rate"]) == pytest.approx(2.5 / 3)
    assert value(found["auroc"]) == 1.0


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=2, max_size=25),
    seed=st.integers(0, 10**6),
)
def test_auroc_is_the_share_of_pairs_in_the_right_order(rows: list[list[int]], seed: int) -> None:
    logs = np.array(rows, dtype=np.float64)
    truth = np.random.default_rng(seed).integers(0, 3, len(rows))
    found = by_name(score_posteriors(logs, truth, blind=0.5))["auroc"]
    if len(set(truth.tolist())) < 2:
        assert found.outcome is Outcome.NOT_RESOLVABLE
        return
    areas = []
    posterior = np.exp(normalized(logs))
    odds = np.round(np.log(posterior) - np.log1p(-posterior), 7)
    for place in set(truth.tolist()):
        pairs = odds[truth == place, place][:, None] - odds[truth != place, place][None, :]
        areas.append(float(np.mean(np.where(pairs == 0, 0.5, pairs > 0))))
    assert value(found) == pytest.approx(np.mean(areas), abs=1e-12)
    assert found.interval is not None
    assert 0.0 <= found.interval[0] <= value(found) <= found.interval[1] <= 1.0


# Degenerate games: a word, never a digit.


def test_too_few_negatives_for_a_rate_are_not_resolvable() -> None:
    logs, truth = binormal(np.random.default_rng(1), 200, 2.0)
    score = score_posteriors(logs, truth, blind=0.5, false_positive_rates=[0.001])[3]
    assert (score.value, score.outcome) == (None, Outcome.NOT_RESOLVABLE)
    assert "5000 negatives" in score.note
    assert "five" not in score.note
    assert score.interval is None


@pytest.mark.parametrize(("negatives", "resolved"), [(499, False), (500, True)])
def test_five_expected_false_alarms_resolve_a_rate(negatives: int, resolved: bool) -> None:
    truth = np.array([0] * negatives + [1] * 300)
    evidence = np.random.default_rng(2).standard_normal(len(truth))
    logs = normalized(np.stack([np.zeros(len(truth)), evidence], axis=1))
    score = score_posteriors(logs, truth, blind=0.6)[3]
    assert (score.value is not None) is resolved
    more = score_posteriors(logs, truth, blind=0.6, least_false_positives=10)[3]
    assert more.outcome is Outcome.NOT_RESOLVABLE


def test_one_value_only_has_a_success_rate_and_nothing_else() -> None:
    found = by_name(score_posteriors(np.log([[0.3, 0.7], [0.6, 0.4]]), [1, 1], blind=0.5))
    assert value(found["attack_success_rate"]) == 0.5
    for name in ("auroc", "tpr_at_fpr"):
        assert (found[name].value, found[name].outcome) == (None, Outcome.NOT_RESOLVABLE)
        assert "value 1" in found[name].note


def test_values_that_never_occurred_are_said() -> None:
    logs, truth = many_classes(np.random.default_rng(3), 200, 3, 1.0)
    found = by_name(score_posteriors(logs[truth < 2], truth[truth < 2], blind=0.5))["auroc"]
    assert found.details["classes"] == [0, 1]
    assert "left out: 2" in found.note


def test_no_trial_and_no_finite_posterior_have_no_number() -> None:
    for logs, truth, outcome in (
        (np.zeros((0, 2)), np.zeros(0, dtype=np.int64), Outcome.NOT_RESOLVABLE),
        (np.array([[0.0, np.nan], [0.0, -1.0]]), np.array([0, 1]), Outcome.NOT_FINITE),
        (np.full((2, 2), -np.inf), np.array([0, 1]), Outcome.NOT_FINITE),
    ):
        scores = score_posteriors(logs, truth, blind=0.5, false_positive_rates=[0.01, 0.1])
        assert len(scores) == 5
        assert all(score.value is None and score.outcome is outcome for score in scores)


def test_a_constant_posterior_is_chance() -> None:
    truth = np.array([0] * 500 + [1] * 500)
    found = by_name(score_posteriors(np.tile(np.log([0.5, 0.5]), (1000, 1)), truth, blind=0.5))
    assert value(found["auroc"]) == 0.5
    assert value(found["attack_success_rate"]) == 0.5
    assert value(found["advantage"]) == 0.0
    assert value(found["tpr_at_fpr"]) == pytest.approx(0.01)
    assert not leaks(found["advantage"])


def test_a_certain_blind_guess_leaves_no_advantage() -> None:
    found = by_name(score_posteriors(np.log([[0.9, 0.1], [0.8, 0.2]]), [0, 0], blind=1.0))["advantage"]
    assert (found.value, found.outcome) == (None, Outcome.NOT_INFORMATIVE)
    assert not leaks(found)


def test_leaking_reads_the_interval_before_it_is_clipped() -> None:
    random = np.random.default_rng(4)
    weak = by_name(score_posteriors(*binormal(random, 400, 0.1), blind=0.5))["advantage"]
    strong = by_name(score_posteriors(*binormal(random, 400, 2.0), blind=0.5))["advantage"]
    assert weak.details["unclipped_interval"][0] < 0 < strong.details["unclipped_interval"][0]
    assert weak.interval is not None
    assert weak.interval[0] == 0.0
    assert (leaks(weak), leaks(strong)) == (False, True)
    with pytest.raises(InputError, match="expected the score advantage"):
        leaks(by_name(score_posteriors(*binormal(random, 50, 1.0), blind=0.5))["auroc"])


def test_a_blind_guess_that_the_trials_contradict_is_said() -> None:
    logs, truth = np.tile(np.log([0.2, 0.8]), (400, 1)), np.array([1] * 320 + [0] * 80)
    wrong = by_name(score_posteriors(logs, truth, blind=0.5))["advantage"]
    assert "too large" in wrong.note
    assert wrong.details["blind_observed"] == 0.8
    right = by_name(score_posteriors(logs, truth, blind=0.8))["advantage"]
    assert right.note == ""
    assert not leaks(right)


def test_an_order_that_is_reversed_is_said() -> None:
    logs, truth = binormal(np.random.default_rng(5), 500, 1.5)
    assert "wrong way round" in by_name(score_posteriors(logs[:, ::-1], truth, blind=0.5))["auroc"].note


@pytest.mark.parametrize(
    ("logs", "truth", "settings", "message"),
    [
        (np.zeros((3, 1)), [0, 0, 0], {}, "m of at least 2"),
        (np.zeros((3, 2)), [0, 1], {}, "expected 3 whole numbers"),
        (np.zeros((2, 2)), [0.0, 1.0], {}, "whole numbers"),
        (np.zeros((2, 2)), [0, 2], {}, "expected 0 to 1"),
        (np.zeros((2, 2)), [0, 1], {"blind": 0.0}, "in \\(0, 1\\]"),
        (np.zeros((2, 2)), [0, 1], {"false_positive_rates": [0.0]}, "false_positive_rates"),
        (np.zeros((2, 2)), [0, 1], {"confidence": 1.0}, "confidence"),
    ],
)
def test_what_does_not_fit_is_refused(
    logs: Floats, truth: list[int], settings: dict[str, object], message: str
) -> None:
    arguments: dict[str, object] = {"blind": 0.5, **settings}
    with pytest.raises(InputError, match=message):
        score_posteriors(logs, truth, **arguments)  # type: ignore[arg-type]


def test_curves_are_thinned_and_keep_both_ends() -> None:
    logs, truth = binormal(np.random.default_rng(6), 20000, 1.5)
    roc = by_name(score_posteriors(logs, truth, blind=0.5))["auroc"].details["roc"]
    false, true = np.array(roc["fpr"]), np.array(roc["tpr"])
    assert len(false) <= 100
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert (np.diff(false) >= 0).all()
    assert (np.diff(true) >= 0).all()
    sklearn = roc_curve(truth, logs[:, 1])
    for rate in (1e-3, 0.01, 0.1, 0.5):
        assert np.interp(rate, false, true) == pytest.approx(np.interp(rate, *sklearn[:2]), abs=0.03)


@pytest.mark.parametrize("blind", [0.5, 0.8])
def test_the_interval_of_an_advantage_is_that_of_the_success_rate_over_what_a_guess_leaves(blind: float) -> None:
    logs, truth = binormal(np.random.default_rng(3), 400, 2.5, 0.3)
    scores = by_name(score_posteriors(logs, truth, blind=blind))
    rate, advantage = scores["attack_success_rate"], scores["advantage"]
    want = [(end - blind) / (1 - blind) for end in ends(rate)]
    assert advantage.details["unclipped_interval"] == pytest.approx(want)
    assert ends(advantage) == pytest.approx([max(end, 0.0) for end in want])


def test_the_curve_of_several_values_is_their_mean() -> None:
    logs, truth = many_classes(np.random.default_rng(7), 1500, 4, 1.0)
    roc = by_name(score_posteriors(logs, truth, blind=0.25))["auroc"].details["roc"]
    assert roc["of"] == "mean"
    odds = class_scores(logs)
    lines = [curve(odds[:, place], truth == place) for place in range(4)]
    for rate, found in list(zip(roc["fpr"], roc["tpr"], strict=True))[::10]:
        assert found == pytest.approx(np.mean([line.rate(rate * line.negatives) for line in lines]))


# Coverage: the stated interval holds the truth as often as it says.


def ends(score: Score) -> tuple[float, float]:
    assert score.interval is not None
    return score.interval


@pytest.mark.parametrize(
    ("trials", "distance", "share"), [(150, 0.0, 0.5), (300, 1.0, 0.3), (1200, 2.0, 0.5), (600, 3.0, 0.2)]
)
def test_intervals_cover_the_truth(trials: int, distance: float, share: float) -> None:
    random = np.random.default_rng(trials)
    normal = scipy.stats.norm
    truths: dict[str, Callable[[], float]] = {
        "attack_success_rate": lambda: float(normal.cdf(distance / 2)) if distance else 1 / 2,
        "auroc": lambda: float(normal.cdf(distance / np.sqrt(2))),
        "tpr_at_fpr": lambda: float(normal.sf(normal.isf(0.1) - distance)),
    }
    hits = dict.fromkeys(truths, 0)
    games = 200
    for _ in range(games):
        logs, truth = binormal(random, trials, distance, share)
        if distance == 0:
            logs = random.standard_normal((trials, 2))
        for score in score_posteriors(logs, truth, blind=0.5, false_positive_rates=[0.1]):
            if score.name in truths:
                low, high = ends(score)
                hits[score.name] += low <= truths[score.name]() <= high
    for name, found in hits.items():
        assert 0.9 * games <= found, (name, found)
    assert hits["auroc"] <= 0.995 * games
    assert hits["attack_success_rate"] <= 0.99 * games


def test_the_interval_of_a_macro_auroc_covers_it() -> None:
    """Areas of several values share their trials; their variance is that of the mean, not the mean of theirs."""
    random = np.random.default_rng(8)
    distance, classes = 0.8, 4
    logs, truth = many_classes(random, 60_000, classes, distance)
    whole = value(by_name(score_posteriors(logs, truth, blind=0.5))["auroc"])
    hits = 0
    for _ in range(100):
        low, high = ends(by_name(score_posteriors(*many_classes(random, 300, classes, distance), blind=0.5))["auroc"])
        hits += low <= whole <= high
    assert 90 <= hits <= 99


def test_nothing_to_find_leaks_in_few_games() -> None:
    """The lower end of a two-sided interval of 95 % lies above p* in at most one game in forty."""
    random = np.random.default_rng(9)
    found = 0
    for _ in range(250):
        logs, truth = random.standard_normal((250, 2)), random.integers(0, 2, 250)
        found += leaks(by_name(score_posteriors(logs, truth, blind=0.5))["advantage"])
    assert found <= scipy.stats.binom(250, 0.025).isf(1e-3)


@pytest.mark.parametrize("positives", [1, 2, 3, 5])
def test_an_area_of_few_positives_is_covered(positives: int) -> None:
    """DeLong's variance of a handful is far too small by chance; what any law allows stands in for it."""
    random, hits = np.random.default_rng(10), 0
    truth = np.array([1] * positives + [0] * 30)
    for _ in range(200):
        evidence = random.standard_normal(len(truth)) + 1.5 * truth
        found = by_name(score_posteriors(np.stack([np.zeros(len(truth)), evidence], axis=1), truth, blind=0.9))["auroc"]
        low, high = ends(found)
        hits += low <= float(scipy.stats.norm.cdf(1.5 / np.sqrt(2))) <= high
    assert hits >= 186

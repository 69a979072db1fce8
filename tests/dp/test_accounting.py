from __future__ import annotations

import math
from typing import Any

import dp_accounting
import pytest
import scipy.stats
from tests.defenses.setting import objective

from gradleak.core import Defense, Release
from gradleak.defenses import DPSGD, Clip, ClipPerExample, GaussianNoise, Prune
from gradleak.dp import (
    Accounting,
    Adjacency,
    GaussianMechanism,
    classical_gaussian_epsilon,
    exact_gaussian_epsilon,
    pld_epsilon,
    rdp_epsilon,
)
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import Evidence, InputError, Outcome

DELTA = 1e-5


def delta_of(epsilon: float, multiplier: float) -> float:
    """δ(ε) of the Gaussian mechanism, by Balle and Wang's formula written out."""
    half, tail = 1 / (2 * multiplier), epsilon * multiplier
    first = scipy.stats.norm.cdf(half - tail)
    return float(first - math.exp(epsilon + scipy.stats.norm.logcdf(-half - tail)))


def value(score: Any) -> float:
    assert score.value is not None, score.note
    return float(score.value)


def test_the_papers_setting_by_the_classical_formula_and_exactly() -> None:
    classical = classical_gaussian_epsilon(2.0, 0.1, DELTA)
    exact = exact_gaussian_epsilon(2.0, 0.1, DELTA)
    assert value(classical) == pytest.approx(96.90, abs=0.005)
    assert value(exact) == pytest.approx(284.4, abs=0.05)
    assert classical.name == "classical_gaussian_epsilon"
    assert classical.evidence is Evidence.ESTIMATE
    assert "proven below 1 only" in classical.note
    assert exact.evidence is Evidence.EXACT


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0, 20.0])
def test_the_exact_value_solves_the_analytic_equation(multiplier: float) -> None:
    epsilon = value(exact_gaussian_epsilon(1.0, multiplier, DELTA))
    assert delta_of(epsilon, multiplier) == pytest.approx(DELTA, rel=1e-6)
    assert value(exact_gaussian_epsilon(3.0, 3 * multiplier, DELTA)) == pytest.approx(epsilon)
    classical = classical_gaussian_epsilon(1.0, multiplier, DELTA)
    if value(classical) < 1:
        assert classical.evidence is Evidence.UPPER_BOUND
        assert value(classical) >= epsilon


@pytest.mark.parametrize(
    ("sensitivity", "std", "rounds"), [(2.0, 0.1, 1), (1.0, 1.0, 1), (1.0, 3.0, 40), (1.0, 0.5, 9)]
)
def test_pld_is_within_one_percent_of_the_exact_value_without_sampling_and_below_rdp(
    sensitivity: float, std: float, rounds: int
) -> None:
    mechanism = GaussianMechanism(sensitivity=sensitivity, std=std)
    exact = dp_accounting.get_epsilon_gaussian(std / sensitivity / math.sqrt(rounds), DELTA)
    by_pld = pld_epsilon(mechanism, delta=DELTA, rounds=rounds)
    assert exact * (1 - 1e-9) <= value(by_pld) <= 1.01 * exact
    assert value(by_pld) <= value(rdp_epsilon(mechanism, delta=DELTA, rounds=rounds))
    assert by_pld.details["sampling"] == "none: takes part in every round"


@pytest.mark.parametrize(("multiplier", "rate", "rounds"), [(1.1, 0.01, 500), (0.6, 0.1, 20), (2.0, 0.5, 5)])
def test_poisson_sampling_is_dp_accountings(multiplier: float, rate: float, rounds: int) -> None:
    mechanism = GaussianMechanism(sensitivity=2.0, std=2.0 * multiplier)
    by_pld = pld_epsilon(mechanism, delta=DELTA, rounds=rounds, sampling_rate=rate)
    by_rdp = rdp_epsilon(mechanism, delta=DELTA, rounds=rounds, sampling_rate=rate)
    pld = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(multiplier, sampling_prob=rate)
    assert value(by_pld) == pytest.approx(pld.self_compose(rounds).get_epsilon_for_delta(DELTA), rel=2e-3)
    assert value(by_pld) <= value(by_rdp)
    assert value(by_pld) < value(pld_epsilon(mechanism, delta=DELTA, rounds=rounds))
    assert by_pld.details["sampling"] == f"Poisson, rate {rate:g}"
    assert by_pld.evidence is Evidence.UPPER_BOUND


def test_local_steps_on_one_sample_are_one_mechanism_with_less_noise() -> None:
    four = GaussianMechanism(sensitivity=1.0, std=2.0, steps=4)
    one = GaussianMechanism(sensitivity=1.0, std=1.0)
    for rate in (1.0, 0.1):
        for total in (pld_epsilon, rdp_epsilon):
            both = [value(total(m, delta=DELTA, rounds=3, sampling_rate=rate)) for m in (four, one)]
            assert both[0] == pytest.approx(both[1], rel=1e-9)
    # Sampling anew for each step would amplify more: that is not what a client does that trains on its sample.
    afresh = pld_epsilon(GaussianMechanism(sensitivity=1.0, std=2.0), delta=DELTA, rounds=12, sampling_rate=0.1)
    assert value(afresh) < value(pld_epsilon(four, delta=DELTA, rounds=3, sampling_rate=0.1))


def test_another_example_in_the_place_of_one_moves_the_sum_twice_as_far() -> None:
    mechanism = GaussianMechanism(sensitivity=1.0, std=2.0)
    doubled = GaussianMechanism(sensitivity=2.0, std=2.0)
    for total in (pld_epsilon, rdp_epsilon):
        replaced = value(total(mechanism, delta=DELTA, rounds=3, adjacency="replace"))
        assert replaced == pytest.approx(value(total(doubled, delta=DELTA, rounds=3)), rel=1e-9)
    sampled = pld_epsilon(mechanism, delta=DELTA, rounds=3, sampling_rate=0.2, adjacency="replace")
    assert value(sampled) > value(pld_epsilon(mechanism, delta=DELTA, rounds=3, sampling_rate=0.2))
    refused = rdp_epsilon(mechanism, delta=DELTA, rounds=3, sampling_rate=0.2, adjacency="replace")
    assert (refused.value, refused.outcome) == (None, Outcome.UNSUPPORTED)


def scores(defenses: list[Defense], accounting: Accounting, examples: int = 16, protocol: Any = None) -> dict[str, Any]:
    release = Release(protocol or FedSGD(), defenses)
    return {score.name: score for score in accounting(release, objective(), examples)}


NAMES = ["classical_gaussian_epsilon", "gaussian_epsilon", "pld_epsilon", "rdp_epsilon"]


def test_epsilon_comes_from_the_noise_that_is_really_added() -> None:
    accounting = Accounting(delta=DELTA)
    on_sum = scores([DPSGD(clip_norm=2.0, noise_std=0.1, noise="sum")], accounting)
    assert list(on_sum) == NAMES
    assert value(on_sum["classical_gaussian_epsilon"]) == pytest.approx(96.90, abs=0.005)
    assert value(on_sum["gaussian_epsilon"]) == pytest.approx(284.39, abs=0.005)
    # On every example of 16 the sum carries four times as much: the paper's 96.90 ignores it.
    on_each = scores([DPSGD(clip_norm=2.0, noise_std=0.1, noise="per_example")], accounting)
    assert value(on_each["classical_gaussian_epsilon"]) == pytest.approx(96.90 / 4, abs=0.005)
    expected = dp_accounting.get_epsilon_gaussian(0.2, DELTA)
    assert value(on_each["gaussian_epsilon"]) == pytest.approx(expected, rel=1e-9)
    # Noise on the mean of clipped gradients, after the fact, is noise on the sum times their number.
    after = scores([ClipPerExample(2.0), GaussianNoise(std=0.1 / 16)], accounting)
    assert value(after["gaussian_epsilon"]) == pytest.approx(284.39, abs=0.005)


@pytest.mark.parametrize(
    "defenses",
    [
        [],
        [Prune(0.99)],
        [GaussianNoise(std=1.0)],
        [ClipPerExample(1.0)],
        [Clip(1.0), Prune(0.5), GaussianNoise(std=1.0)],
    ],
    ids=repr,
)
def test_a_heuristic_defense_has_no_epsilon(defenses: list[Defense]) -> None:
    found = scores(defenses, Accounting(delta=DELTA, rounds=10))
    assert list(found) == NAMES
    for score in found.values():
        assert score.value is None
        assert score.outcome is Outcome.NOT_INFORMATIVE
        assert score.note.startswith("none: ")


def test_poisson_sampling_needs_a_divisor_that_is_public() -> None:
    accounting = Accounting(delta=DELTA, rounds=10, sampling_rate=0.1)
    private = scores([DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum")], accounting)
    for name in ("pld_epsilon", "rdp_epsilon"):
        assert (private[name].value, private[name].outcome) == (None, Outcome.UNSUPPORTED)
        assert "expected_batch_size" in private[name].note
    each = scores([DPSGD(clip_norm=1.0, noise_std=1.0, noise="per_example")], accounting)
    assert each["pld_epsilon"].value is None
    public = scores([DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size=16)], accounting)
    assert value(public["pld_epsilon"]) < value(public["gaussian_epsilon"])


def test_local_epochs_are_counted() -> None:
    defense = DPSGD(clip_norm=1.0, noise_std=2.0, noise="sum")
    protocol = FedAvg(learning_rate=0.1, epochs=3, batch_size=4)
    once = scores([defense], Accounting(delta=DELTA, rounds=6))
    thrice = scores([defense], Accounting(delta=DELTA, rounds=2), protocol=protocol)
    assert value(thrice["pld_epsilon"]) == pytest.approx(value(once["pld_epsilon"]), rel=1e-9)
    assert thrice["pld_epsilon"].details["steps_per_round"] == 3
    assert value(thrice["gaussian_epsilon"]) == value(once["gaussian_epsilon"])


def test_the_choice_among_settings_is_flagged() -> None:
    found = scores([DPSGD(clip_norm=1.0, noise_std=2.0, noise="sum")], Accounting(delta=DELTA, settings_tried=40))
    for score in found.values():
        assert "the best of 40 settings tried on the private data was chosen" in score.note
        assert score.details["settings_tried"] == 40
    assert all("settings" not in score.note for score in scores([], Accounting(delta=DELTA)).values())
    none = scores([], Accounting(delta=DELTA, settings_tried=40))
    assert all("40 settings" in score.note for score in none.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta": 0.0}, r"delta: expected a number between 0 and 1, got 0.0"),
        ({"delta": 1.5}, r"delta"),
        ({"rounds": 0}, r"rounds: expected a whole number of at least 1, got 0"),
        ({"sampling_rate": 0.0}, r"sampling_rate: expected a number above 0 and at most 1, got 0.0"),
        ({"adjacency": "swap"}, r"adjacency: expected one of add_or_remove, replace, got 'swap'"),
        ({"settings_tried": 0}, r"settings_tried: expected at least 1, got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Accounting(**({"delta": DELTA} | arguments))


def test_a_mechanism_without_noise_is_none() -> None:
    with pytest.raises(InputError, match=r"std: expected a positive number, got 0"):
        classical_gaussian_epsilon(1.0, 0.0, DELTA)
    with pytest.raises(InputError, match=r"sensitivity: expected a positive number, got -1"):
        exact_gaussian_epsilon(-1.0, 1.0, DELTA)
    assert Accounting(delta=DELTA, adjacency="replace").adjacency is Adjacency.REPLACE

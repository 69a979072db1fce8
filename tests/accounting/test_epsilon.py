from __future__ import annotations

import logging
import math
import threading
import warnings
from typing import Any

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import torch
from dp_accounting import rdp
from tests.defenses.setting import objective

from gradleak.accounting import Accounting, classical_gaussian_epsilon, exact_gaussian_epsilon, pld_epsilon, rdp_epsilon
from gradleak.accounting.epsilon import _grid
from gradleak.accounting.overheard import overheard
from gradleak.core import Adjacency, Defense, GaussianMechanism, Protocol, Release
from gradleak.defenses import DPSGD, Clip, ClipPerExample, GaussianNoise, Prune
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import Evidence, InputError, Outcome, UnsupportedError

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
    ("sensitivity", "std", "rounds"),
    [(2.0, 0.1, 1), (1.0, 1.0, 1), (1.0, 3.0, 40), (1.0, 0.5, 9), (2.0, 0.1, 1000), (1.0, 1000.0, 100_000)],
)
def test_without_sampling_pld_is_the_analytic_value_of_one_mechanism_and_below_rdp(
    sensitivity: float, std: float, rounds: int
) -> None:
    """A grid took minutes for a thousand rounds of little noise, and gave 1.04 times the value for much."""
    mechanism = GaussianMechanism(sensitivity=sensitivity, std=std)
    by_pld = pld_epsilon(mechanism, delta=DELTA, rounds=rounds)
    assert value(by_pld) == dp_accounting.get_epsilon_gaussian(std / sensitivity / math.sqrt(rounds), DELTA)
    assert value(by_pld) <= value(rdp_epsilon(mechanism, delta=DELTA, rounds=rounds))
    assert by_pld.details["sampling"] == "none: takes part in every round"
    assert by_pld.evidence is Evidence.EXACT
    assert "closed form" in by_pld.note
    for loose in ({"steps": 2}, {"loose": "by the smallest noise of all layers"}):
        mechanism = GaussianMechanism(sensitivity=sensitivity, std=std, **loose)
        assert pld_epsilon(mechanism, delta=DELTA, rounds=rounds).evidence is Evidence.UPPER_BOUND


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


@pytest.mark.parametrize(
    ("multiplier", "rate", "rounds"),
    [(20.0, 1e-3, 10_000), (50.0, 1e-4, 1000), (0.05, 0.5, 200), (0.3, 0.01, 1000), (0.02, 0.1, 10), (0.1, 1e-3, 1)],
)
def test_the_grid_follows_the_loss_of_a_round(multiplier: float, rate: float, rounds: int) -> None:
    """A fixed one gave more than RDP for much noise, and took minutes for little."""
    mechanism = GaussianMechanism(sensitivity=1.0, std=multiplier)
    by_pld = value(pld_epsilon(mechanism, delta=DELTA, rounds=rounds, sampling_rate=rate))
    assert by_pld <= value(rdp_epsilon(mechanism, delta=DELTA, rounds=rounds, sampling_rate=rate))
    # dp-accounting itself, on a grid several times finer.
    finer = _grid(multiplier, rate, rounds) / 4
    one = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=finer
    )
    best = one.self_compose(rounds).get_epsilon_for_delta(DELTA)
    assert by_pld == pytest.approx(best, rel=3e-3, abs=1e-5)
    # Many rounds of little loss are a Gaussian mechanism in the limit.
    if multiplier >= 20:
        spread = 1 / (math.sqrt(rounds) * rate * math.sqrt(math.expm1(multiplier**-2)))
        with np.errstate(divide="ignore"):
            assert by_pld == pytest.approx(dp_accounting.get_epsilon_gaussian(spread, DELTA), rel=2e-3, abs=5e-5)


def test_where_rdp_is_smaller_its_value_stands_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = GaussianMechanism(sensitivity=1.0, std=20.0)
    arguments: dict[str, Any] = {"delta": DELTA, "rounds": 10_000, "sampling_rate": 1e-3}
    assert "RDP" not in pld_epsilon(mechanism, **arguments).note
    monkeypatch.setattr("gradleak.accounting.epsilon._grid", lambda *_: 1e-4)
    capped = pld_epsilon(mechanism, **arguments)
    assert value(capped) == value(rdp_epsilon(mechanism, **arguments))
    assert "the value by RDP, which is smaller here" in capped.note
    assert capped.evidence is Evidence.UPPER_BOUND


@pytest.mark.parametrize("std", [1e-200, 1e-160, 1e-8, 1e100, 1e200])
@pytest.mark.parametrize("delta", [1e-300, 0.999])
def test_noise_outside_the_range_of_floats_is_an_outcome_without_warnings(std: float, delta: float) -> None:
    mechanism = GaussianMechanism(sensitivity=1.0, std=std)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [exact_gaussian_epsilon(1.0, std, delta), classical_gaussian_epsilon(1e200, std, delta)]
        found += [total(mechanism, delta=delta, rounds=10) for total in (pld_epsilon, rdp_epsilon)]
        if std < 1e100:
            found += [total(mechanism, delta=delta, sampling_rate=0.1) for total in (pld_epsilon, rdp_epsilon)]
    for score in found:
        assert (score.value is None) == (score.outcome is Outcome.NOT_FINITE)
        assert score.value is None or math.isfinite(score.value)


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
    defense = DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size=16)
    public = scores([defense], accounting)
    assert value(public["pld_epsilon"]) < value(public["gaussian_epsilon"])
    # Under sampling the number of rows varies, and one more shifts the later ones to other mini-batches, also where as
    # many as are expected fit into one: the sum of the first moves by up to 2C.
    for protocol in (FedAvg(learning_rate=0.1, batch_size=16), FedAvg(learning_rate=0.1, batch_size=100)):
        shifted = scores([defense], accounting, protocol=protocol)
        for name in ("pld_epsilon", "rdp_epsilon"):
            assert (shifted[name].value, shifted[name].outcome) == (None, Outcome.UNSUPPORTED)
            assert "whole batches" in shifted[name].note


@pytest.mark.parametrize(
    ("protocol", "defenses"),
    [
        (FedAvg(learning_rate=0.1), [DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size=16)]),
        (FedSGD(), [Clip(1.0), GaussianNoise(std=1.0)]),
    ],
)
def test_what_cannot_be_released_of_no_row_has_no_epsilon_under_sampling(
    protocol: Protocol, defenses: list[Defense]
) -> None:
    with pytest.raises(UnsupportedError):
        Release(protocol, defenses).of_nothing(objective(), torch.Generator().manual_seed(0))
    found = scores(defenses, Accounting(delta=DELTA, rounds=10, sampling_rate=0.1), protocol=protocol)
    for name in ("pld_epsilon", "rdp_epsilon"):
        assert (found[name].value, found[name].outcome) == (None, Outcome.UNSUPPORTED)
        assert "sends nothing" in found[name].note
    assert value(found["gaussian_epsilon"]) > 0
    assert value(scores(defenses, Accounting(delta=DELTA, rounds=10), protocol=protocol)["pld_epsilon"]) > 0


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
        assert "40 settings were tried on the private data" in score.note
        assert score.details["settings_tried"] == 40
    assert all("settings" not in score.note for score in scores([], Accounting(delta=DELTA)).values())
    none = scores([], Accounting(delta=DELTA, settings_tried=40))
    assert all("40 settings" in score.note for score in none.values())


def test_a_delta_that_protects_nobody_is_said() -> None:
    """A release that gives away one of n examples, drawn by chance, is (0, 1/n)-private."""
    defense = DPSGD(clip_norm=1.0, noise_std=2.0, noise="sum")
    client = [Clip(1.0), GaussianNoise(std=2.0)]
    for accounting, said in (
        (Accounting(delta=0.01, units=100), "delta 0.01 is not below one over the 100 examples, which protects nobody"),
        (Accounting(delta=0.0099, units=100), ""),
        (Accounting(delta=1 / 16), "delta 0.0625 is not below one over the 16 examples"),  # at least those of the batch
        (Accounting(delta=0.06), ""),
    ):
        for score in scores([defense], accounting).values():
            assert said in score.note
            assert bool(said) == ("protects nobody" in score.note)
    by_client = scores(client, Accounting(delta=0.1, units=20))["pld_epsilon"]
    assert "one over the 20 clients" in by_client.note
    assert "protects nobody" not in scores(client, Accounting(delta=0.1))["pld_epsilon"].note
    assert "protects nobody" not in scores([], Accounting(delta=0.1, units=100))["pld_epsilon"].note


@pytest.mark.parametrize("total", [pld_epsilon, rdp_epsilon])
def test_what_the_accountant_logs_is_a_note_and_not_on_the_terminal(
    total: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Fourteen lines a scenario stood on stderr, of orders that did not converge."""
    mechanism = GaussianMechanism(sensitivity=1.0, std=1.0)
    found = total(mechanism, delta=DELTA, rounds=10, sampling_rate=0.1)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert ("5 Rényi orders did not converge and were left out" in found.note) == (total is rdp_epsilon)
    logging.getLogger("absl").warning("a line of somebody else")
    assert [record.message for record in caplog.records] == ["a line of somebody else"]


def test_a_divergence_below_zero_is_no_epsilon_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountant falls back to 0 and only logs it: an upper bound of 0 would promise everything."""

    class Unstable:
        def compose(self, event: Any) -> Unstable:
            return self

        def get_epsilon(self, delta: float) -> float:
            logging.getLogger("absl").warning("Negative Renyi divergence of %s, probably ... an epsilon of zero.", -1.0)
            return 0.0

    monkeypatch.setattr(rdp, "RdpAccountant", Unstable)
    mechanism = GaussianMechanism(sensitivity=1.0, std=1.0)
    by_rdp = rdp_epsilon(mechanism, delta=DELTA, rounds=10, sampling_rate=0.1)
    assert (by_rdp.value, by_rdp.outcome) == (None, Outcome.NOT_FINITE)
    assert value(pld_epsilon(mechanism, delta=DELTA, rounds=10, sampling_rate=0.1)) > 1.0


def test_other_threads_keep_their_lines(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("absl")
    with overheard("absl") as told:
        log.warning("mine")
        other = threading.Thread(target=log.warning, args=("theirs",))
        other.start()
        other.join()
    assert told == ["mine"]
    assert [record.message for record in caplog.records] == ["theirs"]


def test_what_sampling_assumes_is_said_with_the_number() -> None:
    mechanism = GaussianMechanism(sensitivity=1.0, std=2.0)
    for total in (pld_epsilon, rdp_epsilon):
        assert (
            "Batches of a shuffled loader are no such sample" in total(mechanism, delta=DELTA, sampling_rate=0.1).note
        )
        assert "loader" not in total(mechanism, delta=DELTA).note


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delta": 0.0}, r"delta: expected a number between 0 and 1, got 0.0"),
        ({"delta": 1.5}, r"delta"),
        ({"rounds": 0}, r"rounds: expected a whole number of at least 1, got 0"),
        ({"sampling_rate": 0.0}, r"sampling_rate: expected a number above 0 and at most 1, got 0.0"),
        ({"adjacency": "swap"}, r"adjacency: expected one of add_or_remove, replace, got 'swap'"),
        ({"settings_tried": 0}, r"settings_tried: expected a whole number of at least 1, got 0"),
        ({"settings_tried": True}, r"settings_tried: expected a whole number of at least 1, got True"),
        ({"sampling_rate": True}, r"sampling_rate: expected a number above 0 and at most 1, got True"),
        ({"delta": "0.1"}, r"delta: expected a number between 0 and 1, got '0.1'"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Accounting(**({"delta": DELTA} | arguments))


def test_another_unit_in_its_place_moves_a_step_by_twice_its_norm() -> None:
    defenses = [DPSGD(clip_norm=1.0, noise_std=1.1, noise="sum")]
    moved = {
        adjacency: scores(defenses, Accounting(delta=DELTA, adjacency=adjacency))
        for adjacency in ("add_or_remove", "replace")
    }
    for name, formula in (
        ("classical_gaussian_epsilon", classical_gaussian_epsilon),
        ("gaussian_epsilon", exact_gaussian_epsilon),
    ):
        one = moved["add_or_remove"][name]
        sensitivity, std = one.details["sensitivity"], one.details["std"]
        assert value(one) == pytest.approx(value(formula(sensitivity, std, DELTA)))
        assert value(moved["replace"][name]) == pytest.approx(value(formula(2 * sensitivity, std, DELTA)))


def test_a_mechanism_without_noise_is_none() -> None:
    with pytest.raises(InputError, match=r"std: expected a finite positive number, got 0"):
        classical_gaussian_epsilon(1.0, 0.0, DELTA)
    with pytest.raises(InputError, match=r"sensitivity: expected a finite positive number, got -1"):
        exact_gaussian_epsilon(-1.0, 1.0, DELTA)
    assert Accounting(delta=DELTA, adjacency="replace").adjacency is Adjacency.REPLACE

"""Plans: what is accepted, and the one clear line for everything else."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gradleak.attacks import GaussNewton
from gradleak.auditing import build_plan, load_plan
from gradleak.audits.base import typed
from gradleak.core import Domain
from gradleak.defenses import DPSGD, Clip, GaussianNoise
from gradleak.results import GradleakError, PlanError
from tests.auditing.conftest import SMALL_PLAN
from tests.auditing.reading import attacking


def content(**changes: Any) -> dict[str, Any]:
    return tomllib.loads(SMALL_PLAN) | changes


def defended(**defense: Any) -> dict[str, Any]:
    return {"scenarios": [{"name": "a", "defenses": [defense]}]}


class Color(StrEnum):
    RED = "red"


class Amount(IntEnum):
    TWO = 2


@pytest.mark.parametrize(
    ("hint", "given", "made"),
    [
        (float, 1, 1.0),
        (float | None, 2, 2.0),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[float, float], [0, 1], (0.0, 1.0)),
        (Sequence[Color], ["red"], (Color.RED,)),
        (frozenset[Color], ["red", "red"], frozenset({Color.RED})),
        (set[int], [1, 1, 2], {1, 2}),
        (Color | None, "red", Color.RED),
        (Amount, 2, Amount.TWO),
        (str | float, "1.0", "1.0"),
        (bool | None, True, True),
        (Mapping[int, float], {"3": 1}, {3: 1.0}),
        (Mapping[str, Sequence[float]], {"a": [1, 0.5]}, {"a": (1.0, 0.5)}),
    ],
)  # fmt: skip
def test_values_become_what_the_hint_says(hint: Any, given: Any, made: Any) -> None:
    found = typed(hint, given, "here")
    assert found == made
    assert type(found) is type(made)


@pytest.mark.parametrize(
    ("hint", "given", "message"),
    [
        (tuple[int, ...], [1, "2"], r"^here\[1\]: expected a whole number.*, got '2'$"),
        (Sequence[float], [True], r"^here\[0\]: expected .*number.*, got True$"),
        (set[int], [1, True], r"^here\[1\]: expected a whole number.*, got True$"),
        (set[int], ["1"], r"^here\[0\]: expected a whole number.*, got '1'$"),
        (Mapping[str, Sequence[float]], {"a": [1, "x"]}, r"^here\.a\[1\]: expected a number, got 'x'$"),
        (Mapping[str, Sequence[float]], {"a": [1, "2"]}, r"^here\.a\[1\]: expected .*number.*, got '2'$"),
        (int | float, True, r"^here: expected a whole number or a number, got True$"),
        (list[bool], ["true"], r"^here\[0\]: expected True or False, got 'true'$"),
        (bool | None, 0, r"^here: expected True or False, got 0$"),
    ],
)  # fmt: skip
def test_numbers_are_never_made_from_texts_or_truth_values(hint: Any, given: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        typed(hint, given, "here")


def test_the_small_plan_becomes_objects(small_plan: Path) -> None:
    plan = load_plan(small_plan)
    assert repr(plan) == "Plan('small', 2 examples, 2 scenarios)"
    assert repr(plan.site).startswith("Site('small', Objective(4 tensors, ")
    assert repr(plan.site.batches[0]) == "Batch(inputs (1, 1, 8, 8) float32, targets (1,) int64, image)"
    assert plan.site.seed == 3
    assert attacking(plan).attacks["gauss_newton"] == GaussNewton(max_steps=20)
    assert [scenario.name for scenario in plan.site.scenarios] == ["undefended", "noisy"]
    assert plan.site.scenarios[1].release.defenses == (Clip(100.0), GaussianNoise(std=1e-6))
    assert [batch.size for batch in plan.site.batches] == [1, 1]
    assert plan.site.scenarios[0].attacks == {"gauss_newton": (0, 1), "inverting_gradients": (0,)}


def test_the_example_plan_is_valid() -> None:
    plan = load_plan(Path(__file__).parents[2] / "examples" / "digits.toml")
    assert plan.site.objective.size == 17_038
    *noisy, private = [s.release.defenses[0] for s in plan.site.scenarios if s.release.defenses]
    stds = [float(s.name.removeprefix("noise std ")) for s in plan.site.scenarios if s.name.startswith("noise std ")]
    assert [noise.std for noise in noisy] == pytest.approx(stds, rel=1e-3)
    assert stds == [1e-4, 3.16e-4, 1e-3, 3.16e-3, 0.01]
    assert isinstance(private, DPSGD)


def test_same_plan_same_weights_data_and_digest(small_plan: Path) -> None:
    first, second = load_plan(small_plan), load_plan(small_plan)
    assert first.digest() == second.digest()
    weights = zip(first.site.objective.params.values(), second.site.objective.params.values(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)
    other = build_plan(content(seed=4), folder=Path())
    assert other.digest() != first.digest()
    assert not torch.equal(
        next(iter(other.site.objective.params.values())), next(iter(first.site.objective.params.values()))
    )


def test_the_resolved_plan_holds_no_data(small_plan: Path) -> None:
    text = json.dumps(load_plan(small_plan).resolved())
    assert len(text) < 10_000
    assert "0.1875" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sed": 1}, r"plan: unknown key 'sed'; did you mean 'seed'\?"),
        ({"seed": "one"}, r"seed: expected a whole number.*, got 'one'"),
        ({"seed": True}, r"seed: expected a whole number.*, got True"),
        ({"pictures": "yes"}, r"pictures: expected True or False"),
        ({"scenarios": [{}]}, r"scenarios\[0\]: expected a name"),
        ({"scenarios": []}, r"at least one batch or one section with rows of its own, and one scenario"),
        ({"scenarios": [{"name": "a/b"}]}, r"printable characters without '/'"),
        ({"scenarios": [{"name": "a"}, {"name": "a"}]}, r"different names, got a more than once"),
        ({"scenarios": [{"name": "a", "examples": [7]}]}, r"examples: expected indices among \[0, 1\], got \[7\]"),
        ({"scenarios": [{"name": "a", "examples": []}]}, r"expected \"all\" or a list of indices"),
        ({"scenarios": [{"name": "a", "attacks": {"gaus_newton": "all"}}]}, r"did you mean 'gauss_newton'"),
        ({"scenarios": [{"name": "a", "examples": [0], "attacks": {"gauss_newton": [1]}}]}, r"among \[0\], got \[1\]"),
        ({"scenarios": [{"name": "a", "defenses": [{"use": "GausianNoise", "std": 1.0}]}]}, r"mean 'GaussianNoise'"),
        ({"scenarios": [{"name": "a", "defenses": [{"use": "GaussianNoise", "std": -1.0}]}]}, r"at least 0, got -1.0"),
        ({"scenarios": [{"name": "a", "defenses": [{"use": "GaussianNoise"}]}]}, r"expected std too"),
        ({"scenarios": [{"name": "a", "defenses": {"use": "Clip"}}]}, r"defenses: expected a list"),
        ({"model": {"use": "small"}}, r"unknown model 'small'.*package\.module:attribute"),
        ({"model": {"use": "tests.auditing.nowhere:x"}}, r"cannot import 'tests\.auditing\.nowhere:x'"),
        ({"model": {"use": "tests.auditing.small_model:not_a_model"}}, r"torch.nn.Module, and it says that it returns an int"),
        ({"model": {"use": "lenet_i2f", "activation": "sigmoyd"}}, r"sigmoid"),
        ({"model": {"use": "lenet_i2f", "channel": 3}}, r"did you mean 'channels'"),
        ({"data": {"use": "scikit_digits", "count": 3, "batch_size": 2}}, "expected a multiple of batch_size = 2, got 3 ex"),
        ({"data": {"use": "scikit_digits", "count": "3"}}, r"data.count: expected a whole number.*, got '3'"),
        (defended(use="Quantize", bits=4, limit="1.0"), r"defenses\[0\]\.limit: expected .*number.*, got '1\.0'"),
        (defended(use="Quantize", bits=4, limit=True), r"limit: expected .*number.*, got True"),
        (defended(use="Quantize", bits=True), r"bits: expected a whole number.*, got True"),
        (defended(use="Quantize", bits=4, stochastic="yes"), r"stochastic: expected True or False, got 'yes'"),
        (defended(use="Quantize", bits=4, stochastic=1), r"stochastic: expected True or False, got 1"),
        (defended(use="DPSGD", clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size="16"),
         r"expected_batch_size: expected .*number.*, got '16'"),
        (defended(use="DPSGD", clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size=True),
         r"expected_batch_size: expected .*number.*, got True"),
        (defended(use="LayerNoise", std={"0": "0.1"}), r"std\.0: expected .*number.*, got '0\.1'"),
        (defended(use="LayerNoise", std={"0": True}), r"std\.0: expected .*number.*, got True"),
        ({"checkpoint_seconds": "30"}, r"checkpoint_seconds: expected .*number.*, got '30'"),
        ({"checkpoint_seconds": True}, r"checkpoint_seconds: expected .*number.*, got True"),
        ({"model": {"use": "lenet_i2f", "initialize": {"use": "uniform", "low": "-1"}}},
         r"model\.initialize\.low: expected .*number.*, got '-1'"),
        ({"model": {"use": "lenet_i2f", "initialize": {"use": "uniform", "lov": 1}}}, r"did you mean 'low'"),
        ({"data": {"use": "scikit_digits"}}, r"data: expected count too"),
        ({"data": {"use": "tests.auditing.small_model:without_numbers"}}, r"data: .*:without_numbers: .*expected finite"),
        ({"attacks": {"a": {"use": "GaussNewton", "max_step": 3}}}, r"attacks.a: .*did you mean 'max_steps'"),
        ({"attacks": {"a": {"max_steps": 3}}}, r"attacks.a: expected a key 'use'"),
        ({"objective": {"loss": "cross_entrpy"}}, r"loss: expected one of cross_entropy"),
        ({"objective": {"mode": "evaluate"}}, r"mode: expected 'eval' or 'train'"),
        ({"thresholds": {"pixel_rmse": 3.0}}, r"thresholds.*between 0 and 1"),
        ({"controls": {"attack": "nothing"}}, r"controls: unknown attack 'nothing'"),
        ({"seed": -1}, r"seed: expected a whole number from 0 to .*, got -1"),
        ({"attacks": {"baseline": {"use": "DLG"}}}, r"other than baseline, risk, perfect_attacker"),
        ({"attacks": {"a": {"use": "os:getcwd"}}}, r"does not say what it returns; write 'def getcwd"),
        ({"attacks": {"a": {"use": "InvertingGradients", "iterations": -5}}}, r"a\.iterations: expected a whole"),
        ({"attacks": {"a": {"use": "InvertingGradients", "total_variation": -1.0}}}, r"a\.total_variation: expected a finite"),
        ({"attacks": {"a": {"use": "GaussNewton", "max_bytes": -1}}}, r"a\.max_bytes: expected a whole number"),
        ({"scenarios": [{"name": "a", "perfect_attacker": {"below": 0.0}}]}, r"perfect_attacker.below: expected a finite pos"),
        ({"attacks": {"a": {"use": "DLG", "restarts": {"use": []}}}}, r"a\.restarts\.use: expected a name"),
        ({"model": {"use": "tests.auditing.small_model:failing_model"}}, r"failing_model raised ValueError: disk on fire"),
        ({"data": {"use": "tests.auditing.small_model:not_a_model"}}, r"Batch \(or a pair of inputs and targets\), and it says"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        build_plan(content(**changes), folder=Path())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reference": True}, "expected one at least that is no reference"),
        ({"reference": True, "require": "bounded"}, "expected one at least"),
        ({"require": "safe"}, r"scenario 'a', require: expected one of bounded, not leaks"),
        ({"reference": "yes"}, "scenario 'a', reference: expected True or False"),
    ],
)
def test_a_policy_that_judges_nothing_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build_plan(content(scenarios=[{"name": "a", **keys}]), folder=Path())


def test_a_reference_of_which_something_is_required_is_refused() -> None:
    scenarios = [{"name": "a", "reference": True, "require": "not leaks"}, {"name": "b"}]
    with pytest.raises(PlanError, match="expected reference = true or require = 'not leaks', got both"):
        build_plan(content(scenarios=scenarios), folder=Path())


@pytest.mark.parametrize("section", ["model", "data", "scenarios"])
def test_a_missing_section_is_named(section: str) -> None:
    table = content()
    del table[section]
    with pytest.raises(PlanError, match=rf"expected a section \[+{section}\]+, got none"):
        build_plan(table, folder=Path())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scenarios": {"name": "a"}},
            r"^scenarios: .* got one table; write \[\[scenarios\]\] in place of \[scenarios\]$",
        ),
        ({"scenarios": [{"name": "a", "defenses": {"use": "Sign"}}]}, r"write defenses = \[\{ \.\.\. \}\]"),
        (
            {"layers": {"a": {"measures": {"use": "Sensitivity"}}}},
            r"^layers.a.measures: .* write measures = \[\{ \.\.\. \}\], or \[\[\.\.\.\]\]",
        ),
        ({"model": [{"use": "lenet"}]}, r"^model: expected one table .*; write \[\.\.\.\], not \[\[\.\.\.\]\]$"),
    ],
)
def test_one_table_and_a_list_of_tables_are_told_apart(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        build_plan(content(**changes), folder=Path())


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file"):
        load_plan(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = [", encoding="utf-8")
    with pytest.raises(PlanError, match="not valid TOML"):
        load_plan(broken)


def test_weights_come_from_a_file_beside_the_plan(tmp_path: Path) -> None:
    table = content()
    plan = build_plan(table, folder=tmp_path)
    state = {name: torch.full_like(tensor, 0.5) for name, tensor in plan.site.objective.params.items()}
    save_file(state, tmp_path / "weights.safetensors")
    table["model"] = {**table["model"], "weights": "weights.safetensors"}
    loaded = build_plan(table, folder=tmp_path)
    assert all(bool((tensor == 0.5).all()) for tensor in loaded.site.objective.params.values())
    save_file({"other": torch.zeros(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(PlanError, match="does not fit the model"):
        build_plan(table, folder=tmp_path)


def test_own_data_by_import_path() -> None:
    plan = build_plan(content(data={"use": "tests.auditing.small_model:pair_data", "count": 2}), folder=Path())
    assert [batch.targets.tolist() for batch in plan.site.batches] == [[0], [1]]


def test_a_plan_states_the_domain_of_data_that_have_none() -> None:
    data = {"use": "tests.auditing.small_model:rows_of_people", "count": 3}
    model = {"use": "mlp", "features": 3, "hidden": [4], "classes": 2}
    stated = {"low": [16, 0, 0], "high": [90.0, 1.0, 1.0], "kind": "tabular"}
    plan = build_plan(content(data=data | {"domain": stated}, model=model), folder=Path())
    domain = plan.site.batches[0].domain
    assert domain == Domain(shape=(3,), low=(16.0, 0.0, 0.0), high=(90.0, 1.0, 1.0), kind="tabular")
    assert not plan.site.domain_guessed
    guessed = build_plan(content(data=data, model=model), folder=Path())
    assert guessed.site.domain_guessed
    assert guessed.digest() != plan.digest()
    for wrong, message in (
        (stated | {"low": [16, 0]}, r"data.domain: Domain.low: expected 1 or 3 numbers"),
        (stated | {"low": "16"}, r"data.domain.low: expected"),
        (stated | {"high": [90, 1, 0]}, r"data.domain: Domain: expected finite low < high, got low=0.0, high=0.0"),
        (stated | {"lows": [1]}, r"data.domain: .*lows"),
        ({"high": 90.0, "shape": [4]}, r"expected \(b, 4\) from the domain"),
        ([1], r"data.domain"),
    ):
        with pytest.raises(GradleakError, match=message):
            build_plan(content(data=data | {"domain": wrong}, model=model), folder=Path())
    with pytest.raises(PlanError, match=r"data\.domain: expected none, since the data state their own"):
        build_plan(content(data={"use": "scikit_digits", "count": 2, "domain": {"high": 2.0}}), folder=Path())


def test_weights_from_the_global_generator_follow_the_seed_too() -> None:
    """A user's model that knows nothing of generators is the same in every run of a plan."""
    careless = content(model={"use": "tests.auditing.small_model:careless_model"})
    before = torch.random.get_rng_state()
    first, second = build_plan(careless, folder=Path()), build_plan(careless, folder=Path())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.digest() == second.digest()
    assert build_plan(careless | {"seed": 8}, folder=Path()).digest() != first.digest()

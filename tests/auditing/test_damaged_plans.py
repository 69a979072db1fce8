"""Plans that are no plans: each is refused in one line that a terminal can show, before anything is computed."""

from __future__ import annotations

import random
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import Plan, load_plan
from gradleak.auditing.plan_file import DEEPEST, LARGEST, build_plan
from gradleak.audits.base import Controls, PerfectAttackerRule, Scenario, Site
from gradleak.audits.inference import InferenceAudit
from gradleak.audits.layers import LayersAudit
from gradleak.audits.privacy import PrivacyAudit
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.audits.utility import UtilityAudit
from gradleak.datasets import mnist_digits
from gradleak.models import mlp
from gradleak.results import GradleakError, InputError, PlanError
from gradleak.risk import GradientNorm
from tests.cli.command import called
from tools.fuzz.plans import read_one
from tools.plan_mutants import mutant, small_plans
from tools.toml_text import toml_text

OVERRIDE = "\N{RIGHT-TO-LEFT OVERRIDE}"
ISOLATE = "\N{LEFT-TO-RIGHT ISOLATE}"
PLAN: dict[str, Any] = {
    "model": {"use": "mlp", "features": 65, "hidden": [4], "classes": 2},
    "data": {"use": "adult_census", "count": 2},
    "scenarios": [{"name": "plain"}],
}
TEXT = toml_text(PLAN)


def refused(text: str | bytes, folder: Path) -> str:
    file = folder / "plan.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GradleakError) as refusal:
        load_plan(file)
    said = str(refusal.value)
    assert said.isprintable(), said
    assert len(said) < 1000, said
    return said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe", "plan.toml: expected UTF-8 text, got UTF-16; save it as UTF-8"),
        (b"\n\n\xed\xa0\x80", "plan.toml: expected UTF-8 text, got a byte of another encoding in line 3; save it as UTF-8"),
        (b"\xef\xbb\xbfuse = 1", "plan: unknown key 'use'"),
        ("\0", "not valid TOML"),
        ("seed = ", "not valid TOML"),
        ("seed = 1\nseed = 2", "not valid TOML"),
        (f"seed = {'9' * 5000}", "not valid TOML: Exceeds the limit"),
        (f"seed = 0x{'f' * 5000}", "seed: expected a whole number of at most 64 bits, got a number of thousands of digits"),
        (f"seed = {2**64}", "seed: expected a whole number of at most 64 bits, got 18446744073709551616"),
        (f"deep = {'[' * 20000}{']' * 20000}", f"expected lists and tables at most {DEEPEST} deep, got deeper ones"),
        (f"deep = {'[' * 30}{']' * 30}", "[0][0][0][0]: expected lists and tables at most 20 deep"),
        (f"deep = {'{ a = ' * 20000}1{' }' * 20000}", f"expected lists and tables at most {DEEPEST} deep, got deeper ones"),
        (f"{'a.' * 50000}a = 1", f"expected keys of at most {DEEPEST} parts, got a longer one"),
        (f"[{'a . ' * 50000}a]", f"expected keys of at most {DEEPEST} parts, got a longer one"),
        (f"[[{'a.' * 50000}a]]", f"expected keys of at most {DEEPEST} parts, got a longer one"),
        (f"""x = {{ {"'a'." * 30000}"a" = 1 }}""", f"expected keys of at most {DEEPEST} parts, got a longer one"),
        ("#" * (LARGEST + 1), f"expected a plan file of at most {LARGEST:,} bytes, got more"),
        ('name = "a\\u0000b"', "name: expected a text without control characters and marks of direction, got 'a\\x00b'"),
        ('name = "\\u001b[2J"', "name: expected a text without control characters"),
        (f'name = "{OVERRIDE}evil"', "name: expected a text without control characters and marks of direction"),
        (f'"a{ISOLATE}b" = 1', "plan: expected keys of printable characters, got 'a\\u2066b'"),
        (f'{TEXT}[attacks."a\\u0000"]\nuse = "DLG"', "attacks: expected keys of printable characters, got 'a\\x00'"),
        (f"{TEXT}{'k' * 1001} = 1", "expected keys of printable characters, got 'kkkk"),
        ("use = 1979-05-27", "plan: unknown key 'use'"),
        ("[training]", "plan.toml: expected the plan of an audit, got a file for `gradleak train-generator`"),
        ("", "plan: expected a section [model], got none"),
    ],
    ids=range(26),
)  # fmt: skip
def test_a_file_that_is_no_plan(text: str | bytes, message: str, tmp_path: Path) -> None:
    assert message in refused(text, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": []}, "model: expected a table of keys and values, got []"),
        ({"model": {"use": {}}}, "model: expected a name after 'use', got {}"),
        ({"model": {"use": ["mlp"]}}, "model: expected a name after 'use', got ['mlp']"),
        ({"model": {"use": "x" * 5000}}, "model: unknown model 'xxxx"),
        ({"model": PLAN["model"] | {"hidden": [2**40]}}, "network: expected at most 268,435,456 numbers (1 GiB)"),
        ({"model": PLAN["model"] | {"hidden": [2**62, 2**62]}}, "model: mlp raised RuntimeError: "),
        ({"model": PLAN["model"] | {"hidden": ["x"] * 5000}}, "model.hidden"),
        ({"model": PLAN["model"] | {"initialize": {"use": {}}}}, "model.initialize: expected a name after 'use', got {}"),
        ({"model": PLAN["model"] | {"weights": "\\"}}, "model.weights: expected an existing .safetensors file"),
        ({"data": {"use": "mnist_digits", "count": 5000, "size": 2**20}}, "mnist_digits: expected at most 268,435,456"),
        ({"data": PLAN["data"] | {"count": 2**63}}, "count"),
        ({"data": PLAN["data"] | {"batch_size": True}}, "data.batch_size: expected a whole number of at least 1, got True"),
        ({"objective": {"loss": []}}, "objective.loss: expected a name, got []"),
        ({"objective": {"dtype": []}}, "objective.dtype: expected one of float32, float64, got []"),
        ({"objective": {"mode": {}}}, "mode: expected 'eval' or 'train', got {}"),
        ({"objective": {"mask_seed": 2**64 - 1}, "seed": -1}, "seed: expected a whole number from 0"),
        ({"name": ["digits"]}, "name: expected a text, got ['digits']"),
        ({"name": ""}, "name: expected 1 to 200 printable characters, got ''"),
        ({"name": "a\nb"}, "name: expected 1 to 200 printable characters, got 'a\\nb'"),
        ({"name": date(2024, 1, 2)}, "name: expected a text"),
        ({"scenarios": [[]]}, "scenarios[0]: expected a table of keys and values, got []"),
        ({"scenarios": [{"name": ["a"]}]}, "scenario ['a'], name: expected a text, got ['a']"),
        ({"scenarios": [{"name": "x" * 200}]}, "expected a name of 1 to 100 printable characters"),
        ({"scenarios": [{"name": "a", "examples": [2**60]}]}, "examples: expected indices among [0, 1], got [1152921"),
        ({"scenarios": [{"name": "a", "adversaries": [[]]}]}, "unknown adversary '[]'"),
        ({"scenarios": [{"name": "a", "perfect_attacker": {"below": float("inf")}}]}, "below: expected a finite positive number"),
        ({"thresholds": {"epsilon": float("inf")}}, "epsilon: expected a finite positive number, got inf"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds: expected a finite number of at least 0, got nan"),
        ({"attacks": {"a": {"use": "DLG", "iterations": float("inf")}}}, "a.iterations: expected a whole number"),
        ({"scenarios": [{"name": "a", "protocol": {"use": "FedAvg", "learning_rate": float("inf")}}]}, "expected a finite"),
        ({"utility": {"data": PLAN["data"], "test_rows": 1, "learning_rates": [float("inf")]}}, "learning_rates"),
        ({"inference": {"a": {"use": "PropertyGame", "batch_size": [[]]}}}, "inference.a.batch_size"),
        ({"inference": {"a": {"use": "PropertyGame", "batch_size": list(range(1, 20)), "public_rows": list(range(1, 20))}}},
         "expected lists that make at most 100 games"),
        ({"privacy": {"p": {"use": "os:getcwd"}}}, "os:getcwd to return a PrivacyAudit or a HypothesisPair"),
        ({"layers": {"l": {"data": {"use": "adult_table"}, "target": "loan", "visible": {"a": 3}}}}, "layers.l"),
    ],
    ids=range(35),
)  # fmt: skip
def test_values_that_no_key_takes(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refused(toml_text(PLAN | changes), tmp_path)


def test_a_plan_of_one_hundred_scenarios_is_read(tmp_path: Path) -> None:
    many = [{"name": f"scenario {place}"} for place in range(100)]
    assert len(build_plan(PLAN | {"scenarios": many}, folder=tmp_path).site.scenarios) == 100


def test_damaged_plans_are_taken_or_refused(tmp_path: Path) -> None:
    draws = [random.Random(f"test/{number}") for number in range(30)]
    endings = [read_one(mutant(draw, small_plans()), tmp_path) for draw in draws]
    assert set(endings) == {"refused", "taken"}


def test_a_refusal_shows_no_character_that_a_terminal_obeys(tmp_path: Path) -> None:
    ended = called("audit", f"{OVERRIDE}\x1b[2Jplan.toml", "--out", str(tmp_path / "run"))
    assert ended.returncode == 2
    assert ended.stderr == "gradleak:   [2Jplan.toml: expected a plan file (TOML), got no such file\n"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build_plan(PLAN, folder=Path())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": True}, "plan.seed: expected a whole number from 0 to 18,446,744,073,709,551,615, got True"),
        ({"seed": 10**5000}, "plan.seed: expected .*, got a number of thousands of digits"),
        ({"seed": -1}, "plan.seed: expected .*, got -1"),
        ({"name": 3}, "plan.name: expected a text, got 3"),
        ({"name": f"{OVERRIDE}a"}, "name: expected 1 to 200 printable characters"),
        ({"pictures": "no"}, "plan.pictures: expected True or False, got 'no'"),
        ({"batches": 3}, "plan.batches: expected a list of Batch objects, got 3"),
        ({"batches": [3]}, r"plan.batches\[0\]: expected a Batch, got 3"),
        ({"scenarios": ["plain"]}, r"plan.scenarios\[0\]: expected a Scenario, got 'plain'"),
        ({"objective": None}, "plan.objective: expected an Objective, got None"),
        ({"threat": "HonestButCurious"}, "plan.threat: expected a ThreatModel, got 'HonestButCurious'"),
        ({"thresholds": {}}, "plan.thresholds: expected a Thresholds, got {}"),
        ({"controls": None}, "plan.controls: expected a Controls, got None"),
        ({"checkpoint_seconds": float("inf")}, "plan.checkpoint_seconds: expected a finite number of at least 0, got inf"),
        ({"max_bytes": 0}, "plan.max_bytes: expected a whole number of at least 1, got 0"),
    ],
)  # fmt: skip
def test_a_site_made_in_python_takes_the_same(plan: Plan, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(plan, site=replace(plan.site, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release": None}, "scenario.release: expected a Release, got None"),
        ({"examples": "all"}, "scenario.examples: expected a list of whole numbers, got 'all'"),
        ({"examples": [0.5]}, r"scenario.examples\[0\]: expected a whole number, got 0.5"),
        ({"attacks": ["a"]}, r"scenario.attacks: expected .* by name, got \['a'\]"),
        ({"adversaries": ["nobody"]}, r"scenario.adversaries"),
        ({"name": ["a"]}, r"scenario.name: expected a text"),
        ({"perturbation": {}}, "scenario.perturbation: expected a PerturbedGame or None, got {}"),
        ({"updates": {0: "file"}}, r"scenario.updates\[0\]: expected an? Update, got 'file'"),
    ],
)  # fmt: skip
def test_a_scenario_made_in_python_takes_the_same(plan: Plan, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(plan.site.scenarios[0], **changes)


def test_a_plan_made_in_python_takes_the_same(plan: Plan) -> None:
    for changes, message in (
        ({"site": None}, "Plan.site: expected a Site, got None"),
        ({"audits": [print]}, r"Plan.audits\[0\]: expected an Audit"),
        ({"audits": "reconstruction"}, "Plan.audits: expected a list"),
        ({"source": []}, "Plan.source: expected values by name, got"),
    ):
        with pytest.raises(PlanError, match=message):
            replace(plan, **changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Controls(positive="yes"), "controls.positive: expected True or False"),
        (lambda: Controls(attack=["a"]), "controls.attack: expected a text"),
        (lambda: PerfectAttackerRule(max_steps=0), "perfect_attacker.max_steps: expected a whole number of at least 1"),
        (lambda: ReconstructionAudit(attacks={"a": "DLG"}), r"ReconstructionAudit.attacks\['a'\]: expected an Attack, got 'DLG'"),
        (lambda: InferenceAudit(game="PropertyGame"), "InferenceAudit.game: expected an InferenceGame"),
        (lambda: PrivacyAudit(pairs=[3]), "PrivacyAudit.pairs: expected HypothesisPair objects by name"),
        (lambda: UtilityAudit(task=3, training=None), "UtilityAudit.task: expected a Task, got 3"),
        (lambda: LayersAudit(rows=[1], measures=[GradientNorm()]), "LayersAudit.rows: expected a Population or a Batch"),
        (lambda: Scenario(name="a", release=3, examples=()), "scenario.release: expected a Release, got 3"),
        (lambda: Site(name="a", seed=0, objective=3, batches=(), scenarios=()), "plan.objective: expected an Objective, got 3"),
        (lambda: mlp(features=2**20, classes=2**20, hidden=()), "network: expected at most 268,435,456 numbers"),
        (lambda: mnist_digits(count=5000, size=4096), "mnist_digits: expected at most 268,435,456 numbers"),
    ],
)  # fmt: skip
def test_audits_made_in_python_take_the_same(make: Any, message: str) -> None:
    with pytest.raises((PlanError, InputError), match=message):
        make()


def test_the_writer_of_damaged_plans_writes_what_is_read_back() -> None:
    content = PLAN | {
        "name": 'a"\\\n\tb',
        "x": [1, [2.5, {"a b": True}]],
        "t": date(2024, 1, 2),
        "many": [{"a": 1}, {}],
    }
    assert tomllib.loads(toml_text(content)) == content


def test_every_error_of_a_plan_is_one_of_the_package() -> None:
    assert issubclass(PlanError, GradleakError)

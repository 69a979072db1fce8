"""The JSON Schema of plan files, held against the examples and against plans that the reader refuses, too."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gradleak.auditing.plan_schema import generator_schema, plan_schema
from gradleak.auditing.schema_writer import Schema
from gradleak.cli.commands import app
from tools.json_schema import faults

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAININGS = ("digits_generator.toml",)


@pytest.fixture(scope="module")
def whole() -> Schema:
    return plan_schema()


def example(name: str) -> dict[str, Any]:
    return tomllib.loads((EXAMPLES / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(file.name for file in EXAMPLES.glob("*.toml") if file.name not in TRAININGS))
def test_every_example_is_a_plan(name: str, whole: Schema) -> None:
    assert list(faults(example(name), whole, whole)) == []


@pytest.mark.parametrize("name", TRAININGS)
def test_every_training_is_one(name: str) -> None:
    schema = generator_schema()
    assert list(faults(example(name), schema, schema)) == []
    broken = example(name)
    broken["training"]["steps"] = "many"
    assert [fault.split(":")[0] for fault in faults(broken, schema, schema)] == ["plan.training.steps"]


@pytest.mark.parametrize(
    ("plan", "path", "value"),
    [
        ("digits", "seed", -1),
        ("digits", "seeds", 1),
        ("digits", "pictures", "yes"),
        ("digits", "model.use", "lenet_i3f"),
        ("digits", "model.activation", "sigmoyd"),
        ("digits", "model.channel", 3),
        ("digits", "model.initialize.use", "unifrm"),
        ("digits", "data.count", "6"),
        ("digits", "data.batch_size", 0),
        ("digits", "objective.mode", "evaluate"),
        ("digits", "objective.loss", "cross_entrpy"),
        ("digits", "threat.domain", "true"),
        ("digits", "thresholds.pixel_rmse", 3.0),
        ("digits", "thresholds.pixel_rsme", 0.1),
        ("digits", "controls.positive", 1),
        ("digits", "attacks.gauss_newton.max_steps", 1.5),
        ("digits", "attacks.gauss_newton.max_step", 12),
        ("digits", "attacks.gauss_newton.steps", {"use": "KrylovStep"}),
        ("digits", "attacks.gauss_newton.steps", {"use": "KrylovSteps", "forcing": 1.0}),
        ("digits", "attacks.dlg.use", "InversionInfluence"),
        ("digits", "attacks.dlg.iterations", True),
        ("digits", "measures.influence.unit", "pixels"),
        ("digits", "measures.influence.solver", {"use": "HutchPlusPlus"}),
        ("digits", "scenarios.0.example", "all"),
        ("digits", "scenarios.0.attacks.dlg", "some"),
        ("digits", "scenarios.0.defenses", {"use": "Sign"}),
        ("digits", "scenarios.1.defenses.0.std", -1e-4),
        ("digits", "scenarios.1.defenses.0.sigma", 1e-4),
        ("digits", "scenarios.1.perfect_attacker.below", "0.05"),
        ("digits", "scenarios.2.adversaries", ["adaptiv"]),
        ("digits", "scenarios.0.reference", "yes"),
        ("digits", "scenarios.1.require", "not_leaks"),
        ("digits_prior", "threat.generator", {"use": "trained_generater"}),
        ("adult_inference", "inference.gender.rounds", 0),
        ("adult_inference", "inference.gender.release", {}),
        ("adult_inference", "inference.gender.features.kernel", 0),
        ("adult_inference", "inference.gender.adversary.use", "RandomForrest"),
        ("adult_inference", "scenarios.3.defenses.0.noise", "per_row"),
        ("adult_privacy", "privacy.sex.delta", 1.0),
        ("adult_privacy", "privacy.sex.canary.start", 4),
        ("adult_privacy", "privacy.sex.estimators.0.delta", 1e-5),
        ("adult_layers", "layers.gender.by", "block"),
        ("adult_layers", "layers.gender.budget", 1.5),
        ("adult_layers", "layers.gender.measures.0.by", "layer"),
        ("adult_layers", "layers.gender.measures.2.classifier", "RandomForest"),
        ("adult_layers", "layers.gender.visible", {"mine": {"hidden": ["0"]}}),
    ],
)  # fmt: skip
def test_broken_plans_are_not(plan: str, path: str, value: Any, whole: Schema) -> None:
    broken = copy.deepcopy(example(f"{plan}.toml"))
    inside: Any = broken
    *outer, last = path.split(".")
    for key in outer:
        inside = inside[int(key) if isinstance(inside, list) else key]
    inside[int(last) if isinstance(inside, list) else last] = value
    found = list(faults(broken, whole, whole))
    assert found
    assert all(fault.partition(":")[0].removeprefix("plan.").startswith(path.split(".")[0]) for fault in found)


@pytest.mark.parametrize(("plan", "section"), [("digits", "model"), ("digits", "scenarios")])
def test_what_is_missing_is_said(plan: str, section: str, whole: Schema) -> None:
    broken = example(f"{plan}.toml")
    del broken[section]
    assert list(faults(broken, whole, whole)) == [f"plan: {section} is missing"]


def test_ways_of_writing_that_examples_lack(whole: Schema) -> None:
    plan = example("adult_inference.toml")
    plan["inference"]["gender"] |= {"batch_size": [8, 16], "seeds": 2, "scenarios": ["signs"]}
    plan["scenarios"][0] |= {"reference": True}
    plan["scenarios"][1] |= {"require": "not leaks"}
    plan["scenarios"][0]["protocol"] = {"use": "FedAvg", "learning_rate": 1}
    plan["scenarios"][1]["defenses"] = [
        {"use": "DPSGD.from_noise_multiplier", "noise_multiplier": 1.0, "clip_norm": 1.0},
        {"use": "mypackage.defenses:Mine", "whatever": 1},
    ]
    plan["inference"]["gender"]["adversary"] = {"use": "Ordinal", "base": {"use": "LogisticRegression"}}
    assert list(faults(plan, whole, whole)) == []
    plan["inference"]["gender"]["adversary"]["base"]["iterations"] = 0
    assert list(faults(plan, whole, whole))


def test_the_command_prints_it(whole: Schema) -> None:
    printed = CliRunner().invoke(app, ["schema"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == json.loads(json.dumps(whole))
    assert "training" in json.loads(CliRunner().invoke(app, ["schema", "--generator"]).stdout)["properties"]

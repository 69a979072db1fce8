"""What a plan file means by a name, and what it says of one that is meant otherwise."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from gradleak.auditing import Plan, build_plan
from gradleak.auditing.plan_names import filled_in
from gradleak.core import ImageGenerator
from gradleak.defenses import DPSGD
from gradleak.results import PlanError

PLAN = """
seed = 1
[model]
use = "tests.auditing.small_model:small_mlp"
[data]
use = "scikit_digits"
count = 1
[[scenarios]]
name = "s"
"""


def plan_with(tmp_path: Path, *defenses: dict[str, Any], **scenario: Any) -> Plan:
    content = tomllib.loads(PLAN)
    content["scenarios"][0] |= {"defenses": list(defenses)} | scenario
    return build_plan(content, folder=tmp_path)


def test_dp_sgd_by_its_noise_multiplier(tmp_path: Path) -> None:
    spec = {"use": "DPSGD.from_noise_multiplier", "noise_multiplier": 1.1, "clip_norm": 2.0}
    plan = plan_with(tmp_path, spec)
    assert plan.site.scenarios[0].release.defenses == (DPSGD(clip_norm=2.0, noise_std=2.2, noise="sum"),)


@pytest.mark.parametrize(
    ("defense", "message"),
    [
        (
            {"use": "DPSGD", "clip_norm": 1.0, "noise_multiplier": 1.1, "noise": "sum"},
            "unknown key 'noise_multiplier'; write use = 'DPSGD.from_noise_multiplier' without noise_std and noise, or "
            "noise_std = noise_multiplier",
        ),
        ({"use": "DPSGD", "clip_norm": 1.0, "noise_std": 1.0}, "expected noise ('per_example' or 'sum') too"),
        ({"use": "DPSGD.from_noise_multiplier", "clip_norm": 1.0}, "expected noise_multiplier too"),
        ({"use": "DPSGD.from_nothing", "clip_norm": 1.0}, "unknown class method 'from_nothing'; expected one of from_noise"),
        (
            {"use": "SecureAggregation", "examples": [1]},
            "SecureAggregation is a protocol, not a defense; it stands in protocol = { use = ... } of a scenario",
        ),
        ({"use": "InvertingGradients"}, "InvertingGradients is an attack, not a defense; it stands in a table [attacks.NAME]"),
        ({"use": "scikit_digits"}, "scikit_digits is a dataset, not a defense; it stands in the section [data]"),
    ],
)  # fmt: skip
def test_what_is_not_a_defense_is_one_clear_line(defense: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        plan_with(tmp_path, defense)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_defense_that_is_given_as_a_protocol(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"Clip is a defense, not a protocol; it stands in the list defenses = \["):
        plan_with(tmp_path, protocol={"use": "Clip", "max_norm": 1.0})


def test_a_class_of_the_users_own_is_checked_for_its_kind(tmp_path: Path) -> None:
    for name, message in (
        ("gradleak.protocols:FedSGD", "a kind of Defense"),
        ("math:sqrt", "to return a Defense, and it does not say what it returns"),
    ):
        with pytest.raises(PlanError, match=message):
            plan_with(tmp_path, {"use": name})


def test_only_generators_of_random_numbers_are_drawn_by_the_plan() -> None:
    for kind in (torch.Generator, torch.Generator | None, object, Any):
        assert filled_in(["generator", "seed", "count"], {"generator": kind, "count": int}) == ["generator", "seed"]
    assert filled_in(["generator"], {}) == ["generator"]  # a function without annotations
    for kind in (ImageGenerator, ImageGenerator | None, str, str | None):
        assert filled_in(["generator", "seed"], {"generator": kind}) == ["seed"]

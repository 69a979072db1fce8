"""Lists in place of a number of a defense: one scenario for each."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import build_plan
from gradleak.auditing.plan_schema import plan_schema
from gradleak.defenses import DPSGD, Clip, GaussianNoise
from gradleak.results import PlanError
from tests.auditing.conftest import SMALL_PLAN
from tools.json_schema import faults

DPSGD_SWEEP: dict[str, Any] = {"use": "DPSGD.from_noise_multiplier", "clip_norm": 2.0, "noise_multiplier": [0.3, 1, 3]}


def content(*defenses: Any) -> dict[str, Any]:
    scenarios = [{"name": "plain"}, {"name": "dpsgd", "defenses": list(defenses)}]
    return tomllib.loads(SMALL_PLAN) | {"scenarios": scenarios}


def test_every_number_makes_a_scenario_named_by_it() -> None:
    plan = build_plan(content(DPSGD_SWEEP), folder=Path())
    names = ["plain", *(f"dpsgd (noise_multiplier={value})" for value in ("0.3", "1", "3"))]
    assert [scenario.name for scenario in plan.site.scenarios] == names
    swept = [scenario.release.defenses[0] for scenario in plan.site.scenarios[1:]]
    assert [one.noise_std for one in swept if isinstance(one, DPSGD)] == [0.6, 2.0, 6.0]


def test_several_lists_make_every_combination() -> None:
    defenses = ({"use": "Clip", "max_norm": [1.0, 2.0]}, {"use": "GaussianNoise", "std": [1e-4, 3.1622776601683794e-4]})
    plan = build_plan(content(*defenses), folder=Path())
    assert [scenario.name for scenario in plan.site.scenarios[1:]] == [
        "dpsgd (max_norm=1, std=0.0001)",
        "dpsgd (max_norm=1, std=0.00031622776601683794)",
        "dpsgd (max_norm=2, std=0.0001)",
        "dpsgd (max_norm=2, std=0.00031622776601683794)",
    ]
    clip, noise = plan.site.scenarios[2].release.defenses
    assert isinstance(clip, Clip)
    assert isinstance(noise, GaussianNoise)
    assert (clip.max_norm, noise.std) == (1.0, 3.1622776601683794e-4)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "expected a number, or different ones in a list for a sweep, got"),
        ([1.0, 1.0], "different ones"),
        ([1.0, "2"], "different ones"),
        ([True, 2.0], "different ones"),
        ([1.0, -1.0], r"scenario 'dpsgd \(std=-1\)'"),
        ([0.1 * k for k in range(1, 102)], "at most 100 scenarios"),
    ],
)
def test_a_wrong_list_is_refused_in_one_line(values: list[Any], said: str) -> None:
    with pytest.raises(PlanError, match=said) as refusal:
        build_plan(content({"use": "GaussianNoise", "std": values}), folder=Path())
    assert "\n" not in str(refusal.value)


def test_the_schema_knows_sweeps() -> None:
    whole = plan_schema()
    assert list(faults(content(DPSGD_SWEEP), whole, whole)) == []
    assert list(faults(content(DPSGD_SWEEP | {"noise_multiplier": []}), whole, whole))

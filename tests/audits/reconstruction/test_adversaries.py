"""Defended releases are attacked by an adversary who knows the defenses and by one who does not, side by side."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.auditing.broken_attack import Lucky

import gradleak as gl
from gradleak.auditing import Adversary, Plan, build_plan, run_plan, tasks
from gradleak.audits.base import Refusal
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.audits.released import ReleaseAudit
from gradleak.results import PlanError, Record
from gradleak.results.findings.reconstruction import ReconstructionFinding
from gradleak.results.findings.released import ReleaseFinding

PLAN = """
name = "defended"
seed = 3

[model]
use = "tests.auditing.small_model:small_mlp"

[data]
use = "scikit_digits"
count = 1

[controls]
positive = false

[attacks.gauss_newton]
use = "GaussNewton"
max_steps = 4
starts = 1

[[scenarios]]
name = "hidden"
defenses = [{ use = "Sign" }, { use = "GaussianNoise", std = 1e-3 }]
attacks = { gauss_newton = "all" }

[[scenarios]]
name = "open"
attacks = { gauss_newton = "all" }

[[scenarios]]
name = "noisy"
defenses = [{ use = "GaussianNoise", std = 1e-3 }]
attacks = { gauss_newton = "all" }
"""


def plan(**changes: Any) -> Plan:
    return build_plan(tomllib.loads(PLAN) | changes, folder=Path())


def items(of: Plan) -> list[str]:
    return [task.name.removeprefix("attack/") for task in tasks(of) if task.name.startswith("attack/")]


def attacking(of: Plan, lucky: Lucky) -> Plan:
    """The same scenarios, attacked by another attack alone."""
    scenarios = [replace(scenario, attacks={"lucky": [0]}) for scenario in of.site.scenarios]
    audits = [ReleaseAudit(), ReconstructionAudit(attacks={"lucky": lucky})]
    return Plan(site=replace(of.site, scenarios=scenarios), audits=audits)


def found_in(record: Record) -> dict[str, ReconstructionFinding]:
    return {one.item: one for one in record.findings if isinstance(one, ReconstructionFinding)}


def passed(record: Record) -> dict[str, bool | None]:
    return {item: one.control.passed for item, one in found_in(record).items() if one.control is not None}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run_plan(plan(), tmp_path_factory.mktemp("adversaries"), jobs=1)


def test_the_adaptive_item_keeps_its_name_and_the_static_one_gets_a_suffix() -> None:
    assert items(plan()) == [
        "hidden/example 0/gauss_newton",
        "hidden/example 0/gauss_newton/static",
        "open/example 0/gauss_newton",
        "noisy/example 0/gauss_newton",
        "noisy/example 0/gauss_newton/static",
    ]


@pytest.mark.parametrize(
    ("chosen", "suffixes"), [(["static", "adaptive"], ["", "/static"]), (["adaptive"], [""]), (["static"], ["/static"])]
)
def test_a_plan_can_say_who_attacks(chosen: Sequence[str], suffixes: Sequence[str]) -> None:
    found = [item.removeprefix("noisy/example 0/gauss_newton") for item in items(plan(adversaries=chosen))]
    assert [suffix for suffix in found if suffix in ("", "/static")] == list(suffixes)
    content = tomllib.loads(PLAN)
    content["scenarios"][2]["adversaries"] = chosen
    one = build_plan(content | {"adversaries": ["adaptive"]}, folder=Path())
    assert one.site.scenarios[0].adversaries == (Adversary.ADAPTIVE,)
    assert one.site.scenarios[2].adversaries == tuple(Adversary(name) for name in chosen)


def test_a_server_that_is_not_told_of_defenses_attacks_once() -> None:
    threat = {"use": "HonestButCurious", "defenses": False}
    assert not [item for item in items(plan(threat=threat)) if item.endswith("/static")]
    with pytest.raises(PlanError, match=r"threat\.defenses is false"):
        plan(threat=threat, adversaries=["adaptive"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["adaptiv"], "did you mean 'adaptive'"),
        ("static", "expected a list"),
        ([], "one at least"),
        (["static", "static"], "at most once"),
    ],
)
def test_other_values_are_one_clear_line(value: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(adversaries=value)


def test_who_attacks_is_part_of_the_digest() -> None:
    assert plan().resolved()["scenarios"][2]["adversaries"] is None
    assert plan(adversaries=["static"]).digest() != plan().digest()


def test_what_will_be_refused_is_known_before_anything_is_computed(record: Record) -> None:
    found = plan().refusals()
    assert [one.what for one in found] == ["hidden: gauss_newton, adaptive"]
    assert "Sign before GaussianNoise" in found[0].reason
    assert record.run["refusals"] == [str(found[0])]
    assert str(found[0]).startswith("will be refused: hidden: gauss_newton, adaptive: ")
    assert isinstance(found[0], Refusal)


def test_both_stand_in_the_record_and_the_refused_one_with_its_reason(record: Record) -> None:
    found = found_in(record)
    hidden = found["hidden/example 0/gauss_newton"]
    assert (hidden.status, hidden.adversary) == ("refused", "adaptive")
    assert "Sign before GaussianNoise" in hidden.note
    assert found["hidden/example 0/gauss_newton/static"].status == "done"
    assert found["open/example 0/gauss_newton"].adversary == ""
    assert found["noisy/example 0/gauss_newton/static"].adversary == "static"
    # The noise control takes a run that is not refused, so that the attack stays credible elsewhere.
    assert passed(record)["control/negative/gauss_newton"] is True
    verdict = next(verdict for verdict in record.verdicts if verdict.item == "hidden")
    assert "No adversary who knows the defenses could be tried" in verdict.explanation


def test_noise_is_given_to_both_adversaries(record: Record) -> None:
    names = {"control/negative/gauss_newton", "control/negative/gauss_newton/static"}
    assert set(passed(record)) == names
    static = found_in(record)["control/negative/gauss_newton/static"]
    assert static.control is not None
    assert (static.control.passed, static.adversary) == (True, "static")

    def noises(one: Plan) -> list[str]:
        return [task.name for task in tasks(one) if task.name.startswith("control/negative")]

    alone = ["control/negative/gauss_newton"]
    assert noises(plan(threat={"use": "HonestButCurious", "defenses": False})) == alone
    assert noises(plan(scenarios=plan_scenarios("open"))) == alone
    # One who knows the defenses is refused there.
    assert noises(plan(scenarios=plan_scenarios("hidden"))) == alone
    assert noises(plan(scenarios=plan_scenarios("noisy"))) == [*alone, "control/negative/gauss_newton/static"]


def plan_scenarios(*names: str) -> list[Any]:
    by = {scenario["name"]: scenario for scenario in tomllib.loads(PLAN)["scenarios"]}
    return [by[name] for name in names]


@pytest.mark.parametrize("order", [["hidden", "noisy"], ["noisy", "hidden"]])
def test_one_who_knows_the_defenses_is_given_noise_whatever_comes_first(order: list[str], tmp_path: Path) -> None:
    one = plan(scenarios=plan_scenarios(*order))
    lucky = Lucky(claim=one.site.batches[0].inputs.clone(), told_alone=True)
    found = run_plan(attacking(one, lucky), tmp_path / "out", jobs=1)
    assert passed(found) == {"control/negative/lucky": False, "control/negative/lucky/static": True}


def test_a_static_adversary_that_finds_the_truth_in_noise_fails_its_control(tmp_path: Path) -> None:
    one = plan(scenarios=plan_scenarios("noisy"))
    lucky = Lucky(claim=one.site.batches[0].inputs.clone(), untold_alone=True)
    found = run_plan(attacking(one, lucky), tmp_path / "out", jobs=1)
    assert passed(found) == {"control/negative/lucky": True, "control/negative/lucky/static": False}
    assert {verdict.reason for verdict in found.verdicts} == {"control_failed"}
    assert "control/negative/lucky/static failed" in found.verdicts[0].explanation


def test_they_differ_in_what_they_know_alone(record: Record) -> None:
    site = plan().site
    noisy = site.scenarios[2]
    told, static = site.knowledge(noisy, 0), site.knowledge(noisy, 0, withheld=True)
    assert static.defenses is None
    assert told.defenses == noisy.release.defenses
    assert replace(told, defenses=None).card() == static.card()
    losses = [one.loss for one in found_in(record).values() if one.scenario == "noisy"]
    assert len(losses) == 2
    assert None not in losses


def test_the_report_shows_them_side_by_side(record: Record, tmp_path: Path) -> None:
    page = gl.write_html(record, tmp_path / "report.html").read_text(encoding="utf-8").replace("<wbr>", "")
    section = page.split('id="adversaries"')[1].split("</div></div>")[0].split("</table>")
    assert section[0].count('<tr><th scope="row">') == 2
    assert "refused" in section[0]
    assert "hidden: gauss_newton, adaptive: " in section[1]
    assert "Sign before GaussianNoise" in section[1]
    assert "gauss_newton, static" in page


@pytest.mark.parametrize(
    ("defenses", "expected"),
    [
        ([], ""),
        (
            [{"use": "ClipPerExample", "max_norm": 1.0}, {"use": "GaussianNoise", "std": 0.1}],
            "formal, hides an example",
        ),
        (
            [
                {"use": "DPSGD", "clip_norm": 1.0, "noise_std": 0.1, "noise": "sum"},
                {"use": "SpectralNoise", "norm": 0.1},
            ],
            "heuristic",
        ),
    ],
    ids=["none", "two heuristic ones", "a formal one undone"],
)
def test_the_record_labels_a_release_as_a_whole(defenses: list[dict[str, Any]], expected: str, tmp_path: Path) -> None:
    chosen = plan(scenarios=[{"name": "one", "defenses": defenses, "attacks": {"gauss_newton": "all"}}])
    task = next(task for task in tasks(chosen) if task.name == "release/example 0")
    (found,) = task.run(chosen.site, tmp_path)
    assert isinstance(found, ReleaseFinding)
    assert found.guarantee == expected
    assert [entry["use"] for entry in found.defenses] == [entry["use"] for entry in defenses]

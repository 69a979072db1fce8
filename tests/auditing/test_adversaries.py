"""Defended releases are attacked by an adversary who knows the defenses and by one who does not, side by side."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gradleak.auditing.tasks import groups

import gradleak as gl
from gradleak.auditing import Adversary, Plan, Refusal, Thresholds, build_plan, judge, refusals, run_plan
from gradleak.results import PlanError, Record, VerdictKind
from tests.auditing.broken_attack import Lucky
from tests.auditing.test_verdict import BASELINE, attack, release

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
    return [group.name.removeprefix("attack/") for group in groups(of) if group.name.startswith("attack/")]


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
    assert one.scenarios[0].adversaries == [Adversary.ADAPTIVE]
    assert one.scenarios[2].adversaries == [Adversary(name) for name in chosen]


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


def test_an_unstated_choice_leaves_the_digest_of_old_records() -> None:
    assert "adversaries" not in plan().resolved()["scenarios"][2]
    assert plan(adversaries=["static"]).digest() != plan().digest()


def test_what_will_be_refused_is_known_before_anything_is_computed(record: Record) -> None:
    found = refusals(plan())
    assert [(one.scenario, one.attacks, one.adversary) for one in found] == [
        ("hidden", ["gauss_newton"], Adversary.ADAPTIVE)
    ]
    assert "will be refused: hidden: gauss_newton, adaptive: " in str(found[0])
    assert "Sign before GaussianNoise" in found[0].reason
    assert record.run["refusals"] == [found[0].to_dict()]
    assert isinstance(found[0], Refusal)


def test_both_stand_in_the_record_and_the_refused_one_with_its_reason(record: Record) -> None:
    lines = {line["item"]: line for line in record.items if line["kind"] == "attack"}
    hidden = lines["hidden/example 0/gauss_newton"]
    assert (hidden["status"], hidden["adversary"]) == ("refused", "adaptive")
    assert "Sign before GaussianNoise" in hidden["note"]
    assert lines["hidden/example 0/gauss_newton/static"]["status"] == "done"
    assert "adversary" not in lines["open/example 0/gauss_newton"]
    assert lines["noisy/example 0/gauss_newton/static"]["adversary"] == "static"
    # The noise control takes a run that is not refused, so that the attack stays credible elsewhere.
    control = next(line for line in record.items if line["item"] == "control/negative/gauss_newton")
    assert control["passed"] is True
    verdict = next(verdict for verdict in record.verdicts if verdict.item == "hidden")
    assert "No adversary who knows the defenses could be tried" in verdict.explanation


def test_noise_is_given_to_both_adversaries(record: Record) -> None:
    controls = {line["item"]: line for line in record.items if line["kind"] == "control"}
    assert set(controls) == {"control/negative/gauss_newton", "control/negative/gauss_newton/static"}
    static = controls["control/negative/gauss_newton/static"]
    assert (static["passed"], static["adversary"]) == (True, "static")

    def noises(one: Plan) -> list[str]:
        return [group.name for group in groups(one) if group.name.startswith("control/negative")]

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
    told = Lucky(claim=one.batches[0].inputs.clone(), told_alone=True)
    scenarios = [replace(scenario, attacks={"lucky": [0]}) for scenario in one.scenarios]
    found = run_plan(replace(one, attacks={"lucky": told}, scenarios=scenarios), tmp_path / "out", jobs=1)
    passed = {line["item"]: line["passed"] for line in found.items if line["kind"] == "control"}
    assert passed == {"control/negative/lucky": False, "control/negative/lucky/static": True}


def test_a_static_adversary_that_finds_the_truth_in_noise_fails_its_control(tmp_path: Path) -> None:
    one = plan(scenarios=plan_scenarios("noisy"))
    lucky = Lucky(claim=one.batches[0].inputs.clone(), untold_alone=True)
    scenario = replace(one.scenarios[0], attacks={"lucky": [0]})
    found = run_plan(replace(one, attacks={"lucky": lucky}, scenarios=[scenario]), tmp_path / "out", jobs=1)
    passed = {line["item"]: line["passed"] for line in found.items if line["kind"] == "control"}
    assert passed == {"control/negative/lucky": True, "control/negative/lucky/static": False}
    assert {verdict.reason for verdict in found.verdicts} == {"control_failed"}
    assert "control/negative/lucky/static did not give" in found.verdicts[0].explanation


def test_they_differ_in_what_they_know_alone(record: Record) -> None:
    one = plan()
    noisy = one.scenarios[2]
    told, static = one.knowledge(noisy, 0), one.knowledge(noisy, 0, withheld=True)
    assert static.defenses is None
    assert told.defenses == noisy.release.defenses
    assert replace(told, defenses=None).card() == static.card()
    losses = {line["item"]: line["loss"] for line in record.items if line.get("scenario") == "noisy" and "loss" in line}
    assert len(losses) == 2


def test_the_report_shows_them_side_by_side(record: Record, tmp_path: Path) -> None:
    page = gl.write_html(record, tmp_path / "report.html").read_text(encoding="utf-8")
    section = page.split('<section id="adversaries">')[1].split("</section>")[0]
    assert section.count('<tr><th scope="row">') == 2
    assert "refused" in section
    assert "Sign before GaussianNoise" in section
    assert "gauss_newton, static" in page.replace("<wbr>", "")


def both(adaptive: float | None, static: float | None, **more: Any) -> list[Any]:
    lines = [release(), BASELINE]
    for error, adversary in ((adaptive, "adaptive"), (static, "static")):
        item = "undefended/example 0/gn" + ("" if adversary == "adaptive" else "/static")
        own = more if error is None else {}
        rows = attack(error, adversary=adversary, **own)
        lines += [{**row, "item": item, "attack": "gn"} for row in rows]
    return lines


@pytest.mark.parametrize(("adaptive", "static", "who"), [(0.01, 0.25, "adaptive"), (0.25, 0.01, "static")])
def test_a_leak_by_either_counts(adaptive: float, static: float, who: str) -> None:
    verdict = judge(both(adaptive, static), Thresholds())[0]
    assert verdict.verdict is VerdictKind.LEAKS
    assert verdict.details["adversary"] == who
    assert f"gn ({who} adversary) rebuilt" in verdict.explanation


def test_a_static_failure_beside_a_refusal_says_that_nobody_who_knows_was_tried() -> None:
    refused = {"status": "refused", "outcome": "unsupported", "note": "it cannot"}
    verdict = judge(both(None, 0.25, **refused), Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "No adversary who knows the defenses could be tried: it cannot" in verdict.explanation
    assert "could be tried" not in judge(both(0.25, 0.25), Thresholds())[0].explanation


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
    group = next(group for group in groups(chosen) if group.name == "release/example 0")
    line = group.work(chosen, tmp_path)[0]
    assert line["guarantee"] == expected
    assert [entry["use"] for entry in line["defenses"]] == [entry["use"] for entry in defenses]

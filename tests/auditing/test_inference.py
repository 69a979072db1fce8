"""Inference games in a plan: played against every scenario, with their controls, verdicts and resume."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import Plan, build_plan, estimate, inference_plan, judge, load_plan, run_plan
from gradleak.auditing.inference_plan import InferencePlan
from gradleak.auditing.inference_verdict import judge_games
from gradleak.auditing.verdict import Thresholds
from gradleak.results import PlanError, Record, VerdictKind

GAME = {
    "use": "PropertyGame",
    "population": {"use": "tests.auditing.small_population:two_groups"},
    "batch_size": 8,
    "rounds": 2,
    "private_rows": 200,
    "public_rows": 200,
    "trials": 200,
    "shadow_batches": 200,
    "features": {"use": "AllEntries"},
    "adversary": {"use": "RandomForest", "trees": 20},
}


def content(**changes: Any) -> dict[str, Any]:
    """A plan of one game against an undefended release and signs."""
    return {
        "name": "games",
        "seed": 3,
        "model": {"use": "mlp", "features": 6, "hidden": [8], "classes": 2},
        "inference": {"group": GAME},
        "scenarios": [{"name": "plain"}, {"name": "signs", "defenses": [{"use": "Sign"}]}],
    } | changes


def plan(**changes: Any) -> Plan:
    return build_plan(content(**changes), folder=Path())


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run_plan(plan(), tmp_path_factory.mktemp("games"), jobs=1)


def test_a_plan_of_games_alone_is_played_against_every_scenario(record: Record) -> None:
    played = [(line["item"], line["attack"]) for line in record.items if line["kind"] == "inference"]
    assert played == [(f"{name}/group", who) for name in ("plain", "signs") for who in ("static", "adaptive")]
    assert all(line["game_name"] == "group" for line in record.items if line["kind"] == "inference")
    assert not any(key in line for line in record.items for key in ("log_posteriors", "truth"))


def test_both_controls_are_run_and_pass(record: Record) -> None:
    controls = {line["item"]: line["passed"] for line in record.items if line["kind"] == "control"}
    assert controls == {"control/positive/group": True, "control/negative/group": True}


def test_a_leaking_property_is_judged_so_and_the_run_with_it(record: Record) -> None:
    verdicts = {verdict.item: verdict for verdict in record.verdicts}
    plain = verdicts["plain/group"]
    assert (plain.verdict, plain.reason) == (VerdictKind.LEAKS, "advantage_above_zero")
    assert plain.details["advantage_interval"][0] > 0
    assert "told group (a, b) from the updates of 2 rounds" in plain.explanation
    assert verdicts["run"].verdict is VerdictKind.LEAKS


def test_a_record_is_the_same_whatever_the_number_of_workers(record: Record, tmp_path: Path) -> None:
    again = run_plan(plan(), tmp_path, jobs=2)

    def scores(found: Record) -> list[tuple[str, str, Any]]:
        return [(line["item"], line["name"], line["value"]) for line in found.lines if line["type"] == "score"]

    assert sorted(map(str, scores(again))) == sorted(map(str, scores(record)))


def test_another_population_is_not_continued(record: Record, tmp_path: Path) -> None:
    run_plan(plan(inference={"group": GAME | {"trials": 50, "rounds": 1}}), tmp_path, jobs=1)
    other = GAME | {"trials": 50, "rounds": 1, "population": {**GAME["population"], "gap": 2.0}}
    with pytest.raises(PlanError, match="nothing was written"):
        run_plan(plan(inference={"group": other}), tmp_path, jobs=1)


def test_the_estimate_counts_the_games() -> None:
    once = estimate(plan())
    assert estimate(plan(inference={"group": GAME | {"seeds": 2}})) == pytest.approx(2 * once)
    assert estimate(plan(inference={"group": GAME | {"scenarios": ["plain"]}})) == pytest.approx(once / 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inference": {"group": GAME | {"rouds": 3}}}, "did you mean 'rounds'"),
        ({"inference": {"group": GAME | {"model": {"use": "mlp"}}}}, r"takes it from \[model\]"),
        ({"inference": {"group": GAME | {"control": "shuffled"}}}, "plays both controls of every game by itself"),
        ({"inference": {"group": GAME | {"scenarios": ["planes"]}}}, "did you mean 'plain'"),
        ({"inference": {"group": GAME | {"seeds": 0}}}, "at least 1"),
        ({"inference": {"group": {**GAME, "use": "PropertyGam"}}}, "did you mean 'PropertyGame'"),
        ({"inference": {"group": {k: v for k, v in GAME.items() if k != "population"}}}, "expected population too"),
        ({"inference": {}}, "at least one batch, inference game"),
        (
            {"scenarios": [{"name": "p", "perturbation": {"gama": 0.1}}]},
            "did you mean 'gamma'",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(**changes)


def test_too_few_rows_are_refused_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"inference\.group: .*600"):
        run_plan(plan(inference={"group": GAME | {"private_rows": 5000}}), tmp_path, jobs=1)
    assert not (tmp_path / "record.jsonl").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [({"features": 7}, r"inference\.group: the model does not accept inputs of shape \(\d, 6\)"),
     ({"classes": 1}, r"inference\.group: targets: expected class indices from 0 to 0")],
)  # fmt: skip
def test_a_model_that_does_not_fit_the_rows_is_refused_before_anything_is_played(
    model: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=message):
        run_plan(plan(model=content()["model"] | model), tmp_path, jobs=1)
    assert not (tmp_path / "record.jsonl").exists()


def test_a_control_in_place_of_a_game_is_refused() -> None:
    game = replace(plan().inference["group"].game, control="planted")
    with pytest.raises(PlanError, match=r"inference, control: expected a game, got a control of one \(planted\)"):
        InferencePlan(game=game)


def test_a_scenario_that_a_game_cannot_take_is_refused_and_the_others_are_played(tmp_path: Path) -> None:
    small = GAME | {"rounds": 1, "trials": 60, "shadow_batches": 60}
    wrong = {"name": "wrong", "perturbation": {"target": 5}}
    found = run_plan(plan(inference={"group": small}, scenarios=[{"name": "plain"}, wrong]), tmp_path, jobs=1)
    lines = {line["scenario"]: line for line in found.items if line["kind"] == "inference"}
    assert lines["plain"]["status"] == "done"
    assert lines["wrong"]["status"] == "refused"
    assert "one of the 2 values of the public rows" in lines["wrong"]["note"]


def test_the_perturbation_of_a_scenario_stands_behind_its_defenses(tmp_path: Path) -> None:
    small = GAME | {"rounds": 1, "trials": 60, "shadow_batches": 60}
    scenario = {"name": "perturbed", "perturbation": {"gamma": 0.01, "updates": 32, "epochs": 2}}
    found = run_plan(plan(inference={"group": small}, scenarios=[scenario]), tmp_path, jobs=1)
    lines = [line for line in found.items if line["kind"] == "inference"]
    assert [line["status"] for line in lines] == ["done", "done"]
    assert lines[0]["game"]["release"]["gamma"] == 0.01


def rows(low: float, *, passed: bool | None = True, status: str = "done") -> Iterator[dict[str, Any]]:
    """A control and a game whose advantage has an interval from `low`."""
    yield {
        "type": "item",
        "item": "control/negative/g",
        "kind": "control",
        "passed": passed,
        "game_name": "g",
        "note": "",
    }
    item = {"type": "item", "item": "s/g", "kind": "inference", "scenario": "s", "attack": "static", "game_name": "g"}
    yield item | {"status": status, "observed": [0], "values": ["a", "b"], "outcome": "converged", "note": ""}
    details = {"unclipped_interval": [low, 0.4], "blind": 0.5}
    yield {"type": "score", "item": "s/g", "attack": "static", "rounds": [0], "name": "advantage", "value": 0.2} | {
        "details": details
    }


@pytest.mark.parametrize(
    ("given", "verdict", "reason"),
    [
        ({"low": 0.01}, VerdictKind.LEAKS, "advantage_above_zero"),
        ({"low": -0.01}, VerdictKind.INCONCLUSIVE, "no_advantage_found"),
        ({"low": 0.01, "passed": False}, VerdictKind.INCONCLUSIVE, "control_failed"),
        ({"low": 0.01, "passed": None}, VerdictKind.INCONCLUSIVE, "control_failed"),
        ({"low": 0.01, "status": "refused"}, VerdictKind.INCONCLUSIVE, "game_refused"),
        ({"low": 0.01, "status": "refused", "passed": None}, VerdictKind.INCONCLUSIVE, "game_refused"),
        ({"low": 0.01, "status": "failed"}, VerdictKind.INCONCLUSIVE, "item_failed"),
    ],
)
def test_verdicts_on_games(given: dict[str, Any], verdict: VerdictKind, reason: str) -> None:
    (found,) = judge_games(list(rows(**given)), 0.05)
    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("evidence", "value", "low", "verdict"),
    [
        ("upper_bound", 0.03, -0.1, VerdictKind.BOUNDED),
        ("upper_bound", 0.06, -0.1, VerdictKind.INCONCLUSIVE),
        ("estimate", 0.0, -0.1, VerdictKind.INCONCLUSIVE),
        ("upper_bound", 0.03, 0.1, VerdictKind.LEAKS),
    ],
)
def test_fano_bounds_a_game_with_an_upper_bound_on_the_information_alone(
    evidence: str, value: float, low: float, verdict: VerdictKind
) -> None:
    lines = list(rows(low))
    estimate = lines[-1] | {"name": "fano_advantage", "value": 0.0, "evidence": "estimate", "details": {"blind": 0.5}}
    bound = estimate | {"value": value, "evidence": evidence}
    (found,) = judge_games([*lines, estimate, bound], 0.05)
    assert found.verdict is verdict


def test_a_threshold_hides_no_order_and_a_bound_that_nearly_holds_is_told() -> None:
    lines = list(rows(-0.1))
    auroc = lines[-1] | {"name": "auroc", "value": 0.97, "interval": [0.9, 0.99]}
    bound = lines[-1] | {"name": "fano_advantage", "value": 0.07, "evidence": "upper_bound", "details": {"blind": 0.5}}
    (found,) = judge_games([*lines, auroc, bound], 0.05)
    assert found.verdict is VerdictKind.INCONCLUSIVE
    assert "orders the batches rightly (AUROC 0.970" in found.explanation
    assert "at most 0.07 (Fano's inequality), above the limit of 0.05" in found.explanation


def test_a_failed_control_of_a_game_leaves_other_results_alone() -> None:
    lines = list(rows(0.01, passed=False))
    other = [line | {"item": "s/h", "game_name": "h"} for line in lines[1:]]
    verdicts = {verdict.item: verdict.verdict for verdict in judge([*lines, *other], Thresholds())}
    assert verdicts == {
        "s/g": VerdictKind.INCONCLUSIVE, "s/h": VerdictKind.LEAKS, "s": VerdictKind.LEAKS, "run": VerdictKind.LEAKS,
    }  # fmt: skip


def test_the_example_plan_is_one_that_can_be_played() -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    loaded = load_plan(Path(__file__).parents[2] / "examples" / "adult_inference.toml")
    loaded.inference["gender"].check("gender")
    assert [scenario.name for scenario in loaded.scenarios] == ["undefended", "pruning 99 %", "signs", "DP-SGD"]


def test_a_list_of_sizes_is_a_game_each() -> None:
    swept = plan(inference={"group": GAME | {"batch_size": [4, 8], "public_rows": [100, 200]}})
    sizes = {name: (game.game.batch_size, game.game.public_rows) for name, game in swept.inference.items()}
    assert sizes == {
        "group, k = 4, 100 public rows": (4, 100), "group, k = 4, 200 public rows": (4, 200),
        "group, k = 8, 100 public rows": (8, 100), "group, k = 8, 200 public rows": (8, 200),
    }  # fmt: skip
    for wrong in ([], [4, 4]):
        with pytest.raises(PlanError, match=r"inference\.group, batch_size: expected a number, or different ones"):
            plan(inference={"group": GAME | {"batch_size": wrong}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": "16"}, r"inference\.group\.batch_size: expected a whole number.*, got "),
        ({"side": 1}, r"inference\.group\.side: expected bool"),
        ({"trials": 2.5}, r"inference\.group\.trials"),
    ],
)
def test_inherited_arguments_of_a_game_are_held_against_their_types(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan(inference={"group": GAME | change})


def test_a_game_on_rows_of_the_other_kind_is_refused_in_a_plan() -> None:
    rows = {"use": "tests.auditing.small_population:two_groups", "holds_sensitive": True}
    with pytest.raises(PlanError, match=r"inference\.group: .*play AttributeGame"):
        plan(inference={"group": GAME | {"population": rows}})


def test_the_plan_of_the_recipe_is_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "play-a-game.md").read_text(encoding="utf-8")
    users, sizes = (tomllib.loads(block.split("```")[0]) for block in text.split("```toml\n")[1:])
    rows = {"use": "constructed_users", "users": 45, "rows": 16}
    users["inference"]["writer"] |= {"population": rows}
    (game,) = build_plan(users, folder=Path()).inference.values()
    assert (game.game.kind, game.game.batch_size) == ("user", 8)
    assert len(inference_plan.swept("gender", sizes["inference"]["gender"])) == 8

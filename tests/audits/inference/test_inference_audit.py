"""Inference games in a plan: played against every scenario, with their controls, verdicts and resume."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import Plan, build_plan, estimate, load_plan, run_plan
from gradleak.audits.inference import InferenceAudit
from gradleak.audits.inference.audit import EXAMPLES_COST
from gradleak.audits.inference.sizes import swept
from gradleak.results import PlanError, Record, Status, VerdictKind
from gradleak.results.findings.inference import InferenceFinding

ROOT = Path(__file__).parents[3]
GAME = {
    "use": "PropertyGame",
    "population": {"use": "tests.auditing.small_population:two_groups"},
    "batch_size": 8,
    "rounds": 2,
    "private_rows": 200,
    "public_rows": 200,
    "trials": 120,
    "shadow_batches": 120,
    "features": {"use": "AllEntries"},
    "adversary": {"use": "RandomForest", "trees": 10},
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


def games(of: Plan) -> dict[str, InferenceAudit]:
    return {audit.name: audit for audit in of.audits if isinstance(audit, InferenceAudit)}


def played(record: Record) -> list[InferenceFinding]:
    return [one for one in record.findings if isinstance(one, InferenceFinding) and one.control is None]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run_plan(plan(), tmp_path_factory.mktemp("games"), jobs=1)


def test_a_plan_of_games_alone_is_played_against_every_scenario(record: Record) -> None:
    assert [one.item for one in played(record)] == ["plain/group", "signs/group"]
    for one in played(record):
        assert (one.audit, one.adversaries, one.observed) == ("group", ("static", "adaptive"), (0, 1))
        assert {score.about["adversary"] for score in one.scores if "adversary" in score.about} == set(one.adversaries)
        assert {score.about.get("round") for score in one.scores} == {None, 0, 1}
    assert not any(key in str(line) for line in record.lines for key in ("log_posteriors'", "'truth'"))


def test_both_controls_are_run_and_pass(record: Record) -> None:
    controls = {one.item: one.control.passed for one in record.findings if one.control is not None}
    assert controls == {"control/positive/group": True, "control/negative/group": True}
    planted = next(one for one in record.findings if one.control is not None and one.control.planted)
    assert planted.control is not None
    assert (planted.value(planted.control.measure) or 0.0) >= 0.95


def test_a_leaking_property_is_judged_so_and_the_run_with_it(record: Record) -> None:
    verdicts = {verdict.item: verdict for verdict in record.verdicts}
    plain = verdicts["plain/group"]
    assert (plain.verdict, plain.reason) == (VerdictKind.LEAKS, "advantage_above_zero")
    assert plain.details["advantage_interval"][0] > 0
    assert "inferred group (a, b) from the updates of 2 rounds" in plain.explanation
    assert verdicts["run"].verdict is VerdictKind.LEAKS


@pytest.mark.slow
def test_a_record_is_the_same_whatever_the_number_of_workers(record: Record, tmp_path: Path) -> None:
    again = run_plan(plan(), tmp_path, jobs=2)

    assert again.canonical() == record.canonical()


def test_another_population_is_not_continued(record: Record, tmp_path: Path) -> None:
    run_plan(plan(inference={"group": GAME | {"trials": 30, "shadow_batches": 30, "rounds": 1}}), tmp_path, jobs=1)
    other = GAME | {"trials": 50, "rounds": 1, "population": {**GAME["population"], "gap": 2.0}}
    with pytest.raises(PlanError, match="nothing was written"):
        run_plan(plan(inference={"group": other}), tmp_path, jobs=1)


def test_the_estimate_counts_the_games() -> None:
    once = estimate(plan())
    assert estimate(plan(inference={"group": GAME | {"seeds": 2}})) == pytest.approx(2 * once)
    assert estimate(plan(inference={"group": GAME | {"scenarios": ["plain"]}})) == pytest.approx(once / 2)
    apart = {"name": "apart", "defenses": [{"use": "ClipPerExample", "max_norm": 1.0}]}
    assert estimate(plan(scenarios=[apart])) == pytest.approx(EXAMPLES_COST * once / 2)


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
        ({"inference": {}}, "at least one batch or one section with rows of its own"),
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
    game = replace(games(plan())["group"].game, control="planted")
    with pytest.raises(PlanError, match=r"inference, control: expected a game, got a control of one \(planted\)"):
        InferenceAudit(name="group", game=game)


def test_a_scenario_that_a_game_cannot_take_is_refused_and_the_others_are_played(tmp_path: Path) -> None:
    small = GAME | {"rounds": 1, "trials": 60, "shadow_batches": 60}
    wrong = {"name": "wrong", "perturbation": {"target": 5}}
    found = run_plan(plan(inference={"group": small}, scenarios=[{"name": "plain"}, wrong]), tmp_path, jobs=1)
    by_scenario = {one.scenario: one for one in played(found)}
    assert by_scenario["plain"].status is Status.DONE
    assert by_scenario["wrong"].status is Status.REFUSED
    assert "one of the 2 values of the public rows" in by_scenario["wrong"].note


def test_the_perturbation_of_a_scenario_stands_behind_its_defenses(tmp_path: Path) -> None:
    small = GAME | {"rounds": 1, "trials": 60, "shadow_batches": 60}
    scenario = {"name": "perturbed", "perturbation": {"gamma": 0.01, "updates": 32, "epochs": 2}}
    found = run_plan(plan(inference={"group": small}, scenarios=[scenario]), tmp_path, jobs=1)
    (one,) = played(found)
    assert (one.status, one.adversaries) == (Status.DONE, ("static", "adaptive"))
    assert one.game["release"]["gamma"] == 0.01


def test_the_example_plan_is_one_that_can_be_played() -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    loaded = load_plan(ROOT / "examples" / "adult_inference.toml")
    games(loaded)["gender"].check(loaded.site)
    assert [scenario.name for scenario in loaded.site.scenarios] == ["undefended", "pruning 99 %", "signs", "DP-SGD"]


def test_a_list_of_sizes_is_a_game_each() -> None:
    several = plan(inference={"group": GAME | {"batch_size": [4, 8], "public_rows": [100, 200]}})
    sizes = {name: (game.game.batch_size, game.game.public_rows) for name, game in games(several).items()}
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
        ({"side": 1}, r"inference\.group\.side: expected True or False"),
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
    text = (ROOT / "docs" / "how-to" / "play-a-game.md").read_text(encoding="utf-8")
    users, sizes = (tomllib.loads(block.split("```")[0]) for block in text.split("```toml\n")[1:])
    rows = {"use": "constructed_users", "users": 45, "rows": 16}
    users["inference"]["writer"] |= {"population": rows}
    (game,) = games(build_plan(users, folder=Path())).values()
    assert (game.game.kind, game.game.batch_size) == ("user", 8)
    assert len(swept("gender", sizes["inference"]["gender"])) == 8


def test_the_adversary_of_a_game_is_part_of_the_digest_and_its_rows_are_not() -> None:
    digest = plan().digest()
    other = {"group": GAME | {"adversary": {"use": "RandomForest", "trees": 21}}}
    rows = {"group": GAME | {"population": {**GAME["population"], "gap": 2.0}}}
    assert plan(inference=other).digest() != digest
    changed = games(plan())["group"], games(plan(inference=rows))["group"]
    parts = [[part for part in one.parts() if part is one.game.population] for one in changed]
    assert parts == [[], []]
    assert list(changed[0].private()) != []

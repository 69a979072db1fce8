"""A budget of a whole plan: the order of its tasks, what is kept for controls, and how the next run goes on."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from gradleak.auditing import Budget, Plan, Shard, build_plan, run_plan
from gradleak.auditing.duration import expected_seconds
from gradleak.auditing.executor import Executor, worked
from gradleak.auditing.run import tasks
from gradleak.auditing.work import Call, Done
from gradleak.audits.base import Scenario, Site
from gradleak.audits.reconstruction.chances import ClosedForm
from gradleak.cli.commands import app
from gradleak.results import InputError, Outcome, Record, Status
from tests.auditing.test_resume import QUICK_PLAN

TEXT = """
name = "two digits"
seed = 5

[model]
use = "tests.auditing.test_resume:model"

[data]
use = "scikit_digits"
count = 2

[attacks.first]
use = "InvertingGradients"
iterations = 3
restarts = 1

[attacks.second]
use = "InvertingGradients"
iterations = 2
restarts = 1

[measures.norm]
use = "GradientNorm"

[[scenarios]]
name = "undefended"
attacks = { first = "all", second = "all" }

[[scenarios]]
name = "drowned"
examples = [0]
adversaries = ["adaptive"]
defenses = [{ use = "GaussianNoise", std = 10.0 }]
attacks = { first = [0] }
"""


@dataclass(frozen=True)
class Watched(Executor):
    """This process, with the names of what began; several at once where it is wide."""

    wide: int = 1
    waves: list[list[str]] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)

    @property
    def width(self) -> int:
        return self.wide

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        self.waves.append([call.task.name for call in calls])
        for call in calls:
            self.spent.append(expected_seconds(call.task, 1.0))
            yield worked(call)


def plan(text: str = TEXT) -> Plan:
    return build_plan(tomllib.loads(text), folder=Path())


def rows(record: Record) -> dict[str, list[str]]:
    """The lines of every group without times, as they are compared."""
    found: dict[str, list[str]] = {}
    for row, line in zip(record.lines, record.canonical()[1:], strict=True):
        found.setdefault(row["group"], []).append(line)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run_plan(plan(), tmp_path_factory.mktemp("whole"), jobs=1)


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A plain gradient takes a second, whatever it takes: what tasks have spent so far goes here."""
    spent: list[float] = []
    monkeypatch.setattr("gradleak.auditing.budget.seconds_per_gradient", lambda site, device: 1.0)
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + sum(spent))
    monkeypatch.setattr("gradleak.auditing.budget.time", clock)
    return spent


def test_cheap_and_telling_tasks_come_first_and_what_ran_has_the_same_bits(
    whole: Record, spent: list[float], tmp_path: Path
) -> None:
    place = Watched(spent=spent)
    record = run_plan(plan(), tmp_path, executor=place, budget=Budget(1e6, shared=False))
    order = [name for wave in place.waves for name in wave]
    kinds = ["/".join(part for part in name.split("/") if "example" not in part) for name in order]
    assert kinds == [
        *["release"] * 2, *["risk"] * 2, *["attack/undefended/first"] * 2, "control/positive", *["attack/undefended/second"] * 2,
    ]  # fmt: skip
    left = {one.item: one.note for one in record.findings if one.status is Status.LEFT_OUT}
    assert set(left) == {"drowned/example 0/first", "control/negative/first", "control/negative/second"}
    assert "the closed form leaves an error of at least" in left["drowned/example 0/first"]
    assert "nothing to bear out" in left["control/negative/first"]
    assert {name: rows(record)[name] for name in order} == {name: rows(whole)[name] for name in order}
    drowned = next(one for one in record.verdicts if one.scenario == "drowned")
    assert (drowned.verdict.value, drowned.reason) == ("inconclusive", "no_attack_had_a_chance")


@pytest.mark.parametrize(("seconds", "forms"), [(1e6, 1), (1e-3, 0)])
def test_no_closed_form_is_computed_for_a_reason_where_no_time_is_left(
    seconds: float, forms: int, spent: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    def error(form: ClosedForm, site: Site, scenario: Scenario, index: int) -> None:
        computed.append(index)

    monkeypatch.setattr(ClosedForm, "error", error)
    only_drowned = build_plan(
        tomllib.loads(TEXT.replace('attacks = { first = "all", second = "all" }', "attacks = {}")), folder=Path()
    )
    record = run_plan(only_drowned, tmp_path, executor=Watched(spent=spent), budget=Budget(seconds, shared=False))
    assert len(computed) == forms
    if not forms:
        left = next(one for one in record.findings if one.item == "drowned/example 0/first")
        assert (left.status, left.outcome) == (Status.LEFT_OUT, Outcome.BUDGET_SPENT)
        drowned = next(one for one in record.verdicts if one.scenario == "drowned")
        assert (drowned.verdict.value, drowned.reason) == ("inconclusive", "left_out_by_budget")


def test_an_attack_is_not_begun_where_no_time_is_left_for_its_controls(spent: list[float], tmp_path: Path) -> None:
    cost = {task.name: expected_seconds(task, 1.0) for task in tasks(plan())}
    attack, control = "attack/undefended/example 0/first", "control/negative/first"
    closed = sum(cost[f"{what}/example {index}"] for what in ("release", "risk") for index in (0, 1))
    enough = closed + sum(cost[name] for name in (attack, control, "control/positive"))
    place = Watched(spent=spent)
    # The attack alone would fit.
    run_plan(plan(), tmp_path, executor=place, budget=Budget(enough - 1, shared=False))
    assert attack not in [name for wave in place.waves for name in wave]
    found = {one.item: one for one in Record.load(tmp_path).findings}[attack.removeprefix("attack/")]
    assert found.status is Status.LEFT_OUT
    assert f"{cost[attack]:.2g} s, and the controls that it needs" in found.note
    assert found.outcome is not None
    assert found.outcome.label == "budget_spent"


def test_the_next_run_goes_on_and_knows_what_was_found(whole: Record, spent: list[float], tmp_path: Path) -> None:
    cheap = Watched(spent=spent)
    short = run_plan(plan(), tmp_path, executor=cheap, budget=Budget(140, shared=False))
    assert any(one.status is Status.LEFT_OUT for one in short.findings)
    assert all(one.verdict.value == "inconclusive" for one in short.verdicts)
    spent.clear()
    longer = Watched(spent=spent)
    more = run_plan(plan(), tmp_path, executor=longer, budget=Budget(1e6, shared=False))
    again = {name for wave in longer.waves for name in wave}
    assert "attack/undefended/example 1/first" in again
    assert not {name for wave in cheap.waves for name in wave} & again
    # The first run's closed forms still say what is hopeless.
    assert any("the closed form leaves" in one.note for one in more.findings)
    assert run_plan(plan(), tmp_path, jobs=1).canonical() == whole.canonical()


def test_several_workers_get_several_tasks_at_once_of_one_turn(
    whole: Record, spent: list[float], tmp_path: Path
) -> None:
    place = Watched(wide=2, spent=spent)
    record = run_plan(plan(), tmp_path, executor=place, budget=Budget(1e6, shared=False))
    assert place.waves[0] == ["risk/example 0", "risk/example 1", "release/example 0", "release/example 1"]
    assert len(place.waves) < sum(map(len, place.waves))
    turns = {task.name: task.turn for task in tasks(plan())}
    assert all(len({turns[name] for name in wave}) == 1 for wave in place.waves)
    assert {name: rows(record)[name] for wave in place.waves for name in wave} == {
        name: rows(whole)[name] for wave in place.waves for name in wave
    }


def test_gates_are_left_out_too_where_the_look_at_the_plan_took_all_the_time(
    spent: list[float], tmp_path: Path
) -> None:
    place = Watched(spent=spent)
    record = run_plan(plan(), tmp_path, executor=place, budget=Budget(1e-3, shared=False))
    assert place.waves == []
    assert {one.status for one in record.findings} == {Status.LEFT_OUT}
    gate = next(one for one in record.findings if one.item == "release/example 0")
    assert gate.note == "left out: it would take about 0.1 s, and 0 s of the budget of 0.001 s are left"
    assert {(one.verdict.value, one.reason) for one in record.verdicts} == {("inconclusive", "left_out_by_budget")}
    assert {one.scenario for one in record.verdicts} == {"undefended", "drowned", None}


def test_a_shard_has_no_budget(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="budget: expected none beside shard 1/2, which does not know what the others"):
        run_plan(plan(), tmp_path, budget=Budget("1m"), shard=Shard(1, 2))


def test_the_command_says_what_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(QUICK_PLAN)
    arguments: list[Any] = ["audit", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "run"), "--jobs", "1"]
    short = CliRunner().invoke(app, [*arguments, "--budget", "1ms"])
    assert short.exit_code == 0, short.output
    assert "1 task left out: it would take about" in short.output
    assert "the same command with a larger --budget, or none, goes on from here" in short.output

"""A long attack of an audit leaves its state beside the record when the plan says so, and a killed run goes on there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.auditing.generator_models import generator_plan

from gradleak.attacks import InventionCheck
from gradleak.attacks.inversion.evaluation import Evaluator
from gradleak.auditing import Plan, load_plan, run_plan, tasks
from gradleak.auditing.fingerprint import Reading
from gradleak.audits.reconstruction import controls
from gradleak.results import PlanError, Record

ROOT = Path(__file__).parents[3]

PLAN = """
name = "long"
seed = 3
checkpoint_seconds = 0
controls = { positive = false, negative = false }

[model]
use = "tests.auditing.small_model:small_mlp"

[data]
use = "scikit_digits"
count = 1

[attacks.long]
use = "InvertingGradients"
iterations = 400
restarts = 2

[[scenarios]]
name = "undefended"
attacks = { long = "all" }
"""


def _plan(folder: Path, text: str = PLAN) -> Path:
    file = folder / "plan.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.slow  # in short: the kills within one process below
def test_a_run_that_was_killed_within_an_attack_gives_the_same_record(tmp_path: Path) -> None:
    plan, out = _plan(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "gradleak", "audit", str(plan), "--out", str(out), "--jobs", "1", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    states = out / "checkpoints"
    while time.monotonic() < deadline and process.poll() is None and not (states.is_dir() and any(states.iterdir())):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert any(states.iterdir())
    resumed = run_plan(load_plan(plan), out, jobs=1)
    assert not any(states.iterdir())
    whole = run_plan(load_plan(plan), tmp_path / "whole", jobs=1)
    assert resumed.canonical() == whole.canonical()
    assert resumed.complete


def test_no_state_is_written_unless_the_plan_says_so(tmp_path: Path) -> None:
    short = PLAN.replace("checkpoint_seconds = 0\n", "").replace("400", "3")
    run_plan(load_plan(_plan(tmp_path, short)), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert Record.load(tmp_path / "out").run["plan"]["checkpoint_seconds"] is None


@pytest.mark.parametrize("value", ["-1.0", '"often"'])
def test_a_senseless_time_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(PlanError, match="checkpoint_seconds: "):
        load_plan(_plan(tmp_path, PLAN.replace("checkpoint_seconds = 0", f"checkpoint_seconds = {value}")))


def _breaking(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, error: type[BaseException]) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(place, name, broken)


def _hold_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the parts of a plan is in its digest, which these tests break and mend."""
    monkeypatch.setattr(Plan, "reading", lambda _: Reading("of the unbroken code", ()))


def _states(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").iterdir())


ONCE = [{"name": "once", "attacks": {"gias": "all"}}]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_kill_within_the_check_of_a_claim_does_not_lose_the_attack(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack is over, its line is not yet in the record; checking the claim can take longer than the attack."""
    plan, out = generator_plan(scenarios=ONCE, checkpoint_seconds=0), tmp_path / "out"
    _hold_digest(monkeypatch)
    whole = run_plan(plan, tmp_path / "whole", jobs=1)
    with monkeypatch.context() as patch:
        _breaking(patch, InventionCheck, "__call__", error)
        if error is RuntimeError:
            assert run_plan(plan, out, jobs=1).verdicts != whole.verdicts
        else:
            with pytest.raises(error):
                run_plan(plan, out, jobs=1)
    assert len(_states(out)) == 1
    with monkeypatch.context() as patch:
        # No further step of the search.
        _breaking(patch, Evaluator, "__call__", AssertionError)
        resumed = run_plan(plan, out, jobs=1)
    assert resumed.canonical() == whole.canonical()
    assert not _states(out)
    assert not _states(tmp_path / "whole")


def test_attacks_of_controls_leave_their_states_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = generator_plan(scenarios=ONCE, checkpoint_seconds=0, controls={"positive": True, "negative": True})
    _hold_digest(monkeypatch)
    whole, out = run_plan(plan, tmp_path / "whole", jobs=1), tmp_path / "out"
    with monkeypatch.context() as patch:
        _breaking(patch, controls, "score_claim", RuntimeError)
        failed = run_plan(plan, out, jobs=1)
    assert [one.item for one in failed.findings if one.status == "failed"] == _controls(plan)
    assert [path.name.rpartition("-")[0] for path in _states(out)] == [
        "control_negative_gias_draw_0",
        "control_positive",
    ]
    with monkeypatch.context() as patch:
        _breaking(patch, Evaluator, "__call__", AssertionError)
        resumed = run_plan(plan, out, jobs=1)
    assert resumed.canonical() == whole.canonical()
    assert not _states(out)
    assert all(one.control.passed is not None for one in resumed.findings if one.control is not None)


def _controls(plan: Plan) -> list[str]:
    return [task.name for task in tasks(plan) if task.name.startswith("control/")]


def test_no_two_attacks_of_a_plan_share_a_state() -> None:
    plan = generator_plan(controls={"positive": True, "negative": True})
    names = [name for task in tasks(plan) for name in task.states]
    # One planted leak, five draws of noise at most, and two releases.
    assert len(set(names)) == len(names) == 8


def test_a_state_that_outlived_its_line_is_removed_by_the_next_run(tmp_path: Path) -> None:
    """A kill between the line and the removal."""
    plan, out = generator_plan(scenarios=ONCE, checkpoint_seconds=0), tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradleak.auditing.run._clear", lambda *_: None)
        record = run_plan(plan, out, jobs=1)
    assert len(_states(out)) == 1
    assert run_plan(plan, out, jobs=1).canonical() == record.canonical()
    assert not _states(out)

"""A long attack of an audit leaves its state beside the record when the plan says so, and a killed run goes on there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradleak.auditing import load_plan, run_plan
from gradleak.results import PlanError, Record

ROOT = Path(__file__).parents[2]

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


def test_a_run_that_was_killed_within_an_attack_gives_the_same_record(tmp_path: Path) -> None:
    plan, out = _plan(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "gradleak.cli", "audit", str(plan), "--out", str(out), "--jobs", "1", "--quiet"]
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

"""Processes that an audit starts by itself: where they pay, nowhere else, and with the same record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch

import gradleak as gl
from gradleak.auditing import Plan, api, build_plan, cores, run
from gradleak.auditing.default_plan import default_plan
from gradleak.auditing.duration import Duration
from gradleak.auditing.executor import NoProcessesError
from gradleak.auditing.pieces import stages_of
from gradleak.audits.base import Task
from tests.auditing.test_pieces import CONTENT

SCRIPT = """
import sys, torch, gradleak as gl
from gradleak.auditing import cores

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))

cores.WORTH_SECONDS = float(sys.argv[1])
with torch.random.fork_rng():
    torch.random.default_generator.manual_seed(0)
    model, batch = Own(), (torch.randn(1, 6), torch.tensor([1]))
quiet, attacks = gl.AuditOptions(quiet=True), {"own": gl.GaussNewton(max_steps=5)}
record = gl.audit(model, batch, attacks=attacks, out=sys.argv[2], options=quiet)
print(record.complete)
"""


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(1, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1])


@pytest.fixture
def plan() -> Plan:
    return default_plan(torch.nn.Linear(4, 2), gl.Batch(*batch()), loss="cross_entropy")


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Four cores, and tasks of so many seconds."""
    seconds = [30.0, 20.0, 10.0]
    monkeypatch.setattr(cores.joblib, "cpu_count", lambda: 4)
    monkeypatch.setattr(cores, "_room", lambda plan: 8)
    monkeypatch.setattr(cores.multiprocessing, "parent_process", lambda: None)

    def duration(plan: Plan) -> Duration:
        return Duration(tasks={str(number): each for number, each in enumerate(seconds)}, headlines={})

    work = [Task(name=str(number), run=print, blank=None, headline="") for number in range(3)]  # type: ignore[arg-type]
    monkeypatch.setattr(cores, "tasks", lambda plan: work[: len(seconds)])
    monkeypatch.setattr(cores, "duration", duration)
    return seconds


@pytest.mark.parametrize(
    ("seconds", "most", "jobs"),
    [([], 8, 1), ([99.0], 8, 1), ([12.0, 12.0], 8, 2), ([8.0, 8.0], 8, 1), ([12.0] * 9, 4, 4), ([100.0, 3.0], 8, 1)],
)
def test_processes_are_started_where_they_save_ten_seconds(seconds: Sequence[float], most: int, jobs: int) -> None:
    assert cores.worth([[[each]] for each in seconds], most) == jobs


@pytest.mark.parametrize(
    ("stages", "jobs"),
    [([[12.0, 12.0]], 2), ([[6.0, 6.0], [6.0, 6.0]], 2), ([[30.0], [9.0, 9.0]], 1), ([[2.0], [6.0] * 4], 4)],
)
def test_pieces_of_a_lone_task_count_stage_by_stage(stages: Sequence[Sequence[float]], jobs: int) -> None:
    assert cores.worth([stages], 4) == jobs


def test_a_lone_game_gets_a_core_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {key: entry for key, entry in CONTENT.items() if key not in ("privacy", "layers", "utility")}
    game = build_plan(content, folder=Path())
    monkeypatch.setattr(cores.joblib, "cpu_count", lambda: 4)
    monkeypatch.setattr(cores, "_room", lambda plan: 8)
    monkeypatch.setattr(cores.multiprocessing, "parent_process", lambda: None)
    [task] = run.tasks(game)
    assert [cores.paying_jobs(game, Duration(tasks={task.name: each}, headlines={})) for each in (60.0, 10.0)] == [4, 1]
    assert [len(stage) for stage in stages_of(task, 60.0, 4)] == [2, 4]
    assert sum(map(sum, stages_of(task, 60.0, 4))) == pytest.approx(60.0)


def test_a_plan_gets_a_core_a_task(plan: Plan, tasks: list[float]) -> None:
    assert cores.paying_jobs(plan) == 3
    tasks[:] = [1.0, 1.0]
    assert cores.paying_jobs(plan) == 1


def test_never_in_what_others_have_started(plan: Plan, tasks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cores.paying_jobs, plan).result() == 1
    with monkeypatch.context() as patch:
        patch.setenv("RAY_RAYLET_PID", "7")
        assert cores.paying_jobs(plan) == 1
    monkeypatch.setattr(cores.multiprocessing, "parent_process", object)
    assert cores.paying_jobs(plan) == 1


def test_not_more_than_memory_holds(plan: Plan, tasks: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_room", lambda plan: 2)
    assert cores.paying_jobs(plan) == 2
    monkeypatch.setattr(cores, "_room", lambda plan: 1)
    assert cores.paying_jobs(plan) == 1


def _jobs_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: bool = False, **options: Any) -> list[int]:
    """The numbers of processes with which an audit that five would pay for is run."""
    asked: list[int] = []
    real = api.run_plan

    def run_plan(plan: Plan, folder: Path, *, jobs: int, **others: Any) -> gl.Record:
        asked.append(jobs)
        if jobs > 1 and broken:
            raise NoProcessesError("one that ended at its start", BrokenProcessPool())
        return real(plan, folder, jobs=1, **others)

    monkeypatch.setattr(api, "run_plan", run_plan)
    monkeypatch.setattr(api, "paying_jobs", lambda plan, expected: 5)
    settings = gl.AuditOptions(quiet=True, **options)
    gl.audit(torch.nn.Linear(4, 2), batch(), attacks={}, measures=[], out=tmp_path, options=settings)
    return asked


def test_a_number_that_was_asked_for_is_kept_and_a_budget_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        assert _jobs_of(patch, tmp_path / "free") == [5]
    with monkeypatch.context() as patch:
        assert _jobs_of(patch, tmp_path / "two", jobs=2) == [2]
    with monkeypatch.context() as patch:
        assert _jobs_of(patch, tmp_path / "budget", budget="1m") == [1]


def test_where_processes_fail_that_nobody_asked_for_this_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        assert _jobs_of(patch, tmp_path / "free", broken=True) == [5, 1]
    assert "goes on in one process, since others failed (jobs: expected worker" in capsys.readouterr().err
    with pytest.raises(NoProcessesError, match=r"got one that ended at its start \(BrokenProcessPool\)"):
        _jobs_of(monkeypatch, tmp_path / "asked", broken=True, jobs=2)


@pytest.mark.slow
def test_a_script_without_a_guard_has_the_same_record_with_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for worth, name in (("1e9", "one"), ("-1e9", "several")):
        command = [sys.executable, str(tmp_path / "script.py"), worth, str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
        assert done.stderr == ""
    one, several = (gl.Record.load(tmp_path / name) for name in ("one", "several"))
    assert one.canonical() == several.canonical()


@pytest.mark.slow
def test_a_worker_loads_no_library_before_it_is_asked_for() -> None:
    # Together as long as all else beyond torch, in every process of every run.
    code = (
        "import sys, gradleak.auditing.work\n"
        "heavy = {'cma', 'dp_accounting', 'matplotlib', 'pandas', 'sklearn', 'scipy.signal', 'scipy.stats'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

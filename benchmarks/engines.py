"""Executors by the clock: two workers against one on a plan of 60 tasks, and what a task costs beside its work on each engine.

    python -m benchmarks engines          all of it: needs a machine that does nothing else, about six minutes of it
    python -m benchmarks.engines 400 2    seconds of the plan of 60 tasks alone, with 400 iterations, on two workers

Engines whose package is missing are left out. "of linear" is the time of one worker over twice that of two, each in a process of
its own. Linux only: read from /proc.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

import gradleak as gl
from benchmarks.measure import Row
from benchmarks.processes import children, processor_seconds
from gradleak.auditing import Controls
from gradleak.auditing.executor import Executor, Loky
from gradleak.auditing.work import Call
from gradleak.audits.base import Audit, Scenario, Site, Task
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.audits.released import ReleaseAudit
from gradleak.models import mlp
from gradleak.results import Finding, Grounds, Verdict

_EXAMPLES = 30
_ITERATIONS = (400, 1_200, 2_400)
# An engine's start is in both numbers, and in no difference.
_TINY = (100, 1_100)


def run() -> Iterator[Row]:
    yield from _efficiency()
    yield from _start()
    with tempfile.TemporaryDirectory() as folder:
        yield from _overheads(Path(folder))


def sixty(iterations: int) -> gl.Plan:
    """A plan of 60 tasks: the gate of 30 releases, and an attack of so many iterations on each."""
    attack = gl.InvertingGradients(iterations=iterations, restarts=1)
    site = _site("sixty", _EXAMPLES, ("inverting",))
    return gl.Plan(site=site, audits=[ReleaseAudit(), ReconstructionAudit(attacks={"inverting": attack})])


def _site(name: str, count: int, attacks: Sequence[str] = ()) -> Site:
    """So many random images of 8x8, one an update."""
    generator = torch.Generator().manual_seed(0)
    network = mlp(features=64, hidden=(64, 32), classes=10, activation="tanh", generator=generator)
    rows = torch.rand((count, 1, 8, 8), generator=generator)
    every = gl.Batch(rows, torch.arange(count) % 10, gl.Domain.image(channels=1, height=8, width=8))
    places = tuple(range(count))
    return Site(
        name=name,
        seed=1,
        objective=gl.Objective.from_module(nn.Sequential(nn.Flatten(), network)),
        batches=[every.example(place) for place in places],
        scenarios=[
            Scenario(
                name="undefended",
                release=gl.Release(gl.FedSGD(), []),
                examples=places,
                attacks=dict.fromkeys(attacks, places),
            )
        ],
        controls=Controls(positive=False, negative=False),
    )


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """Work of no time."""

    blank: Finding

    def __call__(self, site: Site, out: Path) -> list[Finding]:
        return [self.blank]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tiny(Audit[Finding]):
    """Tasks that do nothing.

    Attributes:
        count: how many.
    """

    kind: ClassVar[str] = "tiny"
    finding: ClassVar[type[Finding]] = Finding

    name: str = "tiny"
    count: int = 1

    def tasks(self, site: Site) -> Iterator[Task[Finding]]:
        for number in range(self.count):
            blank = Finding(kind=self.kind, item=f"tiny {number}", audit=self.name)
            yield Task(name=blank.item, run=Nothing(blank=blank), blank=blank, headline="tiny", examples=())

    @classmethod
    def judge(cls, found: Sequence[Finding], grounds: Grounds) -> Sequence[Verdict]:
        return ()


def tiny(count: int) -> gl.Plan:
    """A plan of so many tasks that do nothing."""
    return gl.Plan(site=_site("tiny", 1), audits=[Tiny(count=count)])


def _overheads(folder: Path) -> Iterator[Row]:
    """Milliseconds by the clock that one more task takes."""
    for name, place in _engines().items():
        seconds = [_seconds(lambda place=place, count=count: _drained(place, count, folder)) for count in _TINY]
        each = (seconds[1] - seconds[0]) / (_TINY[1] - _TINY[0])
        yield Row(name=f"{name}: one more task", ratio=1000 * each, unit="ms")
        yield Row(name=f"{name}: start and {_TINY[0]} tasks", ratio=seconds[0], unit="s")


def _engines() -> dict[str, Executor]:
    found: dict[str, Executor] = {"this process": Loky(jobs=1), "loky, two workers": Loky(jobs=2)}
    for package, name in {"distributed": "Dask", "ray": "Ray"}.items():
        if importlib.util.find_spec(package) is not None:
            module = importlib.import_module(f"gradleak.auditing.executor_{name.lower()}")
            found[f"{name}, two workers"] = getattr(module, name)(jobs=2)
    return found


def _drained(place: Executor, count: int, folder: Path) -> None:
    plan = tiny(count)
    calls = [Call(task, plan.site, folder) for audit in plan.audits for task in audit.tasks(plan.site)]
    assert sum(1 for _ in place.results(calls)) == count


def _efficiency() -> Iterator[Row]:
    for iterations in _ITERATIONS:
        clock = [_in_a_process(iterations, jobs) for jobs in (1, 2)]
        for jobs, seconds in enumerate(clock, start=1):
            yield Row(name=f"60 tasks, {iterations} iterations, jobs={jobs}", ratio=seconds, unit="s")
        yield Row(name=f"60 tasks, {iterations} iterations", ratio=clock[0] / (2 * clock[1]), unit="of linear")


def _in_a_process(iterations: int, jobs: int) -> float:
    """Seconds of a run by the clock, in a process that has imported gradleak and made the plan, as every command has."""
    command = [sys.executable, "-m", "benchmarks.engines", str(iterations), str(jobs)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _start() -> Iterator[Row]:
    """Processor time that a worker takes before its first task."""
    with Loky(jobs=2).begun(2):
        pass
    spent = [processor_seconds(one) for one in children()]
    yield Row(name="start of a worker, processor time", ratio=max(spent), unit="s")


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    plan = sixty(int(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        print(_seconds(lambda: gl.run_plan(plan, folder, jobs=int(sys.argv[2]))))

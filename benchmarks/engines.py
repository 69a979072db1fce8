"""Executors by the clock: two workers against one on a plan of 60 tasks, and what a task costs beside its work on each engine.

Needs a machine that does nothing else, about three minutes of it. Engines whose package is missing are left out. "of linear" is
the time of one worker over twice that of two; by processor time it is that of the parent before any worker works, and of the
busier worker, so that neighbors matter less. Linux only: read from /proc.
"""

from __future__ import annotations

import importlib
import importlib.util
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
_ITERATIONS = 400
# An engine's start is in both numbers, and in no difference.
_TINY = (100, 1_100)


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _efficiency(Path(folder))
        yield from _overheads(Path(folder))


def sixty() -> gl.Plan:
    """A plan of 60 tasks: the gate of 30 releases, and an attack on each."""
    attack = gl.InvertingGradients(iterations=_ITERATIONS, restarts=1)
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


def _efficiency(folder: Path) -> Iterator[Row]:
    plan, clock, busiest = sixty(), [], []
    for jobs in (1, 2):
        spent: dict[int, float] = {}

        def look(done: int, total: int, what: str, spent: dict[int, float] = spent) -> None:
            spent |= {one: processor_seconds(one) for one in children()}
            if not done:
                # Before any worker works.
                spent[0] = time.process_time()

        before = time.process_time()
        clock.append(
            _seconds(lambda jobs=jobs, look=look: gl.run_plan(plan, folder / f"{jobs}", jobs=jobs, progress=look))
        )
        own, first = time.process_time() - before, spent.pop(0) - before
        workers = " and ".join(f"{one:.0f}" for one in spent.values())
        busiest.append(own if jobs == 1 else first + max(spent.values()))
        name = f"60 tasks, {jobs} worker{'s' * (jobs > 1)}"
        yield Row(name=f"{name}, by the clock", ratio=clock[-1], unit="s")
        yield Row(name=f"{name}, processor time of the parent", ratio=own, unit=f"s; of workers {workers or 'none'}")
    yield Row(name="60 tasks, two workers, by the clock", ratio=clock[0] / (2 * clock[1]), unit="of linear")
    yield Row(name="60 tasks, two workers, by processor time", ratio=busiest[0] / (2 * busiest[1]), unit="of linear")


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

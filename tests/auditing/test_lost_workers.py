"""Worker processes of this machine that end, and tasks that cannot reach one: no other task suffers for it."""

from __future__ import annotations

import os
import signal
import threading
import tomllib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pickle import PicklingError
from typing import Any

import pytest

from gradleak.auditing import build_plan
from gradleak.auditing.executor import Loky, sent
from gradleak.auditing.work import Call, Freight, findings_of
from gradleak.audits.base import Site, Task
from gradleak.results import Finding, InputError, PlanError, Status
from tests.auditing.test_resume import QUICK_PLAN

REMOTE = '\n"""\nTraceback (most recent call last):\nTypeError: cannot pickle \'_thread.lock\' object\n"""'


@dataclass(frozen=True)
class Deadly:
    """Work that ends every process but this one."""

    name: str
    parent: int | None

    def __call__(self, site: Site, out: Path) -> list[Finding]:
        if self.parent is not None and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return [Finding(kind="deadly", item=self.name, audit="deadly")]


def _calls(out: Path, names: str, deadly: str = "") -> list[Call]:
    """Tasks that are called by a letter."""
    site, blank = build_plan(tomllib.loads(QUICK_PLAN), folder=Path()).site, Finding(kind="deadly", item="", audit="")
    works = [Deadly(name, os.getpid() if name in deadly else None) for name in names]
    tasks = [Task(name=one.name, run=one, blank=blank.but(item=one.name), headline=one.name) for one in works]
    return [Call(task, site, out) for task in tasks]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Two processes that end at some tasks, in this one; the names of what they get, wave by wave."""

    def at(deadly: str) -> list[str]:
        waves: list[str] = []

        def in_processes(calls: Sequence[Any], **_: Any) -> Generator[Any]:
            names = "".join(call.call.task.name for call in calls)
            waves.append(names)
            for place, call in enumerate(calls):
                if set(names[place : place + 2]) & set(deadly):
                    raise BrokenProcessPool("It was terminated.\n\nThe exit codes of the workers are {SIGKILL(-9)}")
                yield call()

        monkeypatch.setattr("gradleak.auditing.executor.in_processes", in_processes)
        return waves

    return at


def test_a_task_that_ends_its_process_takes_no_other_along(ending: Callable[[str], list[str]], tmp_path: Path) -> None:
    waves = ending("d")
    done = {task.name: found[0] for task, found in Loky(jobs=2).results(_calls(tmp_path, "abcdef"))}
    assert waves == ["abcdef", "c", "d", "ef"]
    assert [*done] == [*"abcdef"]
    failures = {name: (one.item, one.note) for name, one in done.items() if one.status is Status.FAILED}
    assert failures == {"d": ("d", "its worker process ended, twice (SIGKILL(-9)); is there room in memory?")}


def test_where_no_process_lives_the_run_ends(ending: Callable[[str], list[str]], tmp_path: Path) -> None:
    ending("abcdefg")
    with pytest.raises(
        PlanError, match=r"expected worker processes that live, got 4 that ended.* \(SIGKILL\(-9\)\); .* --jobs 1"
    ):
        list(Loky(jobs=2).results(_calls(tmp_path, "abcdefg")))


def test_what_cannot_be_sent_is_done_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def in_processes(calls: Sequence[Any], *, jobs: int, **_: Any) -> Generator[Any]:
        for place, call in enumerate(calls):
            if jobs > 1 and place == 1:
                raise PicklingError("Could not pickle the task to send it to the workers.") from ValueError(REMOTE)
            yield call()

    monkeypatch.setattr("gradleak.auditing.executor.in_processes", in_processes)
    with pytest.warns(UserWarning, match=r"alone what is left.* \(TypeError: cannot pickle '_thread.lock' object\)"):
        done = [task.name for task, _ in Loky(jobs=2).results(_calls(tmp_path, "abc"))]
    assert done == ["a", "b", "c"]


def test_what_cannot_be_sent_to_a_cluster_is_refused(tmp_path: Path) -> None:
    [call] = _calls(tmp_path, "a")
    locked = replace(call, task=replace(call.task, run=partial(_with, threading.Lock())))
    with (
        pytest.raises(
            InputError, match=r"got one that cannot \(cannot pickle '_thread.lock' object\); take locks.* loky"
        ),
        sent(),
    ):
        Freight.of([locked])


def _with(lock: object, site: Site, out: Path) -> list[Finding]:
    raise NotImplementedError


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_a_process_that_is_killed_costs_its_own_task_alone(tmp_path: Path) -> None:
    done = {task.name: found[0].status for task, found in Loky(jobs=2).results(_calls(tmp_path, "abc", deadly="b"))}
    assert done == {"a": Status.DONE, "b": Status.FAILED, "c": Status.DONE}


@pytest.mark.parametrize("end", [SystemExit(0), SystemExit(1), GeneratorExit()])
def test_code_that_ends_the_program_has_failed(end: BaseException, tmp_path: Path) -> None:
    def run(site: Site, out: Path) -> list[Finding]:
        raise end

    [call] = _calls(tmp_path, "a")
    task = Task(name="a", run=run, blank=call.task.blank, headline="a")
    [found] = findings_of(task, call.site, tmp_path)
    assert found.status is Status.FAILED
    assert found.note.startswith(f"{type(end).__name__} in test_lost_workers.py, run; see failures/")

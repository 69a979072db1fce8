"""Time budget of a run: cheap and telling evidence first, what is hopeless or too long left out, each with its reason."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradleak.auditing.device import on_device, wait_for
from gradleak.auditing.duration import expected_seconds
from gradleak.auditing.executor import Executor
from gradleak.auditing.work import Call, Done
from gradleak.audits.base import Site, Task
from gradleak.core.process import one_thread
from gradleak.results import Finding, Grounds, InputError, Outcome, Status
from gradleak.results.errors import shown

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
# Of the time that is left, what tasks that begin at once may take: nothing is decided before they have ended.
_AT_ONCE = 0.25


def seconds_of(time: str | float) -> float:
    """A length of time in seconds.

    Args:
        time: a number of seconds, or a text such as "30s", "1.5m" or "500ms".

    Raises:
        InputError: for anything else, or what is not positive.

    Examples:
        >>> seconds_of("1.5m")
        90.0
    """
    value = math.nan
    if isinstance(time, str):
        read = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]+)\s*", time, flags=re.ASCII)
        if read and read[2] in _UNITS:
            value = float(read[1]) * _UNITS[read[2]]
    elif isinstance(time, int | float) and not isinstance(time, bool):
        value = float(time)
    if not 0 < value < math.inf:
        raise InputError(f'budget: expected seconds, or a text such as "30s" or "2m" with its unit, got {shown(time)}')
    return value


class Budget:
    """Time that audits of this process may take, each for itself; the controls that one has made serve the next ones.

    What would not be done in time is not begun: its cost in plain gradients, times what a gradient of this model took, has to
    fit into what is left, together with the controls without which nobody could read its result. What was begun is not broken
    off, so that a run may take longer than its budget. What is begun gives the bits that it gives without a budget; what is
    left out is a finding that says so, is no evidence for anything, and is tried again by the next run of the plan.

    Attributes:
        seconds: the time.
        shared: whether a control that later audits share may take as long as the whole budget, beside the rest.
    """

    def __init__(self, time: str | float, *, shared: bool = True) -> None:
        """Read the time: seconds, or a text such as "30s"."""
        self.seconds = seconds_of(time)
        self.shared = shared
        self._made: dict[str, Sequence[Finding]] = {}

    def results(
        self, calls: Sequence[Call], *, place: Executor, found: Iterable[Finding] = (), since: float | None = None
    ) -> Generator[Done]:
        """The tasks and their findings by `Task.turn` and cost; those that were left out have one finding of that status.

        Args:
            calls: tasks of one plan.
            place: where they run.
            found: by earlier runs of the plan.
            since: when the run began, by `time.perf_counter`; None for now.
        """
        if not calls:
            return
        site = calls[0].site
        started = time.perf_counter() if since is None else since
        with place.held(calls) as held, one_thread():
            clock = _Clock(
                self,
                started,
                seconds_per_gradient(site, calls[0].device) if any(one.task.cost > 0 for one in calls) else 0.0,
            )
            run = _Run(clock, held, Grounds(thresholds=site.thresholds, findings=list(found)), self._made)
            yield from run.results(calls)


@dataclass(frozen=True)
class _Clock:
    """Time of one run: what is left of it, and what a task is expected to take."""

    budget: Budget
    started: float
    unit: float

    @property
    def left(self) -> float:
        return max(0.0, self.budget.seconds - (time.perf_counter() - self.started))

    def apart(self, task: Task[Any]) -> bool:
        """True for what serves every later audit, and is worth a budget of its own."""
        return bool(task.once) and self.budget.shared

    def takes(self, task: Task[Any]) -> float:
        return expected_seconds(task, self.unit)


@dataclass
class _Run:
    """One run: what was found, what waits, and what is about to begin."""

    clock: _Clock
    place: Executor
    grounds: Grounds
    made: dict[str, Sequence[Finding]]
    controls: dict[str, Task[Any]] = field(default_factory=dict)
    wave: list[Call] = field(default_factory=list)

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """Turn by turn; a control that has nothing to bear out yet is asked for again in the next one."""
        needed = {name for call in calls for name in call.task.needs}
        self.controls = {call.task.name: call.task for call in calls if call.task.name in needed}
        turns: dict[int, list[Call]] = {}
        for call in calls:
            turns.setdefault(call.task.turn, []).append(call)
        waiting: list[Call] = []
        for turn in (*sorted(turns), None):
            # Sorting keeps the order of the plan among equals.
            here = [*waiting, *sorted(turns.get(turn, ()) if turn is not None else (), key=lambda one: one.task.cost)]
            waiting = []
            for call in here:
                group, reason = self._without(call)
                if group and call.task.name in self.controls and turn is not None and reason:
                    waiting.append(call)
                elif group:
                    self.controls.pop(call.task.name, None)
                    yield self._known(call.task, group)
                else:
                    self.wave.append(call)
                    if self._full:
                        yield from self._begun()
            yield from self._begun()

    def _without(self, call: Call) -> tuple[Sequence[Finding], str]:
        """The finding of a task that is not begun, and the reason not to; none where it is worth its time."""
        task = call.task
        if before := self._made_before(task):
            return before, ""
        asked = [ask for ask in (task.after, task.chance if self.clock.left else None) if ask is not None]
        if reason := next(filter(None, (ask(call.site, self.grounds) for ask in asked)), ""):
            return _left_out(task, reason), reason
        takes = self.clock.takes(task)
        if takes <= 0:
            return [], ""
        planned = sum(self.clock.takes(one.task) for one in self.wave) / self.place.width
        left = self.clock.budget.seconds if self.clock.apart(task) else self.clock.left - planned
        reserved = sum(
            self.clock.takes(control)
            for name in task.needs
            if (control := self.controls.get(name)) is not None
            and not self.clock.apart(control)
            and not self._made_before(control)
        )
        if takes + reserved <= left:
            return [], ""
        beside = f", and the controls that it needs {reserved:.2g} s" if reserved else ""
        reason = (
            f"it would take about {takes:.2g} s{beside}, and {max(left, 0.0):.2g} s of the budget of "
            f"{self.clock.budget.seconds:g} s are left"
        )
        # Time does not come back, so that a control is not asked again either.
        return _left_out(task, reason, Outcome.BUDGET_SPENT), ""

    @property
    def _full(self) -> bool:
        load = sum(self.clock.takes(one.task) for one in self.wave)
        return self.place.width == 1 or load > _AT_ONCE * self.clock.left * self.place.width

    def _begun(self) -> Generator[Done]:
        """The findings of what was chosen to begin."""
        wave, self.wave = self.wave, []
        for task, group in self.place.results(wave) if wave else ():
            if task.once and all(one.status is Status.DONE for one in group):
                self.made[task.once] = group
            self.controls.pop(task.name, None)
            yield self._known(task, group)

    def _known(self, task: Task[Any], group: Sequence[Finding]) -> Done:
        self.grounds = self.grounds.more(group)
        return task, group

    def _made_before(self, task: Task[Any]) -> Sequence[Finding]:
        """The findings of an earlier audit that hold for this task as well, or none."""
        again = "made once in this process, for an earlier audit"
        made = self.made.get(task.once, ()) if task.once else ()
        return [one.but(note="; ".join(filter(None, (one.note, again))), seconds=0.0) for one in made]


def seconds_per_gradient(site: Site, device: torch.device | None = None) -> float:
    """Time of a plain gradient of the plan's first batch, the faster of two; 0 where there is no batch.

    Args:
        site: of the plan.
        device: where it is computed.
    """
    if not site.batches:
        return 0.0
    batch, objective = on_device((site.batches[0].to(site.objective.dtype), site.objective), device)
    taken = []
    for _ in range(2):
        before = time.perf_counter()
        wait_for(objective.gradient(objective.params, batch))
        taken.append(time.perf_counter() - before)
    return min(taken)


def _left_out(task: Task[Any], reason: str, outcome: Outcome | None = None) -> Sequence[Finding]:
    note = f"left out: {reason}"
    return [task.blank.but(status=Status.LEFT_OUT, outcome=outcome, note=note)]

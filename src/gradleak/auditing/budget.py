"""Time budget of a run: cheap evidence first, what is hopeless or too long left out and said, controls once a process."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Generator, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from gradleak.auditing.executor import Executor
from gradleak.auditing.work import Call, Done
from gradleak.audits.base import Site, Task
from gradleak.core.process import one_thread
from gradleak.results import Finding, Grounds, InputError, Outcome, Status
from gradleak.results.errors import shown

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


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
        read = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]+)\s*", time)
        if read and read[2] in _UNITS:
            value = float(read[1]) * _UNITS[read[2]]
    elif isinstance(time, int | float) and not isinstance(time, bool):
        value = float(time)
    if not 0 < value < math.inf:
        raise InputError(f'budget: expected seconds, or a text such as "30s" or "2m", got {shown(time)}')
    return value


class Budget(Executor):
    """Time that audits of this process may take, each for itself; the controls that one has made serve the next ones.

    What would not be done in time is not begun: its cost in plain gradients, times what a gradient of this model took, has to
    fit into what is left; a control that later audits share has to fit into the whole. What was begun is not broken off, so
    that a run may take longer than its budget.
    """

    def __init__(self, time: str | float) -> None:
        """Read the time: seconds, or a text such as "30s"."""
        self.seconds = seconds_of(time)
        self._made: dict[str, Sequence[Finding]] = {}

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings by `Task.turn`; those that were left out have one finding of that status."""
        started = time.perf_counter()
        unit: float | None = None
        found: list[Finding] = []
        with one_thread(), threadpool_limits(limits=1):
            for call in sorted(calls, key=lambda one: one.task.turn):
                task, site = call.task, call.site
                group = self._made_before(task)
                if not group and task.after is not None:
                    reason = task.after(site, Grounds(thresholds=site.thresholds, findings=found))
                    group = _left_out(task, reason) if reason else []
                if not group and task.cost > 0:
                    unit = seconds_per_gradient(site) if unit is None else unit
                    # What serves every later audit is worth a budget of its own.
                    left = self.seconds if task.once else self.seconds - (time.perf_counter() - started)
                    if task.cost * unit > left:
                        reason = (
                            f"it would take about {task.cost * unit:.2g} s, and {max(left, 0.0):.2g} s of the budget of "
                            f"{self.seconds:g} s are left"
                        )
                        group = _left_out(task, reason, Outcome.BUDGET_SPENT)
                if not group:
                    _, group = call()
                    if task.once and all(one.status is Status.DONE for one in group):
                        self._made[task.once] = group
                found += group
                yield task, group

    def _made_before(self, task: Task[Any]) -> Sequence[Finding]:
        """The findings of an earlier audit that hold for this task as well, or none."""
        again = "made once in this process, for an earlier audit"
        made = self._made.get(task.once, ()) if task.once else ()
        return [one.but(note="; ".join(filter(None, (one.note, again))), seconds=0.0) for one in made]


def seconds_per_gradient(site: Site) -> float:
    """Time of a plain gradient of the plan's first batch, the faster of two; 0 where there is no batch."""
    if not site.batches:
        return 0.0
    batch, objective = site.batches[0].to(site.objective.dtype), site.objective
    taken = []
    for _ in range(2):
        before = time.perf_counter()
        objective.gradient(objective.params, batch)
        taken.append(time.perf_counter() - before)
    return min(taken)


def _left_out(task: Task[Any], reason: str, outcome: Outcome | None = None) -> Sequence[Finding]:
    note = f"left out: {reason}"
    return [task.blank.but(status=Status.LEFT_OUT, outcome=outcome, note=note)]

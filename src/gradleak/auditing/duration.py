"""Expected processor time of a plan: its cost in plain gradients, times what one takes on this machine, and work beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from gradleak.auditing.device import on_device, wait_for
from gradleak.auditing.plan import Plan
from gradleak.audits.base import Site, Task
from gradleak.core import Batch, Objective, Release
from gradleak.core.process import one_thread
from gradleak.results import GradleakError

# So long a gradient is tried, and so often at most.
_TRIED = 0.15
_TIMES = 20
# Starting, reading the plan, verdicts and reports.
_START = 6.5
# What plans took of what was expected of them lay between these, see docs/how-to/start-a-plan.md.
_LEAST, _MOST = 0.5, 2.2
# Seconds of `_piece` on the machine on which the seconds of tasks were measured.
_REFERENCE = 0.005


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Expected processor seconds of a plan, on one core of this machine.

    Attributes:
        tasks: seconds by task, in the order of the plan.
        headlines: the same by what a progress bar shows.
        place: where they pass.
        beside: seconds of what is done before and after the tasks.
    """

    tasks: Mapping[str, float]
    headlines: Mapping[str, float]
    place: str = "of one core"
    beside: float = _START

    @property
    def seconds(self) -> float:
        """Those of all tasks, and of what is done before and after them."""
        return self.beside + sum(self.tasks.values())

    def __str__(self) -> str:
        """As people say it, with how far it can be off: "about 2 to 7 minutes of one core"."""
        least, most = in_words(_LEAST * self.seconds), in_words(_MOST * self.seconds)
        # One unit is said once: "2 to 7 minutes".
        number, _, unit = least.partition(" ")
        same = unit.rstrip("s") == most.partition(" ")[2].rstrip("s")
        told = most if least == most else f"{number if same else least} to {most}"
        return f"about {told} {self.place}"


def duration(plan: Plan, device: torch.device | None = None) -> Duration:
    """The expected processor time of a plan, after about a second of trials on this machine.

    A plain gradient of the plan's model is timed for every audit, on its own rows where it has some. It is an estimate:
    attacks end early or start again, and a loaded machine is slower.

    Args:
        plan: what would be done; nothing of it is.
        device: where the tasks would compute.
    """
    with one_thread():
        machine = _piece() / _REFERENCE
        every: dict[str, float] = {}
        shown: dict[str, float] = {}
        first = plan.site.batches[0] if plan.site.batches else None
        common = _gradient(plan.site, first, device)
        dearer = _by_scenario(plan.site, first, device)
        for audit in plan.audits:
            own = audit.probed()
            unit = common if own is None else _gradient(plan.site, own, device)
            for task in audit.tasks(plan.site):
                factor = dearer.get(task.blank.scenario or "", 1.0) if own is None else 1.0
                every[task.name] = expected_seconds(task, factor * unit, machine)
                shown[task.headline] = shown.get(task.headline, 0.0) + every[task.name]
    place = "of one core" if device is None or device.type == "cpu" else f"on {device.type}"
    return Duration(tasks=every, headlines=shown, place=place)


def in_words(seconds: float) -> str:
    """A length of time in words.

    Examples:
        >>> in_words(4.0), in_words(100.0), in_words(9000.0)
        ('10 seconds', '2 minutes', '2.5 hours')
    """
    if seconds < 55:
        return f"{max(10, 10 * round(seconds / 10))} seconds"
    if seconds < 5400:
        minutes = max(1, round(seconds / 60))
        return f"{minutes} minute{'s' if minutes > 1 else ''}"
    return f"{seconds / 3600:.1f} hours"


def expected_seconds(task: Task[Any], unit: float, machine: float = 1.0) -> float:
    """Processor seconds of a task.

    Args:
        task: of a plan.
        unit: seconds of a plain gradient.
        machine: how many times slower this machine is than that of `Task.seconds`.
    """
    return task.cost * task.pace * unit + task.seconds * machine


def _gradient(site: Site, rows: Batch | None, device: torch.device | None) -> float:
    """Seconds of a plain gradient, of the processor or of the accelerator; 0 without rows, and for a model that has none."""
    if rows is None:
        return 0.0
    objective, batch = on_device((site.objective, rows.to(site.objective.dtype)), device)
    return _tried(lambda: objective.gradient(objective.params, batch), objective.device)


def _by_scenario(site: Site, rows: Batch | None, device: torch.device | None) -> dict[str, float]:
    """By scenario with defenses, the time of a derivative through its release in that of one without them, 1 at least.

    Attackers who know a defense go through it in every step, which no count of plain gradients tells.
    """
    if rows is None or not rows.inputs.is_floating_point():
        return {}
    known: dict[str, float] = {}
    found: dict[str, float] = {}
    objective, batch = on_device((site.objective, rows.to(site.objective.dtype)), device)
    for scenario in site.scenarios:
        if scenario.release.defenses and scenario.attacks:
            plain = Release(scenario.release.protocol)
            taken = []
            for release in (scenario.release, plain):
                told = str(release.describe())
                if told not in known:
                    known[told] = _tried(partial(_derivative, objective, release, batch), objective.device)
                taken.append(known[told])
            found[scenario.name] = max(1.0, taken[0] / taken[1]) if all(taken) else 1.0
    return found


def _derivative(objective: Objective, release: Release, batch: Batch) -> dict[str, Tensor]:
    """One step of an attack through a release: the derivative of the square of what leaves the client."""

    def size(inputs: Tensor) -> Tensor:
        sent = release.mean(objective, objective.params, replace(batch, inputs=inputs))
        return torch.stack([one.square().sum() for one in sent.values()]).sum()

    return {"inputs": grad(size)(batch.inputs)}


def _tried(compute: Callable[[], Mapping[str, Tensor]], device: torch.device) -> float:
    """Seconds of a computation, of the processor or of the accelerator, the median of some; 0 where it fails."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    taken: list[float] = []
    try:
        # The first one of a process loads what it needs.
        wait_for(compute())
        while not taken or (sum(taken) < _TRIED and len(taken) < _TIMES):
            before = clock()
            wait_for(compute())
            taken.append(clock() - before)
    except (GradleakError, RuntimeError, NotImplementedError):  # the run says so itself
        return 0.0
    return sorted(taken)[(len(taken) - 1) // 2]


def _piece() -> float:
    """Processor seconds of a fixed piece of work, the least of three."""
    matrix = torch.ones(192, 192, dtype=torch.float64)
    taken = []
    for _ in range(3):
        before = time.process_time()
        for _ in range(10):
            matrix @ matrix
        sum(number * number for number in range(50_000))
        taken.append(time.process_time() - before)
    return min(taken)

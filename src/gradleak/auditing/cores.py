"""Number of processes that an audit starts by itself, where nobody says it: as many as pay for their start."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import joblib
import torch

from gradleak.auditing.duration import Duration, duration
from gradleak.auditing.pieces import stages_of
from gradleak.auditing.plan import Plan
from gradleak.auditing.run import tasks

# By the clock: a process imports torch before its first task, and the estimate is rough.
WORTH_SECONDS = 10.0
# Of a process that has imported torch and gradleak.
_PROCESS_BYTES = 2**29


def paying_jobs(plan: Plan, expected: Duration | None = None) -> int:
    """The number of processes for a plan: all cores where that saves ten seconds or more by the estimate, else 1 for this one.

    It is 1 in processes and threads that others have started, whose cores are taken already, and for models that are not on
    the CPU. No number depends on it.

    Args:
        plan: what will be done.
        expected: how long it will take; None for trials on this machine, which take up to a second.
    """
    most = min(joblib.cpu_count(), _room(plan))
    if most < 2 or _started_by_others() or any(one.device.type != "cpu" for one in plan.site.objective.params.values()):
        return 1
    seconds = (expected or duration(plan)).tasks
    return worth([stages_of(task, seconds[task.name], most) for task in tasks(plan)], most)


def worth(work: Collection[Sequence[Sequence[float]]], most: int) -> int:
    """The number of processes for tasks: one a piece, as far as there are cores, or 1 where that saves too little.

    Args:
        work: the stages of every task, one after the other, with the seconds that pieces are expected to take beside each other.
        most: how many processes there may be.

    Examples:
        >>> worth([[[20.0]], [[20.0]], [[20.0]]], most=8), worth([[[20.0]], [[1.0]]], most=8), worth([[[20.0, 20.0]]], 8)
        (3, 1, 2)
    """
    jobs = min(sum(max(map(len, stages)) for stages in work), most)
    if jobs < 2:
        return 1
    whole = sum(sum(stage) for stages in work for stage in stages)
    together = max(whole / jobs, *(sum(max(stage) for stage in stages) for stages in work))
    return jobs if whole - together >= WORTH_SECONDS else 1


def _started_by_others() -> bool:
    """True in a worker of a pool, of Dask or of Ray, in one of several ranks, and in any thread but the main one."""
    return (
        multiprocessing.parent_process() is not None
        or threading.current_thread() is not threading.main_thread()
        or "RAY_RAYLET_PID" in os.environ
        or (torch.distributed.is_available() and torch.distributed.is_initialized())
    )


def _room(plan: Plan) -> int:
    """Number of processes for which there is memory; where the system does not say, any number."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    if available is None:
        return joblib.cpu_count()
    weights = sum(one.numel() * one.element_size() for one in plan.site.objective.params.values())
    return max(1, available // (plan.site.max_bytes + weights + _PROCESS_BYTES))

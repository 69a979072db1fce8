"""Timing by ratios: an operation against one plain gradient, interleaved, in processor time of this process.

Wall time would count the neighbors: on a busy machine long operations are interrupted more often than short ones, which
swings every ratio. Run with one thread (processor time adds up over threads).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from gradleak.core import Batch, Objective


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was measured.
        ratio: its duration in plain gradients (or, if `unit` says so, in something else).
        aim: the largest ratio that we want to see, or None.
        unit: what the ratio is relative to.
    """

    name: str
    ratio: float
    aim: float | None = None
    unit: str = "plain gradients"


def seconds(function: Callable[[], Any], repeats: int = 1) -> float:
    """The median processor time of one call of `function`, after one call that is not counted."""
    function()
    return median(_once(function) for _ in range(repeats))


def plain_gradient(objective: Objective, batch: Batch) -> Callable[[], Any]:
    """A function that computes one plain gradient of `objective` at `batch`, in the dtype of the objective."""
    batch = batch.to(objective.dtype)
    return lambda: objective.gradient(objective.params, batch)


def plain_gradient_seconds(objective: Objective, batch: Batch, repeats: int = 50) -> float:
    """The median processor time of one plain gradient of `objective` at `batch`."""
    return seconds(plain_gradient(objective, batch), repeats)


def ratio(function: Callable[[], Any], baseline: Callable[[], Any], repeats: int = 5) -> float:
    """Cost of one call of `function` in calls of `baseline`: the median over interleaved repeats.

    Before and after every call of `function`, `baseline` runs for about a tenth of its duration (5 to 50 times), and
    that repeat's ratio is to the median of those.

    Args:
        function: the operation, without arguments.
        baseline: for instance `plain_gradient(objective, batch)`.
        repeats: the number of ratios of which the median is taken.
    """
    function()
    rough = seconds(baseline, 5)
    rounds = max(5, min(50, round(_once(function) / rough / 10)))
    ratios = []
    for _ in range(repeats):
        around = [_once(baseline) for _ in range(rounds)]
        duration = _once(function)
        around += [_once(baseline) for _ in range(rounds)]
        ratios.append(duration / median(around))
    return median(ratios)


def _once(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start

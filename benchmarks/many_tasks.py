"""Memory of parent and workers over 10,000 tasks that do nothing, on two workers of this machine. Linux only: read from /proc."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import gradleak as gl
from benchmarks.engines import tiny
from benchmarks.measure import Row
from benchmarks.processes import children, resident

_COUNT = 10_000


def run() -> Iterator[Row]:
    yield from measured(_COUNT)


def measured(count: int) -> Iterator[Row]:
    """Resident memory when a tenth of the tasks is done, and at the end: of the parent, and of the larger worker.

    Args:
        count: of tasks.
    """
    parent: dict[int, float] = {}
    workers: dict[int, float] = {}

    def look(done: int, total: int, what: str) -> None:
        if done and done % (count // 10) == 0:
            parent[done] = resident(os.getpid())
            workers[done] = max((resident(one) for one in children()), default=0.0)

    with tempfile.TemporaryDirectory() as folder:
        record = gl.run_plan(tiny(count), folder, jobs=2, progress=look)
        assert len(record.findings) == count
    for name, taken in {"parent": parent, "larger worker": workers}.items():
        for done in (count // 10, count // 2, count):
            yield Row(name=f"{name}, {done:,} tasks done", ratio=taken[done], unit="MB")

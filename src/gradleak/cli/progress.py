"""Progress of a command on the terminal: a bar with the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from gradleak.models.generators import TrainedGenerator

# From this share of the work on, the speed so far says more than the expected one.
_KNOWN = 0.05


class TimeLeft:
    """Time that is left of a run, from what its tasks were expected to take and from what they took."""

    def __init__(self, expected: Mapping[str, float], *, workers: int = 1) -> None:
        """Take the expected seconds of the tasks, by what a progress bar shows of them.

        Args:
            expected: by headline.
            workers: how many tasks run at a time.
        """
        self._waiting = dict(expected)
        self._all = sum(expected.values())
        self._workers = workers
        self._began = time.monotonic()

    def after(self, done: int, total: int, what: str) -> str:
        """The time left when a task has ended, in words, "" where nothing is expected.

        Args:
            done: number of tasks that are done.
            total: number of all tasks.
            what: the headline of the one that has ended, "started" or "resumed".
        """
        if what == "resumed" and total:
            # Which ones are done is not said.
            self._waiting = {name: one * (total - done) / total for name, one in self._waiting.items()}
            self._all = sum(self._waiting.values())
        self._waiting.pop(what, None)
        left = sum(self._waiting.values())
        if not self._all or done >= total:
            return ""
        share = 1 - left / self._all
        taken = time.monotonic() - self._began
        speed = taken / (self._all - left) if share >= _KNOWN else 1 / self._workers
        return f"{_clock(left * speed)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


@contextmanager
def shown(
    quiet: bool, expected: Mapping[str, float] | None = None, *, workers: int = 1
) -> Iterator[Callable[[int, int, str], None] | None]:
    """Function that a run calls after every task: one that moves a bar, or None.

    Args:
        quiet: whether nothing is shown.
        expected: seconds by headline of the tasks, for the time that is left.
        workers: how many tasks run at a time.
    """
    if quiet:
        yield None
        return
    with _bar() as bar:
        task, left = bar.add_task("audit", total=None, left=""), TimeLeft(expected or {}, workers=workers)

        def advance(done: int, total: int, what: str) -> None:
            if done == 0 and what != "started":
                # On the record that was there: to be read after the run, too.
                bar.console.print(what, soft_wrap=True, markup=False, highlight=False)
            bar.update(task, completed=done, total=total, description=what, left=left.after(done, total, what))

        yield advance


def train_with_progress(plan: Path) -> TrainedGenerator:
    """The generator of a training file, with a bar meanwhile.

    Args:
        plan: the file.
    """
    from gradleak.auditing import train_generator

    with _bar() as bar:
        task = bar.add_task("training", total=None, left="")

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        return train_generator(plan, progress=advance)


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        try:
            yield bar
        except BaseException:
            # Above a refusal a bar that never moved says nothing.
            if not any(task.completed for task in bar.tasks):
                bar.live.transient, bar.console.quiet = True, not bar.console.is_interactive
            raise

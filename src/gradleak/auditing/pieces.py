"""Long tasks in pieces, which are done apart and joined in the parent; what they made may be read in further pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradleak.auditing.duration import expected_seconds
from gradleak.auditing.executor import Executor, worked
from gradleak.auditing.work import Call, Done, clear_failure, failed
from gradleak.audits.base import InPieces, Site, Task
from gradleak.results import Finding

# Tasks a worker whose first pieces are done at once: this process holds what they made until the others are.
_AHEAD = 4
# Seconds of a plain gradient, where only the order of tasks depends on it.
_GRADIENT = 0.005


@dataclass(frozen=True)
class Cut(Executor):
    """An executor that gets the pieces of long tasks in place of these; numbers are those of the whole tasks.

    What is cut, and where, is a matter of the plan, never of the number of workers. The findings of a task come when its last
    piece is done; a run that is killed before does all of its pieces again.

    Attributes:
        place: where the pieces are done.
    """

    place: Executor

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends."""
        if not calls:
            return
        coming = deque(call for call in calls if _goes_on(call.task))
        ready = _in_pieces([call for call in calls if not _goes_on(call.task)])
        stages = _by_piece(stage for call in calls if (stage := _Stage.first(call)))
        with self.place.held(_in_pieces(calls)) as place:
            ahead = _AHEAD * place.width if place.width > 1 else 1
            while ready or coming:
                begun = [coming.popleft() for _ in range(min(ahead, len(coming)))]
                # More pieces wait for these.
                firsts = _longest_first(_in_pieces(begun), place.width)
                wave, ready = [*firsts, *_longest_first(ready, place.width)], []
                with closing(place.results(wave)) as results:
                    for task, found in results:
                        stage = stages.pop(task.name, None)
                        if stage is None:
                            yield task, found
                        elif stage.takes(task.name, found):
                            done = stage.joined()
                            if isinstance(done, _Stage):
                                stages |= _by_piece([done])
                                ready += done.calls
                            else:
                                yield done

    @contextmanager
    def held(self, calls: Sequence[Call]) -> Iterator[Executor]:
        """The place, kept ready for the pieces."""
        with self.place.held(_in_pieces(calls)) as held:
            yield replace(self, place=held)

    @contextmanager
    def begun(self, tasks: int) -> Iterator[None]:
        """The place, made ready."""
        with self.place.begun(tasks):
            yield

    @property
    def width(self) -> int:
        """Number of tasks that the place does at a time."""
        return self.place.width

    @property
    def shares_memory(self) -> bool:
        """True if killed runs of the place can leave shared memory of this machine behind."""
        return self.place.shares_memory


@dataclass(frozen=True)
class _Piece:
    """Work of a piece, as that of a task: what it makes stands where findings do, and goes no further than the parent."""

    make: Callable[[Site, Path], Any]

    def __call__(self, site: Site, out: Path) -> Sequence[Any]:
        return [self.make(site, out)]


@dataclass(frozen=True)
class _Join:
    """The last step of pieces, as the work of a task: findings, or the pieces that follow."""

    run: InPieces[Any]
    made: Sequence[Any]

    def __call__(self, site: Site, out: Path) -> Sequence[Any]:
        found = self.run.join(site, out, self.made)
        while isinstance(found, InPieces) and not found.pieces:
            found = found.join(site, out, [])
        return [found] if isinstance(found, InPieces) else found


@dataclass
class _Stage:
    """Pieces of a task that are done apart, and what they have made so far, by their names.

    Attributes:
        call: of the task.
        run: its work in pieces, or what is left of it.
        pieces: as tasks of their own.
        made: what a piece returned, or the finding of its failure.
    """

    call: Call
    run: InPieces[Any]
    pieces: Sequence[Task[Any]]
    made: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def first(cls, call: Call) -> _Stage | None:
        """The first pieces of a task; None where it is done in one go."""
        run, pieces = call.task.run, pieces_of(call.task)
        return cls(call, run, pieces) if isinstance(run, InPieces) and pieces else None

    @property
    def calls(self) -> list[Call]:
        """The pieces, for an executor."""
        return [replace(self.call, task=piece) for piece in self.pieces]

    def takes(self, name: str, found: Sequence[Any]) -> bool:
        """True if this was the last piece that was missing."""
        self.made[name] = found[0]
        return len(self.made) == len(self.pieces)

    def joined(self) -> Done | _Stage:
        """The task and its findings, or the pieces that follow; the note of the first one that failed, whichever ended first."""
        task, made = self.call.task, [self.made[piece.name] for piece in self.pieces]
        broken = next((one for one in made if isinstance(one, Finding)), None)
        if broken is not None:
            return task, failed(task, broken.note)
        for piece in self.pieces:
            clear_failure(self.call.folder, piece)
        _, found = worked(replace(self.call, task=replace(task, run=_Join(self.run, made))))
        if isinstance(found[0], InPieces):
            return _Stage(self.call, found[0], _tasks(task, found[0], "further piece"))
        return task, found


def pieces_of(task: Task[Any]) -> list[Task[Any]]:
    """The first pieces of a task as tasks of their own, in their order; none where it is done in one go."""
    run = task.run
    if not isinstance(run, InPieces) or not (run.goes_on or len(run.pieces) > 1):
        return []
    return _tasks(task, run, "piece")


def stages_of(task: Task[Any], seconds: float, width: int) -> list[list[float]]:
    """Seconds of the pieces of a task: stages that follow each other, each of what is done beside each other.

    Args:
        task: of a plan.
        seconds: what all of it takes.
        width: number of equal parts that are assumed of further pieces, which are known when the first are done.
    """
    run = task.run
    if not isinstance(run, InPieces) or not pieces_of(task):
        return [[seconds]]
    left = max(0.0, 1 - sum(run.shares))
    return [[seconds * share for share in run.shares], *([[seconds * left / width] * width] if run.goes_on else [])]


def _tasks(task: Task[Any], run: InPieces[Any], called: str) -> list[Task[Any]]:
    pieces = run.pieces
    return [
        replace(
            task,
            name=f"{task.name}, {called} {number} of {len(pieces)}",
            run=_Piece(make),
            cost=task.cost * share,
            seconds=task.seconds * share,
        )
        for number, (make, share) in enumerate(zip(pieces, run.shares, strict=True), start=1)
    ]


def _goes_on(task: Task[Any]) -> bool:
    return isinstance(task.run, InPieces) and task.run.goes_on


def _in_pieces(calls: Sequence[Call]) -> list[Call]:
    return [replace(call, task=task) for call in calls for task in (pieces_of(call.task) or [call.task])]


def _by_piece(stages: Iterable[_Stage]) -> dict[str, _Stage]:
    return {piece.name: stage for stage in stages for piece in stage.pieces}


def _longest_first(calls: Sequence[Call], width: int) -> Sequence[Call]:
    """The calls as several workers get them: what begins last is short, so that none works long after the others."""
    return calls if width == 1 else sorted(calls, key=lambda call: -expected_seconds(call.task, _GRADIENT))

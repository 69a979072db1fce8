"""Long tasks in pieces: seeds of a game, of an audit of epsilon and of trainings are done apart, and joined in the parent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradleak.auditing.executor import Executor, worked
from gradleak.auditing.work import Call, Done, failed
from gradleak.audits.base import InPieces, Site, Task
from gradleak.results import Finding


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
        waiting: dict[str, _Whole] = {}
        for call in calls:
            pieces = pieces_of(call.task)
            waiting |= dict.fromkeys((piece.name for piece in pieces), _Whole(call, pieces))
        with closing(self.place.results(_in_pieces(calls))) as results:
            for task, found in results:
                whole = waiting.pop(task.name, None)
                if whole is None:
                    yield task, found
                    continue
                whole.made[task.name] = found[0]
                if len(whole.made) == len(whole.pieces):
                    yield whole.joined()

    @contextmanager
    def held(self, calls: Sequence[Call]) -> Iterator[Executor]:
        """The place, kept ready for the pieces."""
        with self.place.held(_in_pieces(calls)) as held:
            yield replace(self, place=held)

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
    """The last step of a task that was done in pieces, as its work."""

    run: InPieces[Any]
    made: Sequence[Any]

    def __call__(self, site: Site, out: Path) -> Sequence[Any]:
        return self.run.join(site, out, self.made)


@dataclass
class _Whole:
    """A task, and what its pieces have made so far, by their names."""

    call: Call
    pieces: Sequence[Task[Any]]
    made: dict[str, Any] = field(default_factory=dict)

    def joined(self) -> Done:
        """The task and its findings; the note of the first piece that failed, whichever ended first."""
        task, made = self.call.task, [self.made[piece.name] for piece in self.pieces]
        broken = next((one for one in made if isinstance(one, Finding)), None)
        if broken is not None:
            return task, failed(task, broken.note)
        assert isinstance(task.run, InPieces)
        return task, worked(replace(self.call, task=replace(task, run=_Join(task.run, made))))[1]


def pieces_of(task: Task[Any]) -> list[Task[Any]]:
    """The pieces of a task as tasks of their own, in their order; none where it is done in one go."""
    pieces = task.run.pieces if isinstance(task.run, InPieces) else ()
    if len(pieces) < 2:
        return []
    return [
        replace(
            task,
            name=f"{task.name}, piece {number + 1} of {len(pieces)}",
            run=_Piece(make),
            cost=task.cost / len(pieces),
        )
        for number, make in enumerate(pieces)
    ]


def _in_pieces(calls: Sequence[Call]) -> list[Call]:
    return [replace(call, task=task) for call in calls for task in (pieces_of(call.task) or [call.task])]

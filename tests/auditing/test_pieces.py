"""Long tasks in pieces: the findings of the whole, and one failure where a piece fails."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import Plan, Shard, build_plan, merge_shards, run_plan
from gradleak.auditing.executor import Executor, worked
from gradleak.auditing.pieces import Cut, pieces_of
from gradleak.auditing.run import tasks
from gradleak.auditing.work import Call, Done
from gradleak.audits.base import InPieces, Site, Task
from gradleak.audits.inference import InferenceAudit
from gradleak.results import Finding, Record, Status

CONTENT: dict[str, Any] = {
    "name": "pieces",
    "seed": 3,
    "model": {"use": "mlp", "features": 6, "hidden": [4], "classes": 2},
    "controls": {"positive": False, "negative": False},
    "inference": {
        "group": {
            "use": "PropertyGame", "population": {"use": "tests.auditing.small_population:two_groups"},
            "private_rows": 60, "public_rows": 120, "batch_size": 8, "trials": 20, "shadow_batches": 20, "rounds": 1,
            "adversary": {"use": "RandomForest", "trees": 5}, "adversaries": ["static"], "seeds": 2,
        }
    },
    "privacy": {
        "mine": {"use": "tests.auditing.own_pairs:RandomizedResponse", "trials": 200, "seeds": 3, "delta": 1e-6}
    },
    "utility": {
        "data": {"use": "tests.auditing.small_population:rows", "count": 40}, "test_rows": 20, "rounds": 2,
        "batch_size": 10, "learning_rate": 0.1, "seeds": 2,
    },
    "scenarios": [{"name": "plain"}],
}  # fmt: skip


@dataclass(frozen=True)
class Backwards(Executor):
    """This process, the last piece first."""

    done: list[str] = field(default_factory=list)

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        for call in reversed(calls):
            self.done.append(call.task.name)
            yield worked(call)


@dataclass(frozen=True)
class Sum(InPieces[Finding]):
    """Numbers, one a piece; where one of them is negative its piece fails."""

    numbers: Sequence[int]

    @property
    def pieces(self) -> Sequence[Callable[[Site, Path], int]]:
        return [Number(number) for number in self.numbers]

    def join(self, site: Site, out: Path, made: Sequence[int]) -> list[Finding]:
        return [Finding(kind="sum", item="sum", audit="sum", note=f"{list(made)} make {sum(made)}")]


@dataclass(frozen=True)
class Number:
    value: int

    def __call__(self, site: Site, out: Path) -> int:
        if self.value < 0:
            raise ArithmeticError("negative")
        return self.value


def plan() -> Plan:
    return build_plan(CONTENT, folder=Path())


def call(numbers: Sequence[int], out: Path) -> Call:
    blank = Finding(kind="sum", item="sum", audit="sum")
    return Call(Task(name="sum", run=Sum(numbers), blank=blank, headline="sum", cost=6.0), plan().site, out)


def test_pieces_come_back_in_their_order_whatever_the_executor_does(tmp_path: Path) -> None:
    place = Backwards()
    [(task, [found])] = Cut(place).results([call([1, 2, 3], tmp_path)])
    assert place.done == [f"sum, piece {number} of 3" for number in (3, 2, 1)]
    assert (task.name, found.note) == ("sum", "[1, 2, 3] make 6")
    assert [piece.cost for piece in pieces_of(task)] == [2.0, 2.0, 2.0]


def test_one_piece_is_no_piece(tmp_path: Path) -> None:
    place = Backwards()
    [(_, [found])] = Cut(place).results([call([7], tmp_path)])
    assert (place.done, found.note) == (["sum"], "[7] make 7")


def test_where_a_piece_fails_the_task_fails_and_says_where(tmp_path: Path) -> None:
    [(_, [found])] = Cut(Backwards()).results([call([1, -2, -3], tmp_path)])
    assert found.status is Status.FAILED
    assert "ArithmeticError" in found.note
    [first, second] = sorted((tmp_path / "failures").iterdir())
    assert "negative" in first.read_text()
    assert "piece_2" in first.name
    assert first.name in found.note
    assert second.name not in found.note


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run_plan(plan(), tmp_path_factory.mktemp("pieces"), executor=Backwards())


def test_games_audits_and_trainings_are_cut_by_their_seeds(record: Record, tmp_path: Path) -> None:
    assert {task.name: len(pieces_of(task)) for task in tasks(plan())} == {
        "inference/plain/group": 2,
        "privacy/plain/mine": 3,
        "utility/plain": 2,
    }
    whole = {
        finding.item: finding for task in tasks(plan()) for finding in worked(Call(task, plan().site, tmp_path))[1]
    }
    assert all(one.status is Status.DONE for one in record.findings)
    assert {one.item: one.scores for one in record.findings} == {item: one.scores for item, one in whole.items()}


def test_shards_of_a_plan_with_pieces_make_the_same_record(record: Record, tmp_path: Path) -> None:
    shards = [tmp_path / str(number) for number in (1, 2)]
    for number, place in enumerate(shards, start=1):
        run_plan(plan(), place, jobs=1, shard=Shard(number, 2))
    assert merge_shards(plan(), shards, tmp_path / "run").canonical() == record.canonical()


def test_a_cut_game_has_the_numbers_of_seeds_that_are_played_together(record: Record) -> None:
    made = plan()
    [audit] = [one for one in made.audits if isinstance(one, InferenceAudit)]
    seeds = [piece.run.make.seed for piece in pieces_of(next(iter(audit.tasks(made.site))))]  # type: ignore[attr-defined]
    together = audit.game.play_seeds(seeds)
    found = next(one for one in record.findings if one.item == "plain/group")
    for score in together.scores("static"):
        same = [one for one in found.scores if one.name == score.name and one.about.get("round") is None]
        assert [one.value for one in same] == [score.value]

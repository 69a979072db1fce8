"""Long tasks in pieces: the findings of the whole, and one failure where a piece fails."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import Plan, Shard, build_plan, load_plan, merge_shards, run_plan
from gradleak.auditing.executor import Executor, worked
from gradleak.auditing.pieces import Cut, pieces_of
from gradleak.auditing.run import tasks
from gradleak.auditing.work import Call, Done, clear_failure
from gradleak.audits.base import InPieces, Site, Task
from gradleak.audits.inference import InferenceAudit
from gradleak.audits.inference.tasks import Game
from gradleak.audits.privacy import PrivacyAudit
from gradleak.core import derive_seed
from gradleak.results import Finding, Record, Status
from gradleak.results.findings.privacy import PrivacyFinding
from gradleak.results.score import jsonable

CONTENT: dict[str, Any] = {
    "name": "pieces",
    "seed": 3,
    "model": {"use": "mlp", "features": 6, "hidden": [4], "classes": 2},
    "controls": {"positive": False, "negative": False},
    "inference": {
        "group": {
            "use": "PropertyGame", "population": {"use": "tests.auditing.small_population:two_groups"},
            "private_rows": 60, "public_rows": 120, "batch_size": 8, "trials": 20, "shadow_batches": 20, "rounds": 2,
            "adversary": {"use": "RandomForest", "trees": 5}, "adversaries": ["static"], "seeds": 2,
        }
    },
    "privacy": {
        "mine": {"use": "tests.auditing.own_pairs:RandomizedResponse", "trials": 200, "seeds": 3, "delta": 1e-6},
        "member": {
            "use": "MembershipAudit", "population": {"use": "tests.auditing.small_population:two_groups"}, "members": 4,
            "epochs": [0, 1], "private_rows": 40, "public_rows": 40, "trials": 200, "delta": 1e-3, "seeds": 2,
        },
    },
    "layers": {
        "where": {
            "data": {"use": "tests.auditing.small_population:two_groups"}, "count": 60, "releases": 4,
            "visible": ["last layer"],
            "measures": [{"use": "Sensitivity"}, {"use": "SubspaceDistance", "dimension": 2, "permutations": 19}],
        }
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
class TwiceSummed(Sum):
    """A sum that is told by one more piece for each number, and then by one for the sum of those."""

    @property
    def goes_on(self) -> bool:
        return True

    def join(self, site: Site, out: Path, made: Sequence[int]) -> Sum:  # type: ignore[override]
        return Sum([10 * number for number in made])


@dataclass(frozen=True)
class Sinking(TwiceSummed):
    """Further pieces of which some fail where the first ones did not."""

    def join(self, site: Site, out: Path, made: Sequence[int]) -> Sum:  # type: ignore[override]
        return Sum([number - 2 for number in made])


@dataclass(frozen=True)
class Emptied(TwiceSummed):
    """Nothing is left to be done."""

    def join(self, site: Site, out: Path, made: Sequence[int]) -> Sum:  # type: ignore[override]
        return Sum([])


@dataclass(frozen=True)
class Number:
    value: int

    def __call__(self, site: Site, out: Path) -> int:
        if self.value < 0:
            raise ArithmeticError("negative")
        return self.value


PIECES = ("sum, piece 1 of 2", "sum, piece 2 of 2")


def plan() -> Plan:
    return build_plan(CONTENT, folder=Path())


def call(numbers: Sequence[int], out: Path, *, kind: type[Sum] = Sum, name: str = "sum") -> Call:
    blank = Finding(kind="sum", item=name, audit="sum")
    return Call(Task(name=name, run=kind(numbers), blank=blank, headline=name, cost=6.0), plan().site, out)


def test_pieces_come_back_in_their_order_whatever_the_executor_does(tmp_path: Path) -> None:
    place = Backwards()
    [(task, [found])] = Cut(place).results([call([1, 2, 3], tmp_path)])
    assert place.done == [f"sum, piece {number} of 3" for number in (3, 2, 1)]
    assert (task.name, found.note) == ("sum", "[1, 2, 3] make 6")
    assert [piece.cost for piece in pieces_of(task)] == [2.0, 2.0, 2.0]


@dataclass(frozen=True)
class Wide(Backwards):
    """Several workers, as it seems."""

    @property
    def width(self) -> int:
        return 2


def test_several_workers_get_long_pieces_first(tmp_path: Path) -> None:
    long, short = call([1, 2], tmp_path), call([3], tmp_path)
    short = replace(short, task=replace(short.task, name="short", cost=1.0, seconds=0.001))
    orders = []
    for place in (Wide(), Backwards()):
        assert {task.name for task, _ in Cut(place).results([short, long])} == {"sum", "short"}
        orders.append(place.done[::-1])
    assert orders == [[*PIECES, "short"], ["short", *PIECES]]


def test_one_piece_is_no_piece(tmp_path: Path) -> None:
    place = Backwards()
    [(_, [found])] = Cut(place).results([call([7], tmp_path)])
    assert (place.done, found.note) == (["sum"], "[7] make 7")


def test_what_pieces_made_is_read_in_further_pieces(tmp_path: Path) -> None:
    place = Backwards()
    [(task, [found])] = Cut(place).results([call([1, 2], tmp_path, kind=TwiceSummed)])
    assert place.done == [
        "sum, piece 2 of 2", "sum, piece 1 of 2", "sum, further piece 2 of 2", "sum, further piece 1 of 2",
    ]  # fmt: skip
    assert (task.name, found.note) == ("sum", "[10, 20] make 30")
    assert list(worked(call([1, 2], tmp_path, kind=TwiceSummed))[1]) == [found]


def test_a_single_first_piece_is_done_apart_where_others_follow(tmp_path: Path) -> None:
    place = Backwards()
    [(_, [found])] = Cut(place).results([call([4], tmp_path, kind=TwiceSummed)])
    assert place.done == ["sum, piece 1 of 1", "sum, further piece 1 of 1"]
    assert found.note == "[40] make 40"


def test_a_stage_without_pieces_is_joined_at_once(tmp_path: Path) -> None:
    place = Backwards()
    [(_, [found])] = Cut(place).results([call([1, 2], tmp_path, kind=Emptied)])
    assert place.done == ["sum, piece 2 of 2", "sum, piece 1 of 2"]
    assert found.note == "[] make 0"


@dataclass(frozen=True)
class Waves(Backwards):
    """Two tasks at a time, and the number of those that are first pieces in every call of it."""

    begun: list[int] = field(default_factory=list)

    @property
    def width(self) -> int:
        return 2

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        self.begun.append(sum(", piece" in one.task.name for one in calls))
        yield from super().results(calls)


def test_few_tasks_are_begun_before_their_further_pieces(tmp_path: Path) -> None:
    place = Waves()
    calls = [call([1], tmp_path, kind=TwiceSummed, name=f"sum {number}") for number in range(20)]
    assert sorted(task.name for task, _ in Cut(place).results(calls)) == sorted(one.task.name for one in calls)
    assert place.begun == [8, 8, 4, 0]


def test_where_a_further_piece_fails_the_task_fails(tmp_path: Path) -> None:
    [(_, [found])] = Cut(Backwards()).results([call([3, 1], tmp_path, kind=Sinking)])
    assert found.status is Status.FAILED
    assert "ArithmeticError" in found.note
    [file] = (tmp_path / "failures").iterdir()
    assert "further_piece_2" in file.name
    clear_failure(tmp_path, replace(call([1], tmp_path).task, name="sum, further piece 2 of 2"))
    assert not (tmp_path / "failures").exists()


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
        "privacy/plain/member": 2,
        "layers/plain/where/mean_sensitivity": 2,
        "layers/plain/where/subspace_distance": 3,
        "utility/plain": 2,
    }
    whole = {
        finding.item: finding for task in tasks(plan()) for finding in worked(Call(task, plan().site, tmp_path))[1]
    }
    assert all(one.status is Status.DONE for one in record.findings)
    found = {one.item: one.scores for one in record.findings}
    assert found.pop("plain/where/advice") == ()
    assert found == {item: one.scores for item, one in whole.items()}


def test_shards_of_a_plan_with_pieces_make_the_same_record(record: Record, tmp_path: Path) -> None:
    shards = [tmp_path / str(number) for number in (1, 2)]
    for number, place in enumerate(shards, start=1):
        run_plan(plan(), place, jobs=1, shard=Shard(number, 2))
    assert merge_shards(plan(), shards, tmp_path / "run").canonical() == record.canonical()


def test_first_and_further_pieces_cost_what_the_task_does(tmp_path: Path) -> None:
    made: dict[str, float] = {}

    @dataclass(frozen=True)
    class Counting(Backwards):
        def results(self, calls: Sequence[Call]) -> Generator[Done]:
            for one in calls:
                name = one.task.name.partition(", ")[0]
                made[name] = made.get(name, 0.0) + one.task.cost
            yield from super().results(calls)

    list(Cut(Counting()).results([Call(task, plan().site, tmp_path) for task in tasks(plan())]))
    assert made == pytest.approx({task.name: task.cost for task in tasks(plan())})


def test_no_piece_of_the_examples_but_a_training_takes_a_tenth_of_their_cost() -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    # One training is not cut: through DP-SGD it is the largest piece of the games.
    for name, most in (("adult_inference", 0.12), ("adult_layers", 0.06)):
        work = tasks(load_plan(Path(__file__).parents[2] / "examples" / f"{name}.toml"))
        pieces, trainings = [], []
        for task in work:
            of_task = [piece.cost for piece in pieces_of(task) or [task]]
            if isinstance(task.run, Game):
                trainings += of_task
                pieces.append(task.cost * (1 - task.run.training) / len(task.run.seeds) / len(task.run.game.seen))
            else:
                pieces += of_task
        whole = sum(task.cost for task in work)
        assert max(pieces) < 0.1 * whole
        assert max(pieces + trainings) < most * whole


def test_rounds_and_epochs_are_cut_once_models_are_trained(tmp_path: Path) -> None:
    place = Backwards()
    list(Cut(place).results([Call(task, plan().site, tmp_path) for task in tasks(plan())]))
    further = {name for name in place.done if "further" in name}
    assert further == {
        f"{task}, further piece {number} of 4"
        for task in ("inference/plain/group", "privacy/plain/member")
        for number in (1, 2, 3, 4)
    }


def test_a_cut_audit_has_the_numbers_of_one_that_is_played_at_once(record: Record) -> None:
    made = plan()
    found = next(one for one in record.findings if one.item == "plain/member")
    assert isinstance(found, PrivacyFinding)
    audit = next(one.audit for one in made.audits if isinstance(one, PrivacyAudit) and one.name == "member")
    assert audit is not None
    seeds = [derive_seed(made.site.seed, "privacy", "member", str(number)) for number in (0, 1)]
    played = [audit.through(made.site.scenario("plain").release).play(seed) for seed in seeds]
    names = [f"{pair.name}, seed {number}" for number, one in enumerate(played, 1) for pair in one.pairs]
    assert [pair.name for pair in found.pairs] == names
    assert names[:2] == ["example, epoch 0, seed 1", "example, epoch 1, seed 1"]
    facts = [pair.facts for one in played for pair in one.pairs]
    assert [dict(pair.facts) for pair in found.pairs] == [jsonable(dict(one)) for one in facts]


def test_a_cut_game_has_the_numbers_of_seeds_that_are_played_together(record: Record) -> None:
    made = plan()
    [audit] = [one for one in made.audits if isinstance(one, InferenceAudit)]
    seeds = [piece.run.make.seed for piece in pieces_of(next(iter(audit.tasks(made.site))))]  # type: ignore[attr-defined]
    together = audit.game.play_seeds(seeds)
    found = next(one for one in record.findings if one.item == "plain/group")
    for score in together.scores("static"):
        same = [one for one in found.scores if one.name == score.name and one.about.get("round") is None]
        assert [one.value for one in same] == [score.value]

"""Shards of a plan, merged: the record of one go, and a refusal of everything that is not all of one plan."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gradleak.auditing import Plan, Shard, build_plan, merge_shards, run_plan, tasks
from gradleak.results import InputError, PlanError
from tests.auditing.test_resume import QUICK_PLAN


def _plan(change: Callable[[str], str] = str) -> Plan:
    return build_plan(tomllib.loads(change(QUICK_PLAN)), folder=Path())


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("shards")
    for number in (1, 2, 3):
        run_plan(_plan(_with_files), folder / str(number), jobs=1, shard=Shard(number, 3))
    return [folder / str(number) for number in (1, 2, 3)]


def _with_files(text: str) -> str:
    return text.replace("seed = 3", "seed = 3\npictures = true\nsave_updates = true")


def test_merged_shards_are_the_record_of_one_go(shards: list[Path], tmp_path: Path) -> None:
    whole = run_plan(_plan(_with_files), tmp_path / "whole", jobs=1)
    merged = merge_shards(_plan(_with_files), shards[::-1], tmp_path / "merged")
    assert merged.canonical() == whole.canonical()
    assert merged.complete
    assert merged.verdicts
    assert _files(tmp_path / "merged") == _files(tmp_path / "whole")
    assert {name.split("/")[0] for name in _files(tmp_path / "merged")} >= {"pictures", "updates"}


def test_a_merged_run_is_gone_on_with_as_any_other(shards: list[Path], tmp_path: Path) -> None:
    merge_shards(_plan(_with_files), shards, tmp_path)
    before = (tmp_path / "record.jsonl").read_bytes()
    again = run_plan(_plan(_with_files), tmp_path, jobs=1)
    assert again.complete
    assert (tmp_path / "record.jsonl").read_bytes() == before


@pytest.mark.parametrize("of", [1, 2, 5, 40])
def test_every_task_is_in_one_shard_and_costs_are_shared(of: int) -> None:
    work = tasks(_plan())
    shares = [Shard(number, of).share(work) for number in range(1, of + 1)]
    assert sorted(task.name for share in shares for task in share) == sorted(task.name for task in work)
    assert all([*share] == [task for task in work if task in share] for share in shares)
    costs = [sum(max(task.cost, 1.0) for task in share) for share in shares]
    # No share does more than the mean and the longest task.
    assert max(costs) <= sum(costs) / of + max(max(task.cost, 1.0) for task in work)


def test_a_share_of_nothing_is_a_shard_too(tmp_path: Path) -> None:
    count = len(tasks(_plan()))
    record = run_plan(_plan(), tmp_path, jobs=1, shard=Shard(count + 1, count + 1))
    assert not record.lines
    assert record.missing


@pytest.mark.parametrize(
    "text", ["0/3", "4/3", "3", "1/0", "a/b", "-1/3", "1/3/5", "1/1000000000", "", "\u0661/\u0663"]
)
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"shard: expected a share such as 3/16"):
        Shard.parse(text)


def test_missing_and_doubled_shards_are_named(shards: list[Path], tmp_path: Path) -> None:
    first, second, third = shards
    with pytest.raises(PlanError, match=r"expected all shards, got none of 2/3"):
        merge_shards(_plan(_with_files), [first, third], tmp_path / "out")
    with pytest.raises(PlanError, match=r"expected each shard once, got 2/3 in .* and in "):
        merge_shards(_plan(_with_files), [first, second, third, _copy(second, tmp_path / "copy")], tmp_path / "out")
    with pytest.raises(PlanError, match="got none"):
        merge_shards(_plan(_with_files), [], tmp_path / "out")
    with pytest.raises(PlanError, match="another folder for the run than that of a shard"):
        merge_shards(_plan(_with_files), shards, first)
    assert not (tmp_path / "out").exists()


def test_shards_of_two_divisions_are_refused(shards: list[Path], tmp_path: Path) -> None:
    run_plan(_plan(_with_files), tmp_path / "half", jobs=1, shard=Shard(1, 2))
    with pytest.raises(PlanError, match="one division, got shares of 2 and of 3"):
        merge_shards(_plan(_with_files), [*shards, tmp_path / "half"], tmp_path / "out")


def test_a_whole_run_is_no_shard(shards: list[Path], tmp_path: Path) -> None:
    run_plan(_plan(_with_files), tmp_path / "run", jobs=1)
    with pytest.raises(PlanError, match=r"expected the record of a shard .* got that of a run"):
        merge_shards(_plan(_with_files), [*shards[:2], tmp_path / "run"], tmp_path / "out")
    with pytest.raises(PlanError, match=r"the record there has shard '1/3', this run has None"):
        run_plan(_plan(_with_files), _copy(shards[0], tmp_path / "copy"), jobs=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: _with_files(text).replace("seed = 3", "seed = 4"), "the record there has seed 3, this run has 4"),
        (lambda text: _with_files(text).replace("iterations = 2", "iterations = 3"), "plan_digest"),
        (lambda text: _with_files(text).replace("count = 2", "count = 2\nfirst = 3"), "about other data|plan_digest"),
    ],
)
def test_shards_of_another_plan_are_refused(
    change: Callable[[str], str], says: str, shards: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=says):
        merge_shards(_plan(change), shards, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_without_its_key_is_refused(shards: list[Path], tmp_path: Path) -> None:
    bare = _copy(shards[1], tmp_path / "bare")
    (bare / ".private-data").unlink()
    with pytest.raises(PlanError, match="expected the key of the private data"):
        merge_shards(_plan(_with_files), [shards[0], bare, shards[2]], tmp_path / "out")


def test_an_unfinished_shard_is_named_with_what_to_do(shards: list[Path], tmp_path: Path) -> None:
    torn = _copy(shards[2], tmp_path / "torn")
    lines = (torn / "record.jsonl").read_bytes().splitlines(keepends=True)
    (torn / "record.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(PlanError, match=r"expected a finished shard, got 3/3 without 1 of its .* --shard 3/3"):
        merge_shards(_plan(_with_files), [*shards[:2], torn], tmp_path / "out")
    run_plan(_plan(_with_files), torn, jobs=1, shard=Shard(3, 3))
    assert merge_shards(_plan(_with_files), [*shards[:2], torn], tmp_path / "out").complete


def test_tasks_of_another_shard_in_one_are_refused(shards: list[Path], tmp_path: Path) -> None:
    mixed = _copy(shards[0], tmp_path / "mixed")
    other = (shards[1] / "record.jsonl").read_bytes().splitlines(keepends=True)
    with (mixed / "record.jsonl").open("ab") as file:
        file.write(other[-1])
    with pytest.raises(PlanError, match=r"expected the tasks of shard 1/3 alone, got"):
        merge_shards(_plan(_with_files), [mixed, *shards[1:]], tmp_path / "out")


def test_a_link_beside_a_record_is_not_followed(shards: list[Path], tmp_path: Path) -> None:
    linked = _copy(shards[0], tmp_path / "linked")
    (linked / "pictures").mkdir(exist_ok=True)
    (linked / "pictures" / "other.png").symlink_to(shards[1] / "record.jsonl")
    with pytest.raises(InputError, match="expected a file that the shard wrote"):
        merge_shards(_plan(_with_files), [linked, *shards[1:]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_copied_where_another_plan_has_its_record(shards: list[Path], tmp_path: Path) -> None:
    run_plan(_plan(), tmp_path, jobs=1)
    before = _files(tmp_path)
    with pytest.raises(PlanError, match="the record there has plan_digest"):
        merge_shards(_plan(_with_files), shards, tmp_path)
    assert _files(tmp_path) == before
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="expected a folder for the run, got a file"):
        merge_shards(_plan(_with_files), shards, tmp_path / "file")


def test_the_record_of_a_shard_stands_for_its_folder(shards: list[Path], tmp_path: Path) -> None:
    records = [folder / "record.jsonl" for folder in shards]
    assert merge_shards(_plan(_with_files), records, tmp_path).complete


def _copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def _files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())

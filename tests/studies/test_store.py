"""The one store of the studies: cells come back as they were, whatever killed the study, and nothing else is overwritten."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gradleak.results import InputError, RecordWriter
from studies.store import Store


@dataclass(frozen=True, kw_only=True)
class Inner:
    value: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    by: dict[str, Inner] = field(default_factory=dict)
    rest: tuple[Inner, ...] = ()


CELL = Cell(by={"a": Inner(value=0.1 + 0.2, note="inf"), "b": Inner(value=-math.inf)}, rest=(Inner(value=None),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cells.jsonl"


def cells(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][1:]


def test_a_cell_comes_back_as_it_was(path: Path) -> None:
    with Store(str(path)) as store:
        assert not path.exists()
        assert store.get({"k": 1}, Cell) is None
        assert store.add({"k": 1}, Cell, CELL) is CELL
        assert store.get({"k": 1}, Cell) == CELL
        assert store.reused == 0
    with Store(str(path)) as store:
        assert store.get({"k": 2}, Cell) is None
        assert store.get({"k": 1}, Cell) == CELL
        assert store.reused == 1
    (line,) = cells(path)
    assert line["key"] == {"k": 1}


def test_what_is_kept_is_not_computed_again(path: Path) -> None:
    asked: list[int] = []

    def compute() -> dict[str, float | None]:
        asked.append(len(asked))
        return {"value": None, "other": 2.0}

    for _ in range(2):
        with Store(str(path)) as store:
            assert store.kept({"x": 1}, dict[str, float | None], compute) == {"value": None, "other": 2.0}
    with Store(None) as memory:
        for _ in range(2):
            memory.kept({"x": 1}, dict[str, float | None], compute)
        assert memory.checkpoint({"x": 1}) is None
    assert asked == [0, 1]


@pytest.mark.parametrize("torn", ['{"type": "item", "group": "', "\0\0\0", '\n{"key": {"data": 1}, "li'])
def test_a_torn_line_is_as_if_never_written(path: Path, torn: str) -> None:
    with Store(str(path)) as store:
        store.add({"k": 1}, list[Inner], [Inner(value=1.0)])
    with path.open("a", encoding="utf-8") as file:
        file.write(torn)
    with Store(str(path)) as store:
        assert store.get({"k": 1}, list[Inner]) == [Inner(value=1.0)]
        store.add({"k": 2}, list[Inner], [])
    with Store(str(path)) as store:
        assert store.get({"k": 2}, list[Inner]) == []
    assert len(cells(path)) == 2


def test_a_cell_of_an_older_kind_is_computed_again(path: Path) -> None:
    with Store(str(path)) as store:
        store.add({"k": 1}, dict[str, str], {"text": "x"})
    with Store(str(path)) as store:
        assert store.get({"k": 1}, Inner) is None
        store.add({"k": 1}, Inner, Inner(value=2.0))
    with Store(str(path)) as store:
        assert store.get({"k": 1}, Inner) == Inner(value=2.0)
        assert store.reused == 1
    assert len(cells(path)) == 1


@pytest.mark.parametrize("text", ['{"other": 1}', "[]", "not json", '{"key": {"data": 1}, "lines": []}'])
def test_a_file_of_something_else_is_refused_and_left_alone(text: str, tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cells: expected a file of cells by gradleak .* name another file"):
        Store(str(file))
    assert file.read_text(encoding="utf-8") == f"{text}\n"


def test_the_record_of_an_audit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    RecordWriter(file, {"plan_digest": "abc", "groups": ["a"]}).close()
    written = file.read_bytes()
    with pytest.raises(InputError, match="cells: expected a file of cells"):
        Store(str(file))
    assert file.read_bytes() == written


def test_a_place_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("", encoding="utf-8")
    for nowhere in (tmp_path, "", tmp_path / "plan.toml" / "cells.jsonl"):
        with pytest.raises(InputError, match="cells: expected the name of a file in a folder"):
            Store(str(nowhere))


def test_one_study_at_a_time_writes(path: Path) -> None:
    with Store(str(path)) as store:
        store.add({"k": 1}, Inner, Inner(value=1.0))
        with pytest.raises(InputError, match="no other study is writing"):
            Store(str(path))
    with Store(str(path)) as store:
        assert store.get({"k": 1}, Inner) == Inner(value=1.0)


def test_states_of_long_attacks_lie_beside_the_file(path: Path) -> None:
    with Store(str(path)) as store:
        first, other = (store.checkpoint({"data": name}) for name in "ab")
        assert first == store.checkpoint({"data": "a"})
    assert first is not None
    assert other is not None
    assert first.path != other.path
    assert first.path.parent == path.parent

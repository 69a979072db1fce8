"""Lines that are not what was written are left out and named; nothing is allocated by what a file says of itself."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradleak.results import InputError, PlanError, Record, RecordWriter, UnknownFinding
from gradleak.results import record_lines as lines
from gradleak.results.record_lines import sealed


def found(item: str, **fields: Any) -> UnknownFinding:
    return UnknownFinding(kind="of another package", item=item, audit="own", **fields)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Record.of([found("a", epsilon=3.13), found("b"), found("c")], name="é").save(tmp_path / "record.jsonl")


def changed(file: Path, place: int, change: Callable[[dict[str, Any]], Any]) -> None:
    """A line of the file with another content, sealed as anyone can."""
    rows = file.read_bytes().splitlines(keepends=True)
    row = json.loads(rows[place])
    rows[place] = json.dumps(sealed(change(row) or row)).encode() + b"\n"
    file.write_bytes(b"".join(rows))


def test_keys_and_texts_that_lines_have_in_common_are_held_once(file: Path) -> None:
    first, second, third = Record.load(file).lines
    assert all(key is other for key, other in zip(second, third, strict=True))
    assert first["kind"] is second["kind"] is third["kind"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row.replace(b"3.13", b"7.13"), "line 2 is not what its checksum says"),
        (lambda row: row.replace(b"own", b"\xff\xfe\xfd"), "line 2 is not UTF-8"),
        (lambda row: row.replace(b"own", b"o\xed\xa0\x80"), "line 2 is not UTF-8"),
        (lambda row: row[:-9] + b"\n", "line 2 is no JSON"),
        (lambda row: b"\n", "line 2 is no JSON"),
        (lambda row: b"[1, 2]\n", "line 2 is not a table"),
        (lambda row: b"[" * 50_000 + b"\n", "line 2 is no JSON"),
        (lambda row: b"1" * 5000 + b"\n", "line 2 is no JSON"),
        (lambda row: row.replace(b'"finding"', b'"founding"'), "line 2 has no place in a record"),
        (lambda row: row.replace(b'"of": 1', b'"of": -1'), "line 2 has no place in a record"),
        (lambda row: row.replace(b'"line": 0', b'"line": 1'), "line 2 has no place in a record"),
        (lambda row: row.replace(b'"line": 0', b'"line": true'), "line 2 has no place in a record"),
        (lambda row: row.replace(b"3.13", b"NaN"), "line 2 is not what its checksum says"),
        (lambda row: row.replace(b"3.13", b"1e999"), "line 2 is not what its checksum says"),
    ],
)
def test_a_line_that_is_not_what_was_written_is_named(file: Path, change: Callable[[bytes], bytes], said: str) -> None:
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([rows[0], change(rows[1]), *rows[2:]]))
    record = Record.load(file)
    assert (list(record.damage), record.damaged) == ([said], 1)
    assert [finding.item for finding in record.findings] == ["b", "c"]
    assert record.missing == ["a"]


def test_a_line_that_is_cut_off_is_named_and_a_whole_one_without_its_end_is_read(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert (Record.load(file).damage, Record.load(file).complete) == ((), True)
    file.write_bytes(whole[:-2])
    assert Record.load(file).damage == ("line 4 is cut off",)


def test_two_lines_of_one_place_are_both_left_out(file: Path) -> None:
    rows = file.read_bytes().splitlines(keepends=True)
    other = json.dumps(sealed({**json.loads(rows[1]), "epsilon": 7.13})).encode() + b"\n"
    file.write_bytes(b"".join([*rows, other]))
    record = Record.load(file)
    assert record.damage == ("line 5 has the place of line 2", "line 2 has the place of line 5")
    assert [finding.item for finding in record.findings] == ["b", "c"]
    file.write_bytes(b"".join([*rows, rows[1]]))
    assert Record.load(file).damaged == 0


def test_a_second_header_is_named_and_an_edited_one_refused(file: Path) -> None:
    rows = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*rows, json.dumps(sealed({**json.loads(rows[0]), "name": "x"})).encode() + b"\n"]))
    assert Record.load(file).damage == ("line 5 is another header",)
    file.write_bytes(b"".join([rows[0].replace(b"gradleak", b"gradleek", 1), *rows[1:]]))
    with pytest.raises(InputError, match="one that its checksum does not fit: it was damaged or edited"):
        Record.load(file)
    with pytest.raises(PlanError, match="nothing was written"):
        RecordWriter(file, {"plan_digest": None, "groups": []})


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(of=10**12),
        lambda row: row.update(of=10**18, line=10**17),
        lambda row: row.update(scores=[{"n": 10**200}]),
        lambda row: row.update(seconds="x"),
        lambda row: row.update(item=["a"]),
        lambda row: row.update(kind=5),
        lambda row: row.update(subject={"noun": 5}),
        lambda row: row.update(type="verdict", reason=-1, verdict="leaks", explanation=[]),
    ],
)
def test_what_a_line_states_costs_nothing(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    changed(file, 1, change)
    tracemalloc.start()
    try:
        record = Record.load(file)
        assert record.canonical()
        assert len(record.findings) + record.unreadable + len(record.verdicts) == 3
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("groups", [5, [[1]], None, "a", {"a": 1}, [None], [1.5], 10**12])
def test_any_groups_of_a_header_are_read(file: Path, groups: Any) -> None:
    changed(file, 0, lambda row: row.update(groups=groups))
    record = Record.load(file)
    assert (len(record.findings), bool(record.canonical())) == (3, True)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_deep_lines_are_neither_written_nor_read(file: Path, tmp_path: Path) -> None:
    rows = file.read_bytes().splitlines(keepends=True)
    row = sealed({**json.loads(rows[1]), "deep": nested(900)})
    file.write_bytes(b"".join([rows[0], json.dumps(row).encode() + b"\n", *rows[2:]]))
    record = Record.load(file)
    assert record.damage == ("line 2 is nested more than 100 deep",)
    assert record.canonical()
    for depth, taken in ((80, True), (95, False), (100_000, False)):
        if taken:
            Record.of([found("a", deep=nested(depth))]).save(tmp_path / "deep.jsonl")
            assert Record.load(tmp_path / "deep.jsonl").complete
        else:
            with pytest.raises(InputError, match="deep in each other"):
                Record.of([found("a", deep=nested(depth))])


def test_lines_that_are_too_long_are_neither_written_nor_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Record.of([found("a", text="x" * 5000), found("b")]).save(tmp_path / "large.jsonl")
    many = Record.of([found("a", numbers=list(range(5000))), found("b")]).save(tmp_path / "many.jsonl")
    tables = Record.of([found("a", numbers=[[]] * 5000), found("b")]).save(tmp_path / "tables.jsonl")
    monkeypatch.setattr(lines, "LONGEST", 4000)
    assert Record.load(large).damage == ("line 2 is longer than any that is written",)
    assert [finding.item for finding in Record.load(large).findings] == ["b"]
    monkeypatch.undo()
    monkeypatch.setattr(lines, "MOST_PARTS", 4000)
    assert Record.load(many).damage == ("line 2 holds more parts than any that is written",)
    monkeypatch.setattr(lines, "MOST_TABLES", 4000)
    assert Record.load(tables).damage == ("line 2 holds more parts than any that is written",)
    with RecordWriter(tmp_path / "written.jsonl", {"groups": ["a"]}) as writer:
        before = (tmp_path / "written.jsonl").read_bytes()
        with pytest.raises(InputError, match="expected a line of at most 64 MiB"):
            writer.write_group("a", [found("a", numbers=list(range(5000)))])
        assert (tmp_path / "written.jsonl").read_bytes() == before
        assert writer.missing(["a"]) == ["a"]


def test_damage_without_end_is_counted_and_named_in_part(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x\n" * 1000)
    record = Record.load(file)
    assert (record.damaged, len(record.damage), record.complete) == (1000, 20, True)


def test_a_page_says_what_was_left_out(file: Path) -> None:
    from gradleak.reporting.markdown import render_markdown
    from gradleak.reporting.page import assemble
    from gradleak.reporting.terminal import render_terminal

    # Not everywhere: the header has the version of Python, which may be 3.13.
    header, rows = file.read_bytes().split(b"\n", 1)
    file.write_bytes(header + b"\n" + rows.replace(b"3.13", b"7.13"))
    report = assemble(Record.load(file))
    for text in (render_markdown(report), render_terminal(report)):
        assert "1 line of the record is damaged" in text
        assert "line 2 is not what its checksum says" in text


@pytest.mark.parametrize("digest", [None, 5, ["d"]])
def test_a_header_without_a_digest_is_another_plan(tmp_path: Path, digest: Any) -> None:
    run = {"plan_digest": "d", "plan": {}, "groups": ["a"]}
    with RecordWriter(tmp_path / "r.jsonl", run) as writer:
        writer.write_group("a", [found("a")])
    changed(
        tmp_path / "r.jsonl",
        0,
        lambda row: row.update(plan_digest=digest) or {k: v for k, v in row.items() if v is not None},
    )
    with pytest.raises(PlanError, match=r"plan_digest .* nothing was written"):
        RecordWriter(tmp_path / "r.jsonl", run)


def test_versions_and_groups_are_compared(tmp_path: Path) -> None:
    run = {"plan_digest": "d", "seed": 1, "groups": ["a", "b"], "versions": {"torch": "2.1", "python": "3.11.7"}}
    with RecordWriter(tmp_path / "r.jsonl", run) as writer:
        writer.write_group("a", [found("a")])
    with RecordWriter(tmp_path / "r.jsonl", {**run, "versions": {"torch": "2.1", "python": "3.11.9"}}) as writer:
        assert (writer.begun, writer.lines) == (True, 1)
    for change, message in (
        (
            {"versions": {"torch": "2.2", "python": "3.11.7"}},
            "torch '2.1', this run has torch '2.2': numbers can differ",
        ),
        ({"versions": {"torch": "2.1", "python": "3.12.0"}}, "python '3.11', this run has python '3.12'"),
        (
            {"groups": ["a", "c"]},
            r"groups of number 2, at place 1 \['b'\], this run has of number 2, at place 1 \['c'\]",
        ),
        ({"groups": ["a"]}, "groups of number 2"),
    ):
        with pytest.raises(PlanError, match=message):
            RecordWriter(tmp_path / "r.jsonl", {**run, **change})

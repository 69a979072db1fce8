from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradleak.results import (
    Evidence,
    Finding,
    InputError,
    Leakier,
    Outcome,
    PlanError,
    Record,
    RecordWriter,
    Score,
    UnknownFinding,
    Verdict,
    VerdictKind,
)
from gradleak.results.record import record_file
from gradleak.results.record_lines import sealed

RUN = {
    "plan_digest": "d1",
    "gradleak": "0.1.0",
    "seed": 3,
    "groups": ["a", "b", "c"],
    "started": "today",
    "host": {"name": "h"},
    "name": "é",
}
SCORE = Score(name="psnr", value=float("inf"), unit="dB", leakier=Leakier.HIGHER, evidence=Evidence.ATTACK)
VERDICT = Verdict(item="a/1", verdict=VerdictKind.LEAKS, reason="r", explanation="e")


def found(item: str, **fields: Any) -> UnknownFinding:
    return UnknownFinding(kind="of another package", item=item, audit="own", **fields)


GROUPS: dict[str, list[Finding | Verdict]] = {
    "a": [found("a/1", seconds=1.5, eigenvalues=[1e-17, 0.1], scores=(SCORE,)), found("a/2")],
    "b": [found("b/1", status="failed", traceback="…\nline", details={"n": np.int64(2)})],
    "c": [VERDICT, found("c/2"), found("c/3")],
}


def write(path: Path, run: dict[str, Any] = RUN) -> bytes:
    with RecordWriter(path, run) as writer:
        for name in writer.missing(GROUPS):
            writer.write_group(name, GROUPS[name])
    return path.read_bytes()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "record.jsonl")
    record = Record.load(tmp_path)
    assert record.path == tmp_path / "record.jsonl"
    assert record.run["plan_digest"] == "d1"
    assert record.run["schema"] == 2
    assert [finding.item for finding in record.findings] == ["a/1", "a/2", "b/1", "c/2", "c/3"]
    assert record.findings[2].model_extra == {"traceback": "…\nline", "details": {"n": 2}}
    assert record.unreadable == 0
    assert record.scores == [("a/1", SCORE)]
    assert record.verdicts == [VERDICT]
    assert record.complete
    assert [(line["group"], line["line"], line["of"]) for line in record.lines][:3] == [
        ("a", 0, 2),
        ("a", 1, 2),
        ("b", 0, 1),
    ]
    for line in (tmp_path / "record.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"not strict JSON: {word}"))


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_byte_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Every seventh byte, and each beside the end of a line; every byte when there is time."""
    monkeypatch.setattr(
        os, "fsync", lambda handle: None
    )  # a thousand runs: the order of writes counts here, not the disk
    whole = write(tmp_path / "whole.jsonl")
    path = tmp_path / "cut.jsonl"
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({*range(0, len(whole) + 1, step), *(end + near for end in ends for near in (-1, 0, 1, 2))}):
        if cut > len(whole):
            continue
        path.write_bytes(whole[:cut])
        if cut > 20 and b"\n" in whole[:cut]:
            kept = Record.load(path)
            assert kept.complete == (cut >= len(whole) - 1)
            assert path.read_bytes() == whole[:cut], "reading must not write"
        assert write(path) == whole, f"cut at byte {cut}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_garbled_line_costs_its_group_and_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = write(tmp_path / "whole.jsonl")
    (tmp_path / "whole.jsonl").unlink()
    lines = whole.split(b"\n")[:-1]
    hit = data.draw(st.integers(1, len(lines) - 1))
    garbage = data.draw(
        st.sampled_from(
            [b"", b"{}", b"[1]", b"\xff\xfe", b'{"type": "finding"}', b"9" * 5000, b"[" * 100_000, lines[hit][:-3]]
        )
    )
    path = tmp_path / "hit.jsonl"
    path.write_bytes(b"\n".join([*lines[:hit], garbage, *lines[hit + 1 :]]) + b"\n")
    assert not Record.load(path).complete
    write(path)
    (tmp_path / "twin.jsonl").write_bytes(whole)
    mended, twin = Record.load(path), Record.load(tmp_path / "twin.jsonl")
    assert mended.complete
    assert mended.canonical() == twin.canonical()
    assert len(mended.lines) == len(twin.lines)
    assert sorted(path.read_bytes().split(b"\n")) == sorted(whole.split(b"\n"))


def test_a_second_run_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    whole = write(path)
    with RecordWriter(path, RUN | {"started": "tomorrow"}) as writer:
        assert writer.missing(GROUPS) == []
        assert [finding.item for finding in writer.findings("c")] == ["c/2", "c/3"]
        assert [writer.failed(name) for name in "abc"] == [False, True, False]
        writer.write_group("c", GROUPS["c"])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("change", [{"plan_digest": "other"}, {"gradleak": "9.9"}, {"seed": 4}])
def test_the_record_of_another_plan_is_refused_and_unchanged(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "record.jsonl"
    write(path)
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    with pytest.raises(PlanError, match=f"{next(iter(change))}.*nothing was written"):
        RecordWriter(path, RUN | change)
    assert path.read_bytes() == torn


@pytest.mark.parametrize(
    "content",
    [
        b"my notes\n",
        b"\x00\x01",
        b'{"a": 1}\n',
        b'[{"type": "run"}]',
        b'{"type": "finding", "group": "a", "line": 0, "of": 1}\n',
    ],
)
def test_a_foreign_file_is_never_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.jsonl"
    path.write_bytes(content)
    with pytest.raises(PlanError, match="run line"):
        RecordWriter(path, RUN)
    assert path.read_bytes() == content
    with pytest.raises(InputError, match="run line"):
        Record.load(path)


def test_an_attempt_with_another_number_of_lines_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    whole = write(path)
    path.write_bytes(b"\n".join(whole.split(b"\n")[:2]) + b"\n")  # the run line and one of two lines of group a
    failed = [found("a/1", status="failed")]
    with RecordWriter(path, RUN) as writer:
        assert writer.missing(["a"]) == ["a"]
        writer.write_group("a", failed)
        assert writer.missing(["a"]) == []
    assert [str(finding.status) for finding in Record.load(path).findings] == ["failed"]


@pytest.mark.parametrize(
    ("findings", "message"),
    [
        ([], "at least one line"),
        ([found("x"), found("y", group="other")], "group"),
        ([found("x"), found("y", checksum="0")], "checksum"),
        ([found("x"), found("y", data=np.zeros(3))], "do not enter a record"),
    ],
)
def test_a_bad_group_is_refused_whole(tmp_path: Path, findings: list[Finding], message: str) -> None:
    path = tmp_path / "record.jsonl"
    with RecordWriter(path, RUN) as writer:
        before = path.read_bytes()
        with pytest.raises(InputError, match=message):
            writer.write_group("a", findings)
        assert path.read_bytes() == before
        assert writer.missing(["a"]) == ["a"]


@pytest.mark.parametrize("change", [(b"1.5", b"7.5"), (b'"line": 1, "of": 2', b'"line": 0, "of": 2'), (b"inf", b"nan")])
def test_a_changed_byte_costs_the_line(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    path = tmp_path / "record.jsonl"
    whole = write(path)
    assert change[0] in whole
    path.write_bytes(whole.replace(*change, 1))
    damaged = Record.load(path)
    assert not damaged.complete
    assert len(damaged.lines) == 5
    write(path)
    (tmp_path / "twin.jsonl").write_bytes(whole)
    assert Record.load(path).canonical() == Record.load(tmp_path / "twin.jsonl").canonical()


def test_lines_that_hold_no_finding_of_their_kind_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    with RecordWriter(path, RUN) as writer:
        writer.write_group("a", [UnknownFinding(kind="utility", item="x", audit="own", nonsense=1), found("y")])
        assert writer.failed("a")
    record = Record.load(path)
    assert record.unreadable == 1
    assert [finding.item for finding in record.findings] == ["y"]


def test_canonical_leaves_out_times_and_host_and_follows_the_plan(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "one.jsonl", RUN) as writer:
        for name in ("c", "a", "b"):
            writer.write_group(name, GROUPS[name])
    with RecordWriter(tmp_path / "two.jsonl", RUN | {"started": "then", "host": {"name": "other"}}) as writer:
        for name in ("a", "b", "c"):
            writer.write_group(
                name, [one.but(seconds=99.0) if isinstance(one, Finding) else one for one in GROUPS[name]]
            )
    one, two = Record.load(tmp_path / "one.jsonl"), Record.load(tmp_path / "two.jsonl")
    assert one.canonical() == two.canonical()
    assert not any(word in text for text in one.canonical() for word in ("seconds", "started", '"host"', "traceback"))


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text('{"type": "run", "schema": 99}\n')
    with pytest.raises(InputError, match="update gradleak"):
        Record.load(path)
    with pytest.raises(InputError, match="update gradleak"):
        RecordWriter(path, RUN)
    assert path.read_text() == '{"type": "run", "schema": 99}\n'


def test_an_older_schema_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text('{"type": "run", "schema": 1}\n')
    with pytest.raises(InputError, match="record schema 1, this version reads schema 2 alone; run the audit again"):
        Record.load(path)


def test_a_missing_record_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="or run `gradleak audit`"):
        record_file(tmp_path)
    with pytest.raises(PlanError, match="create"):
        RecordWriter(tmp_path / "no" / "record.jsonl", RUN)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    first = RecordWriter(path, RUN)
    with pytest.raises(PlanError, match="another run is writing"):
        RecordWriter(path, RUN)
    first.write_group("a", GROUPS["a"])
    first.close()
    first.close()
    with pytest.raises(PlanError, match="closed"):
        first.write_group("b", GROUPS["b"])
    with RecordWriter(path, RUN) as second:
        assert second.missing(GROUPS) == ["b", "c"]
    del second
    writer = RecordWriter(path, RUN)
    del writer  # a writer that is no longer referenced holds nothing
    write(path)


def test_a_refused_writer_leaves_the_lock_free(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    write(path)
    with pytest.raises(PlanError, match="plan_digest"):
        RecordWriter(path, RUN | {"plan_digest": "other"})
    with RecordWriter(path, RUN) as writer:
        assert writer.missing(GROUPS) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_the_lock_holds_against_another_process_and_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    code = (
        "import sys, time\nfrom gradleak.results import RecordWriter\n"
        "writer = RecordWriter(sys.argv[1], {'plan_digest': 'd1', 'gradleak': '0.1.0', 'seed': 3, 'groups': []})\n"
        "print('held', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = path.read_bytes()
        with pytest.raises(PlanError, match="another run is writing this record"):
            RecordWriter(path, RUN)
        assert path.read_bytes() == before
        os.kill(other.pid, signal.SIGKILL)
    with RecordWriter(path, RUN) as writer:
        assert writer.missing(["a"]) == ["a"]


def test_findings_that_were_made_in_python_are_a_record_that_can_be_kept(tmp_path: Path) -> None:
    record = Record.of([found("a/1", scores=(SCORE,)), found("a/2")], [VERDICT], name="mine")
    assert record.complete
    assert (record.run["name"], record.run["groups"]) == ("mine", ["a/1", "a/2", "verdicts"])
    for target in (tmp_path, tmp_path / "other.jsonl"):
        again = Record.load(record.save(target))
        assert again.canonical() == record.canonical()
        assert (again.scores, again.verdicts) == (record.scores, [VERDICT])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.jsonl", "record.jsonl"]


@pytest.mark.parametrize("items", [[], ["a/1", "a/1"]])
def test_no_record_is_made_of_nothing_or_of_an_item_twice(items: list[str]) -> None:
    with pytest.raises(InputError, match="at least one finding, and each item once"):
        Record.of([found(item) for item in items])


def test_a_line_that_stands_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    whole = write(path)
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[1], lines[0]]))
    record = Record.load(path)
    assert record.complete
    assert len(record.lines) == len(lines) - 1
    assert write(path) == whole


def test_a_stated_size_is_no_order_to_count(tmp_path: Path) -> None:
    """Whoever sends a record can seal it, too: 10 ** 18 lines must not be looked for one by one."""
    record = Record.of([found("a")])
    line = {**record.lines[0], "of": 10**18}
    Record(run=record.run, lines=[sealed(line)]).save(tmp_path / "record.jsonl")
    assert Record.load(tmp_path).missing == ["a"]


def test_a_damaged_header_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    whole = write(path)
    for edited in (whole.replace(b"today", b"later", 1), whole.replace(b'"today"', b"NaN", 1)):
        path.write_bytes(edited)
        assert write(path) == whole


@pytest.mark.parametrize("groups", [None, 3.5, "abc", [["a"]], {"a": 1}])
def test_a_header_without_proper_groups_is_read(tmp_path: Path, groups: Any) -> None:
    Record(run=sealed({**Record.of([found("a")]).run, "groups": groups})).save(tmp_path / "record.jsonl")
    assert Record.load(tmp_path).canonical()


def test_numbers_and_signs_that_no_page_can_hold_are_not_read(tmp_path: Path) -> None:
    record = Record.of([found("a", trials=10**400), found("b", path="\udcff\u00e9"), found("c", trials=10**200)])
    record.save(tmp_path / "record.jsonl")
    read = Record.load(tmp_path)
    assert [finding.item for finding in read.findings] == ["b", "c"]
    assert read.missing == ["a"]
    assert read.findings[0].model_extra == {"path": "?é"}
    read.save(tmp_path / "again.jsonl")
    assert Record.load(tmp_path / "again.jsonl").missing == ["a"]


def test_records_of_other_code_are_set_aside_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    before: list[bytes] = []
    for digest in ("d1", "d2", "d1", "d3"):
        with RecordWriter(
            path,
            {**RUN, "plan": {}, "plan_digest": digest},
            guard=lambda stored, changed: before.append(path.read_bytes()),
        ) as writer:
            assert writer.missing(["a"]) == ["a"]
            writer.write_group("a", GROUPS["a"])
    assert sorted(one.name for one in tmp_path.glob("*.jsonl")) == [
        "record-d1-2.jsonl",
        "record-d1.jsonl",
        "record-d2.jsonl",
        "record.jsonl",
    ]
    assert len(before) == 3


def test_what_is_refused_before_a_record_is_set_aside_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    whole = write(path, RUN | {"plan": {}})

    def refuse(stored: Mapping[str, Any], changed: bool) -> None:
        raise PlanError("other data")

    with pytest.raises(PlanError, match="other data"):
        RecordWriter(path, {**RUN, "plan": {}, "plan_digest": "d2"}, guard=refuse)
    assert path.read_bytes() == whole
    assert not list(tmp_path.glob("record-*"))


def test_a_record_shows_itself_in_a_line(tmp_path: Path) -> None:
    """Printed whole it took 100,000 characters; `lines` has them."""
    path = tmp_path / "record.jsonl"
    with RecordWriter(path, RUN) as writer:
        writer.write_group("a", GROUPS["a"])
        assert repr(Record.load(path)) == (
            f"Record('é', no verdict on the run, 2 findings, 0 verdicts, 2 of 3 groups missing, {path})"
        )
        writer.write_group("b", GROUPS["b"])
        run = Verdict(item="run", verdict=VerdictKind.BOUNDED, reason="r", explanation="e")
        writer.write_group("c", [*GROUPS["c"], run])
    assert repr(Record.load(path)) == f"Record('é', bounded, 5 findings, 2 verdicts, {path})"
    odd = {"type": "verdict", "item": "run", "verdict": ["<b>"]}
    hostile = Record(run={"name": "x\n" * 500}, lines=[odd], damaged=7, path=Path("a\nb"))
    assert len(repr(hostile).splitlines()) == 1
    assert len(repr(hostile)) < 250
    assert "no verdict on the run, 0 findings, 1 verdicts, 7 damaged lines left out, a b" in repr(hostile)


def test_findings_scores_and_verdicts_show_themselves_in_a_line() -> None:
    score = Score(
        name="advantage",
        value=0.25,
        unit="1",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ATTACK,
        interval=(0.125, 0.5),
        n=8,
    )
    none = Score(
        name="psnr", value=None, unit="dB", leakier=Leakier.HIGHER, evidence=Evidence.ATTACK, outcome=Outcome.NO_SIGNAL
    )
    assert repr(score) == "Score(advantage = 0.25 1 in [0.125, 0.5] (attack))"
    assert str(none) == "psnr = no value dB (attack, no_signal)"
    found = Finding(kind="toy", item="a/b", audit="toy", scores=(score, none), note="x" * 10_000)
    assert repr(found) == "Finding('a/b', done, advantage = 0.25 1 in [0.125, 0.5] (attack), 2 scores in all)"
    verdict = Verdict(item="run", verdict=VerdictKind.BOUNDED, reason="by_dp", explanation="e" * 10_000)
    assert repr(verdict) == "Verdict('run', bounded, by_dp)"


def test_a_report_is_written_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    path = tmp_path / "record.jsonl"
    write(path)
    page = Record.load(path).open()
    assert page == tmp_path / "report.html"
    assert "<!DOCTYPE html>" in page.read_text(encoding="utf-8")
    assert opened == [page.as_uri()]
    assert Record.of([Finding(kind="toy", item="a", audit="toy")], name="a").open().name == "report.html"
    assert len(opened) == 2

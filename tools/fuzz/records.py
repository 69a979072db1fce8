"""Damaged records: bytes and lines that are not what was written, and values that nobody would write, sealed or not.

No damage of bytes may go unnoticed: such a record is refused, or equal to what was written, or it says what was left out; and a
run that goes on with it ends with what was written. What is accepted can be shown, whatever values it holds.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.reporting.terminal import render_terminal
from gradleak.results import Finding, GradleakError, Record, RecordWriter, Verdict
from gradleak.results.record import parse
from gradleak.results.record_lines import by_group, sealed, text_of
from tools.fuzz.harness import Fuzzer
from tools.fuzz.samples import sample

Draw = random.Random
# Share of pages that are drawn with their figures, which take most of the time.
DRAWN = 0.15
_FOREIGN = (b"\xff\xfe", b"\x00", b"\n", b"\r", b" ", b"{}", b"[" * 9999, b"\xed\xa0\x80")
_DEEP: Any = 0
for _ in range(900):
    _DEEP = [_DEEP]
# Values that no writer leaves, for any place of a line.
HOSTILE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        5,
        10**12,
        10**18,
        -(10**18),
        10**200,
        10**400,
        0.5,
        -0.0,
        1e308,
        -1e308,
        5e-324,
        1e16,
    ),
    *(
        "",
        "inf",
        "-inf",
        "nan",
        "NaN",
        "1e999",
        "x" * 5000,
        "\x00",
        "\ud800",
        "\u202egnp.exe",
        "\x1b[31mred",
        "a\nb\r\nc",
    ),
    *(
        "<script>alert(1)</script>",
        "|`*_[x](http://y)#{{ 7*7 }}",
        "../../../etc/passwd",
        "pictures/../.private-data",
        "{",
        "%s",
    ),
    *([], {}, [[1]], [None], [{}], {"": {}}, {"a": [1, "b", None]}, [0.5] * 300, [[0.1, 0.2]] * 20, list(range(-5, 5))),
    *([10**400], {"mean": "inf"}, [["a", 1], ["b", "c"]], _DEEP, {"use": 5}, {"name": ["a"]}),
    *("leaks", "bounded", "converged", "failed", "done", "image", "run", "undefended"),
)


@dataclass(frozen=True)
class Sample:
    """A record of a few findings, as it was written.

    Attributes:
        run: its header.
        rows: its lines.
    """

    run: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def lines(self) -> list[bytes]:
        """The lines of the file."""
        return [text_of(row) for row in (self.run, *self.rows)]


@cache
def samples() -> tuple[Sample, ...]:
    """Records of each kind of audit alone, and of all; made once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        return parts_of(sample(Path(folder)))


def parts_of(whole: Record) -> tuple[Sample, ...]:
    """Records of a few findings of each kind, and of one finding of every kind."""
    if whole.unreadable or not whole.complete:
        raise AssertionError("expected a sample whose lines are all read")
    made = []
    kinds = dict.fromkeys(str(row["kind"]) for row in whole.lines if row["type"] == "finding")
    for kind in kinds:
        of_kind = [row for row in whole.lines if row.get("kind") == kind]
        # A few items, and a control.
        rows = [*of_kind[:2], *[row for row in of_kind[2:] if row.get("control")][:1], of_kind[-1]]
        made.append(_part(whole, list({str(row["item"]): row for row in rows}.values())))
    some = {str(row["kind"]): row for row in whole.lines if row["type"] == "finding"}
    return (*made, _part(whole, list(some.values())))


def _part(whole: Record, rows: Sequence[Mapping[str, Any]]) -> Sample:
    """A record of a few lines of another, two in each group, and its verdicts on the whole."""
    verdicts = [row for row in whole.lines if row["type"] == "verdict"][-3:]
    groups = [list(rows[place : place + 2]) for place in range(0, len(rows), 2)] + [verdicts]
    names = [f"group {place}" for place in range(len(groups))]
    placed = [
        sealed({**row, "group": name, "line": place, "of": len(group)})
        for name, group in zip(names, groups, strict=True)
        for place, row in enumerate(group)
    ]
    return Sample(sealed({**whole.run, "groups": names}), placed)


def case(draw: Draw, folder: Path) -> str:
    """One damaged record: read, shown, and gone on with."""
    given = draw.choice(samples())
    bytewise = draw.random() < 0.5
    content = _damaged(draw, given) if bytewise else _edited(draw, given)
    file = folder / "record.jsonl"
    file.write_bytes(content)
    ending = _read(draw, file, given, bytewise=bytewise)
    _gone_on(file, content, given, bytewise=bytewise)
    return ending


def _read(draw: Draw, file: Path, given: Sample, *, bytewise: bool) -> str:
    try:
        record = Record.load(file)
    except GradleakError as refusal:
        _one_line(refusal)
        return "refused"
    if bytewise:
        if record.canonical() == Record(run=given.run, lines=given.rows).canonical():
            return "equal"
        if not (record.damaged or record.missing):
            raise AssertionError("expected a word on what was left out, got a record that differs in silence")
    _shown(record, file.parent, drawn=draw.random() < (DRAWN / 3 if bytewise else DRAWN))
    return "left out, and said" if bytewise else "shown"


def _shown(record: Record, folder: Path, *, drawn: bool) -> None:
    """Every form that a record has."""
    report = assemble(record)
    render_terminal(report)
    for per_record in (False, True):
        json.dumps(summarize(report, per_record=per_record), allow_nan=False, ensure_ascii=False).encode()
    for text in (render_markdown(report), render_html(report) if drawn else ""):
        text.encode()
        if "<script>alert(1)" in text:
            raise AssertionError("expected text of the record to be escaped, got a script")
    again = Record.load(record.save(folder / "again.jsonl"))
    if again.canonical() != record.canonical() or again.damaged:
        raise AssertionError("expected a record that was saved to be the same")


def _gone_on(file: Path, content: bytes, given: Sample, *, bytewise: bool) -> None:
    """A run of the same plan finds the file."""
    groups = by_group(given.rows)
    try:
        with RecordWriter(file, given.run) as writer:
            writer.drop([name for name in groups if writer.failed(name)])
            for name in writer.missing(groups):
                found = [parse(row) for row in groups[name]]
                writer.write_group(name, [one for one in found if isinstance(one, Finding | Verdict)])
            for name in groups:
                writer.findings(name)
            writer.finish()
    except GradleakError as refusal:
        _one_line(refusal)
        if file.read_bytes() != content:
            raise AssertionError("expected a refused file to stay as it is, got another one") from refusal
        return
    record = Record.load(file)
    if record.damaged or record.missing:
        raise AssertionError(f"expected a whole record at the end, got {record.damage}, {record.missing}")
    if bytewise and record.canonical() != Record(run=given.run, lines=given.rows).canonical():
        raise AssertionError("expected the record that was written, got another one")


def _one_line(refusal: GradleakError) -> None:
    if "\n" in str(refusal) or len(str(refusal)) > 2000:
        raise AssertionError(f"expected one line, got {str(refusal)[:200]!r}") from refusal


def _damaged(draw: Draw, given: Sample) -> bytes:
    """The file after one to three damages of its bytes or lines."""
    lines = given.lines
    for _ in range(draw.choice((1, 1, 2, 3))):
        lines = draw.choice(_OF_LINES)(draw, lines) if draw.random() < 0.4 else [_bytes(draw, b"".join(lines))]
        lines = b"".join(lines).splitlines(keepends=True) or [b""]
    return b"".join(lines)


def _bytes(draw: Draw, content: bytes) -> bytes:
    if not content:
        return b"\x00"
    place = draw.randrange(len(content))
    far = min(len(content), place + draw.choice((1, 2, 8, 100, 5000)))
    digits = [found.start() for found in re.finditer(rb"\d", content)]
    digit = draw.choice(digits) if digits else place
    return draw.choice(
        (
            lambda: content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :],
            lambda: content[:place] + draw.randbytes(1) + content[place + 1 :],
            lambda: content[:digit] + str(draw.randrange(10)).encode() + content[digit + 1 :],
            lambda: content[:place] + content[far:],
            lambda: content[:place] + draw.randbytes(far - place) + content[far:],
            lambda: content[:place] + content[place:far] + content[place:],
            lambda: content[:place],
            lambda: (
                content[:place]
                + draw.choice((b"\xff\xfe", b"\x00", b"\n", b"\r", b" ", b"{}", b"[" * 9999))
                + content[place:]
            ),
        )
    )()


def _doubled(draw: Draw, lines: list[bytes]) -> list[bytes]:
    return [*lines[: (place := draw.randrange(len(lines) + 1))], draw.choice(lines), *lines[place:]]


def _swapped(draw: Draw, lines: list[bytes]) -> list[bytes]:
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines = list(lines)
    lines[one], lines[other] = lines[other], lines[one]
    return lines


def _lost(draw: Draw, lines: list[bytes]) -> list[bytes]:
    return [line for place, line in enumerate(lines) if place != draw.randrange(len(lines))]


def _spliced(draw: Draw, lines: list[bytes]) -> list[bytes]:
    one, other = draw.choice(lines), draw.choice(lines)
    return [*lines, one[: draw.randrange(len(one) + 1)] + other[draw.randrange(len(other) + 1) :]]


def _joined(draw: Draw, lines: list[bytes]) -> list[bytes]:
    place = draw.randrange(len(lines))
    return [line.rstrip(b"\n") if number == place else line for number, line in enumerate(lines)]


def _foreign(draw: Draw, lines: list[bytes]) -> list[bytes]:
    other = draw.choice(draw.choice(samples()).lines)
    return [*lines[: (place := draw.randrange(len(lines) + 1))], other, *lines[place:]]


_OF_LINES: Sequence[Callable[[Draw, list[bytes]], list[bytes]]] = (
    _doubled,
    _swapped,
    _lost,
    _spliced,
    _joined,
    lambda draw, lines: [line.replace(b"\n", b"\r\n") for line in lines],
    lambda draw, lines: [b"\xef\xbb\xbf", *lines],
    lambda draw, lines: draw.sample(lines, len(lines)),
)


def _edited(draw: Draw, given: Sample) -> bytes:
    """The file with hostile values in one to four places; half of the time with checksums that fit."""
    rows = [json.loads(text) for text in given.lines]
    seal = draw.random() < 0.7
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = 0 if draw.random() < 0.25 else draw.randrange(len(rows))
        rows[place] = _changed(draw, rows[place])
    return b"".join(_text(sealed_anyway(row) if seal else row) for row in rows)


def sealed_anyway(row: Any) -> Any:
    """The line with a checksum that fits, if it can have one."""
    try:
        return sealed(row) if isinstance(row, dict) else row
    except (ValueError, RecursionError):
        return row


def _text(row: Any) -> bytes:
    try:
        return json.dumps(row).encode() + b"\n"
    except (ValueError, RecursionError):
        return b"[" * 5000 + b"\n"


def _changed(draw: Draw, value: Any) -> Any:
    """A value with another one somewhere in it."""
    inner = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inner or draw.random() < 0.15:
        return draw.choice(HOSTILE) if draw.random() < 0.8 else _near(draw, value)
    key = draw.choice(inner)
    copied = dict(value) if isinstance(value, dict) else list(value)
    how = draw.random()
    if how < 0.06:
        del copied[key]
    elif how < 0.1 and isinstance(copied, dict):
        copied[draw.choice(("x", "of", "scores", "plan", "groups", "details", str(key).upper()))] = draw.choice(HOSTILE)
    elif how < 0.13:
        copied[key] = value[draw.choice(inner)]
    else:
        copied[key] = _changed(draw, value[key])
    return copied


def _near(draw: Draw, value: Any) -> Any:
    """A value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return draw.choice((-value, value + 1, value * 10**6, value // 3, str(value)))
    if isinstance(value, str):
        return draw.choice((value[1:], value * 2, value.upper(), value + "/static", [value]))
    return [value, value]


FUZZER = Fuzzer("records", case)

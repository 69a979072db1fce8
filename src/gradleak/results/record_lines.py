"""Lines of a record file: their place, their checksum, and what is left out where a file is damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradleak.results.errors import InputError

SCHEMA = 2
# Keys of a line that are the record's own.
PLACE = ("type", "group", "line", "of", "checksum")
# Larger lines, and those with more parts, are neither written nor read: a file may come from anyone, and lists of short
# numbers take ten times the memory of their text.
LONGEST = 64 * 2**20
MOST_PARTS = 8_000_000
MOST_TABLES = 1_000_000
DEEPEST = 100
# Shorter texts may stand in many lines.
_LONG = 200
# Damaged lines are counted, and so many of them named.
NAMED = 20


# By a kill: the last line alone.
CUT = "is cut off"


@dataclass
class Content:
    """Content of a record file.

    Attributes:
        run: the header, or None.
        edited: whether the header is not what its checksum says.
        rows: the lines that are whole, in file order, each place once.
        damage: what is left out, a phrase each, the first ones alone.
        damaged: number of all lines that are left out.
        tidy: whether the file holds these lines and no more.
    """

    run: dict[str, Any] | None = None
    edited: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    damaged: int = 0
    tidy: bool = True

    def leave_out(self, number: int, reason: str) -> None:
        """Count a line that is not read."""
        self.tidy = False
        self.damaged += 1
        if self.damaged <= NAMED:
            self.damage.append(f"line {number} {reason}")


def read_lines(file: Path) -> Content:
    """The header and lines of a record file, as far as they are what was written.

    Raises:
        InputError: for a header of another schema.
    """
    found = Content()
    places: dict[tuple[str, int], tuple[int, dict[str, Any] | None]] = {}
    texts: dict[str, str] = {}
    for number, raw, ended in _raw_lines(file):
        # A kill may have taken only the end of the line: then the last one is whole.
        found.tidy = found.tidy and ended
        row = _parsed(raw, texts)
        if isinstance(row, str):
            found.leave_out(number, row if ended or raw is None else CUT)
        elif row.get("type") == "run" and type(row.get("schema")) is int:
            if row["schema"] != SCHEMA:
                newer = "update gradleak" if row["schema"] > SCHEMA else "run the audit again, with another --out"
                raise InputError(
                    f"{file}: record schema {row['schema']}, this version reads schema {SCHEMA} alone; {newer}"
                )
            if found.run is None:
                found.run, found.edited = row, not is_sealed(row)
            elif row == found.run:
                found.tidy = False
            else:
                found.leave_out(number, "is another header")
        elif row.get("type") not in ("finding", "verdict") or not _has_place(row):
            found.leave_out(number, "has no place in a record")
        elif not is_sealed(row):
            found.leave_out(number, "is not what its checksum says")
        else:
            place = (row["group"], row["line"])
            first = places.get(place)
            if first is None:
                places[place] = (number, row)
                found.rows.append(row)
            elif first[1] == row:
                # A line that stands twice is read once.
                found.tidy = False
            else:
                found.leave_out(number, f"has the place of line {first[0]}")
                if first[1] is not None:
                    # Nothing tells which of the two is right.
                    found.leave_out(first[0], f"has the place of line {number}")
                    places[place] = (first[0], None)
    gone = {place for place, (_, row) in places.items() if row is None}
    if gone:
        found.rows = [row for row in found.rows if (row["group"], row["line"]) not in gone]
    return found


def _raw_lines(file: Path) -> Iterator[tuple[int, bytes | None, bool]]:
    """Number, bytes (None where there are too many) and whether an end of line follows, for each line."""
    with file.open("rb") as opened:
        number = 0
        while piece := opened.readline(LONGEST + 1):
            number += 1
            long = len(piece) > LONGEST and not piece.endswith(b"\n")
            while long and piece and not piece.endswith(b"\n"):
                piece = opened.readline(LONGEST)
            ended = piece.endswith(b"\n")
            yield number, None if long else piece.removesuffix(b"\n"), ended


def _parsed(raw: bytes | None, texts: dict[str, str]) -> dict[str, Any] | str:
    """The table in a line, or what is wrong with it; keys and texts that earlier lines have, too, are held once."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {
            texts.setdefault(key, key): texts.setdefault(one, one) if type(one) is str and len(one) < _LONG else one
            for key, one in pairs
        }

    if raw is None:
        return "is longer than any that is written"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8"
    refusal = _too_large(text)
    if refusal:
        return refusal
    try:
        row = json.loads(text, parse_int=_whole, object_pairs_hook=table)
    except (ValueError, RecursionError):
        return "is no JSON"
    if not isinstance(row, dict):
        return "is not a table"
    if text.count("{") + text.count("[") > DEEPEST and _deeper(row, DEEPEST):
        return f"is nested more than {DEEPEST} deep"
    return _encodable(row, text)


def _too_large(text: str) -> str:
    """A reason not to read a text as JSON, before any memory is taken for it; "" where there is none."""
    parts, tables = text.count(",") + text.count(":"), text.count("{") + text.count("[")
    return "holds more parts than any that is written" if parts > MOST_PARTS or tables > MOST_TABLES else ""


def _deeper(value: Any, depth: int) -> bool:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return bool(inner) and (depth <= 0 or any(_deeper(one, depth - 1) for one in inner))


def _whole(digits: str) -> int:
    """The number in a line; one that no float can hold makes the line unreadable, since pages round all numbers."""
    if len(digits) > 300:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _encodable(row: dict[str, Any], text: str) -> dict[str, Any]:
    """The line without halves of characters, which JSON can hold and no file can: a path on the command line may."""
    if ("\\ud" not in text and "\\uD" not in text) or not is_sealed(row):
        return row
    found = json.loads(json.dumps(row, ensure_ascii=False).encode("utf-8", errors="replace"))
    return found if found == row else sealed(found)


def sealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The line with its checksum: of its JSON text, keys sorted, so that no digit changes unseen."""
    content = {key: value for key, value in row.items() if key != "checksum"}
    text = json.dumps(content, allow_nan=False, sort_keys=True)
    return content | {"checksum": hashlib.sha256(text.encode()).hexdigest()[:16]}


def is_sealed(row: Mapping[str, Any]) -> bool:
    """True if the checksum of a line fits."""
    try:
        return bool(row.get("checksum") == sealed(row)["checksum"])
    except (ValueError, RecursionError):
        return False


def text_of(row: Mapping[str, Any]) -> bytes:
    """A line as it stands in the file.

    Raises:
        InputError: for a line that no reader would take.
    """
    text = json.dumps(row, allow_nan=False)
    if (
        len(text) > LONGEST
        or _too_large(text)
        or (text.count("{") + text.count("[") > DEEPEST and _deeper(row, DEEPEST))
    ):
        raise InputError(
            f"record: expected a line of at most {LONGEST >> 20} MiB, {MOST_PARTS:,} parts and {DEEPEST} levels, got one of "
            f"{len(text):,} bytes for {str(row.get('group', 'the header'))[:100]}; split the plan, or write less into a finding"
        )
    return text.encode() + b"\n"


def _has_place(row: Mapping[str, Any]) -> bool:
    if not isinstance(row.get("group"), str) or any(type(row.get(key)) is not int for key in ("line", "of")):
        return False
    return 0 <= int(row["line"]) < int(row["of"])


def announced(run: Mapping[str, Any]) -> list[str]:
    """The names of the groups that a run line announces, in the order of the plan."""
    names = run.get("groups")
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def by_group(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The lines of every group."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row.get("group")), []).append(row)
    return groups


def is_whole(rows: Iterable[Mapping[str, Any]]) -> bool:
    """True if these are all lines of a group; nothing is made of the size that a line states."""
    found = list(rows)
    places = sorted(row.get("line", -1) for row in found)
    return {row.get("of") for row in found} == {len(found)} and places == list(range(len(found)))


def in_plan_order(run: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines in the order of the groups that a run line announces, others behind them."""
    order = {name: place for place, name in enumerate(announced(run))}
    return sorted(rows, key=lambda row: (order.get(row.get("group", ""), len(order)), row.get("line", 0)))

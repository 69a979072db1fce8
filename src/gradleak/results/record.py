"""The record of a run: JSON lines, written as results arrive, resumable after a kill.

A file holds one `run` line (plan, seed, versions, host facts) and then the lines of *groups*, the units of resuming. Each
carries `group`, `line` (its place) and `of` (how many there are), which say whether a group is whole, and a `checksum`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from gradleak.results.citation import Citation
from gradleak.results.errors import GradleakError, InputError, PlanError
from gradleak.results.finding import Finding, Status
from gradleak.results.kinds import finding_class
from gradleak.results.score import Score, jsonable
from gradleak.results.thresholds import Thresholds
from gradleak.results.verdict import Verdict

if sys.platform != "win32":
    import fcntl

SCHEMA = 2
LINE_TYPES = ("run", "finding", "verdict")
# Keys of a line that are the record's own.
PLACE = ("type", "group", "line", "of", "checksum")
_RUN_LINE = b'{"type": "run"'
VOLATILE = frozenset({"seconds", "started", "host", "traceback", "checksum"})


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run that was read back: its header and its lines.

    Attributes:
        run: the header line (plan, seed, versions, host, groups).
        lines: all further lines, in file order.
        path: where it was read from, or None.
    """

    run: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    path: Path | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """The record in a JSONL file; torn lines (of a killed run) are left out.

        Args:
            path: the file, or the folder of a run that holds `record.jsonl`.

        Raises:
            InputError: if there is no such file, it has no run line, or its schema is not that of this version.
        """
        file = record_file(path)
        run, lines, _ = _read(file)
        if run is None:
            raise InputError(f"{file}: expected a gradleak record whose first line is a run line; got none")
        return cls(run=run, lines=tuple(lines), path=file)

    @classmethod
    def of(
        cls,
        findings: Sequence[Finding],
        verdicts: Sequence[Verdict] = (),
        *,
        name: str = "findings",
        thresholds: Thresholds | None = None,
        citations: Sequence[Citation] = (),
    ) -> Record:
        """The record, in memory, of findings that were made in Python; of a plan `run_plan` writes it.

        Args:
            findings: each item once.
            verdicts: on them.
            name: of the record.
            thresholds: by which the verdicts were given.
            citations: of the methods behind them.

        Raises:
            InputError: without a finding, or for an item twice.
        """
        items = [finding.item for finding in findings]
        if not items or len(set(items)) < len(items):
            raise InputError(f"Record.of: expected at least one finding, and each item once, got {items}")
        groups: dict[str, Sequence[Finding | Verdict]] = {finding.item: [finding] for finding in findings}
        groups |= {"verdicts": verdicts} if verdicts else {}
        run = {
            "gradleak": metadata.version("gradleak"),
            "name": name,
            "thresholds": None if thresholds is None else thresholds.to_dict(),
            "groups": list(groups),
            "versions": {part: metadata.version(part) for part in ("torch", "numpy", "scipy")}
            | {"python": platform.python_version()},
            "citations": [{"key": one.key, "text": one.text(), "bibtex": one.bibtex()} for one in citations],
        }
        rows = [
            _row(group, place, len(found), one) for group, found in groups.items() for place, one in enumerate(found)
        ]
        return cls(run=_sealed({"type": "run", "schema": SCHEMA, **run}), lines=tuple(rows))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """The file that this record was written to, atomically: `path`, or `record.jsonl` in that folder.

        Args:
            path: the file, or a folder that exists.
        """
        target = Path(path) / "record.jsonl" if Path(path).is_dir() else Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text("".join(_text(row) for row in (self.run, *self.lines)), encoding="utf-8")
        return partial.replace(target)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings in file order; lines that are no finding of their kind are left out (`unreadable`)."""
        return tuple(found for found in self._parsed if isinstance(found, Finding))

    @property
    def scores(self) -> list[tuple[str, Score]]:
        """Pairs of item name and score."""
        return [(finding.item, score) for finding in self.findings for score in finding.scores]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdicts, in file order."""
        return [found for found in self._parsed if isinstance(found, Verdict)]

    @property
    def unreadable(self) -> int:
        """The number of lines that hold no proper finding or verdict."""
        return sum(found is None for found in self._parsed)

    @cached_property
    def _parsed(self) -> tuple[Finding | Verdict | None, ...]:
        return tuple(_parse(line) for line in self.lines)

    @property
    def missing(self) -> list[str]:
        """The groups that the run line announces and that are not whole."""
        whole = {name for name, rows in _by_group(self.lines).items() if _is_whole(rows)}
        return [name for name in _announced(self.run) if name not in whole]

    @property
    def complete(self) -> bool:
        """True if every group that the run line announces is whole."""
        return not self.missing

    def canonical(self) -> list[str]:
        """The record without times, host facts and checksums, one JSON text a line, in the order of the plan.

        Two runs of one plan and seed give equal canonical records.
        """
        rows = _in_plan_order(self.run, self.lines)
        return [json.dumps(_without_volatile(row), sort_keys=True) for row in (self.run, *rows)]


class RecordWriter:
    """Appends groups of lines to a record file and knows which groups already stand there.

    Only the parent process of a run writes, and one writer at a time: it holds a lock (on `.<name>.lock` beside the
    file) that the system releases when the process ends, however it ends. Close the writer, or use it in a `with`
    statement, to release the lock earlier.

    A file left by a killed run is repaired on opening: torn lines are dropped, whole groups are kept, and the missing
    lines of a broken group are written again without doubling those that stand. The lines of a group whose middle was
    damaged therefore end up at the end of the file; `Record.canonical` has them in the order of the plan.

    A record of the same plan whose code has changed since (of an attack, a loss, the model) is set aside, under a name with its
    digest, and begun anew.

    Attributes:
        path: the record file.
        set_aside: where the record of other code lies now, or None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: Mapping[str, Any],
        *,
        before_set_aside: Callable[[], None] | None = None,
    ) -> None:
        """Open `path` for a run with this header, resuming if it holds the same plan.

        Args:
            path: the record file; its folder must exist.
            run: the header; must hold `plan_digest` and `groups`.
            before_set_aside: called before a record of other code is set aside; what it raises leaves the file as it is.

        Raises:
            PlanError: if the folder is missing, another process writes the file, or the file holds something else, or
                another plan, another seed or another version of gradleak; the file is left as it is.
        """
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise PlanError(f"{self.path}: expected an existing folder, got none; create {self.path.parent} first")
        self._run = _sealed({"type": "run", "schema": SCHEMA, **jsonable(dict(run))})
        self._lines: dict[str, dict[int, Mapping[str, Any]]] = {}
        self.set_aside: Path | None = None
        self._before_set_aside = before_set_aside
        self._release = weakref.finalize(self, os.close, _lock(self.path))
        try:
            if self.path.exists() and self.path.stat().st_size > 0:
                self._resume()
            else:
                self._write_atomically([self._run])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another writer at the file; every group that was written is already on disk."""
        self._release()

    def missing(self, groups: Iterable[str]) -> list[str]:
        """Those of `groups` that are not whole in the file, in the given order."""
        return [name for name in groups if not _is_whole(list(self._lines.get(name, {}).values()))]

    def findings(self, group: str) -> list[Finding]:
        """The findings of a group that stand in the file, in their order.

        Raises:
            InputError: if a line is no finding of its kind.
        """
        rows = self._lines.get(group, {})
        return [_finding(rows[place]) for place in sorted(rows) if rows[place]["type"] == "finding"]

    def failed(self, group: str) -> bool:
        """True if a finding of a group failed, or cannot be read, so that the group is tried again."""
        rows = self._lines.get(group, {}).values()
        return any(row.get("status") == Status.FAILED or _parse(row) is None for row in rows)

    def write_group(self, group: str, found: Sequence[Finding | Verdict]) -> None:
        """Append a group, flushed to disk before returning; lines that already stand are not written twice.

        Lines of an earlier attempt that had another number of lines are replaced.

        Args:
            group: its name.
            found: what its lines hold.

        Raises:
            InputError: for an empty group, or a finding that JSON cannot hold; nothing is written.
            PlanError: if the writer was closed.
        """
        if not self._release.alive:
            raise PlanError(f"{self.path}: this writer was closed; open a new one to write group {group}")
        if not found:
            raise InputError(f"group {group}: expected at least one line, got none")
        rows = [_row(group, place, len(found), one) for place, one in enumerate(found)]
        standing = self._lines.setdefault(group, {})
        if any(row["of"] != len(found) for row in standing.values()):
            self._lines[group] = standing = {}
            run, kept, _ = _read(self.path)
            self._write_atomically([run or self._run, *(row for row in kept if row["group"] != group)])
        fresh = [row for row in rows if row["line"] not in standing]
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(_text(row) for row in fresh))
            file.flush()
            os.fsync(file.fileno())
        standing.update({row["line"]: row for row in fresh})

    def drop(self, groups: Iterable[str]) -> None:
        """Take the lines of these groups out of the file, atomically, so that they are written anew."""
        gone = {name for name in groups if name in self._lines}
        if not gone:
            return
        run, lines, _ = _read(self.path)
        self._write_atomically([run or self._run, *(row for row in lines if row["group"] not in gone)])
        for name in gone:
            del self._lines[name]

    def finish(self) -> None:
        """Put the lines in the order of the plan, atomically; until then they stand in the order of arrival."""
        run, lines, _ = _read(self.path)
        ordered = _in_plan_order(run or self._run, lines)
        if ordered != lines:
            self._write_atomically([run or self._run, *ordered])

    def _resume(self) -> None:
        run, lines, torn = _read(self.path)
        if run is None:
            beginning = self.path.read_bytes()[: len(_RUN_LINE)]
            if lines or not _RUN_LINE.startswith(beginning):
                raise PlanError(f"{self.path}: expected a record, got a file without a run line. Use another --out")
            # A run line that was torn by a kill: nothing stands yet, so start over.
            self._write_atomically([self._run])
            return
        differing = [key for key in ("plan_digest", "seed", "gradleak") if run.get(key) != self._run.get(key)]
        if differing == ["plan_digest"] and "plan" in run and run["plan"] == self._run.get("plan"):
            # The settings are the same: code, weights or a model behind a name changed, so all is computed anew.
            if self._before_set_aside is not None:
                self._before_set_aside()
            self.set_aside = _free(self.path, str(run["plan_digest"]))
            self.path.replace(self.set_aside)
            self._write_atomically([self._run])
            return
        for key in differing:
            raise PlanError(
                f"{self.path}: the record there has {key} {run.get(key)!r}, this run has {self._run.get(key)!r}; "
                "nothing was written. Use another --out, or delete the folder to start over"
            )
        for row in lines:
            self._lines.setdefault(row["group"], {})[row["line"]] = row
        if torn:
            self._write_atomically([run if _is_sealed(run) else self._run, *lines])

    def _write_atomically(self, rows: Sequence[Mapping[str, Any]]) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        with partial.open("w", encoding="utf-8") as file:
            file.write("".join(_text(row) for row in rows))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path)


def _free(path: Path, digest: str) -> Path:
    """A name beside a record that nothing has: with its digest, and a number where that was set aside before."""
    # The digest stands in the file, which may be anyone's.
    stem = f"{path.stem}-{''.join(sign for sign in digest[:16] if sign.isalnum())}"
    names = (f"{stem}{'' if number == 1 else f'-{number}'}{path.suffix}" for number in itertools.count(1))
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


def _lock(path: Path) -> int:
    """An open file that holds the lock of a record until it is closed or the process ends.

    Raises:
        PlanError: if another writer holds it.
    """
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    if sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise PlanError(
                f"{path}: another run is writing this record, or a writer of this process was not closed; "
                "wait for it, or use another --out"
            ) from error
    return handle


def _row(group: str, place: int, count: int, found: Finding | Verdict) -> dict[str, Any]:
    name = "verdict" if isinstance(found, Verdict) else "finding"
    content = found.to_dict()
    taken = set(PLACE) & set(content)
    if taken:
        raise InputError(
            f"group {group}: expected a finding without the keys of the record itself, got {sorted(taken)}"
        )
    return _sealed({"type": name, "group": group, "line": place, "of": count, **content})


def _sealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The line with its checksum: of its JSON text, keys sorted, so that no digit changes unseen."""
    content = {key: value for key, value in row.items() if key != "checksum"}
    text = json.dumps(content, allow_nan=False, sort_keys=True)
    return content | {"checksum": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _is_sealed(row: Mapping[str, Any]) -> bool:
    try:
        return bool(row.get("checksum") == _sealed(row)["checksum"])
    except (ValueError, RecursionError):
        return False


def _whole(digits: str) -> int:
    """The number in a line; one that no float can hold makes the line unreadable, since pages round all numbers."""
    if len(digits) > 300:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _encodable(row: dict[str, Any], text: str) -> dict[str, Any]:
    """The line without halves of characters, which JSON can hold and no file can: a path on the command line may."""
    if "\\ud" not in text and "\\uD" not in text:
        return row
    found = json.loads(json.dumps(row, ensure_ascii=False).encode("utf-8", errors="replace"))
    return found if found == row else _sealed(found)


def _finding(row: Mapping[str, Any]) -> Finding:
    kind = row.get("kind")
    if not isinstance(kind, str):
        raise InputError(f"finding: expected a kind, got {str(kind)[:100]!r}")
    return finding_class(kind).from_dict({key: value for key, value in row.items() if key not in PLACE})


def _parse(row: Mapping[str, Any]) -> Finding | Verdict | None:
    try:
        return Verdict.from_dict(row) if row["type"] == "verdict" else _finding(row)
    except GradleakError:
        return None


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def record_file(path: str | os.PathLike[str]) -> Path:
    """`path` itself, or `record.jsonl` inside it if it is a folder.

    Raises:
        InputError: if there is no such file.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "record.jsonl"
    if not file.is_file():
        raise InputError(
            f"{file}: expected a record, got no such file; give the folder of a run or run `gradleak audit`"
        )
    return file


def _read(file: Path) -> tuple[dict[str, Any] | None, list[dict[str, Any]], bool]:
    """The run line (or None), the further whole lines, and whether any line was torn."""
    run: dict[str, Any] | None = None
    lines: list[dict[str, Any]] = []
    places: set[tuple[str, int]] = set()
    pieces = file.read_bytes().decode("utf-8", errors="replace").split("\n")
    torn = pieces[-1] != ""  # a kill may have taken only the end of the line: then the last piece is whole
    for piece in pieces if torn else pieces[:-1]:
        try:
            row = json.loads(piece, parse_int=_whole)
        except (ValueError, RecursionError):
            torn = True
            continue
        if isinstance(row, dict) and row.get("type") == "run" and type(row.get("schema")) is int:
            if row["schema"] != SCHEMA:
                newer = "update gradleak" if row["schema"] > SCHEMA else "run the audit again, with another --out"
                raise InputError(
                    f"{file}: record schema {row['schema']}, this version reads schema {SCHEMA} alone; {newer}"
                )
            torn = torn or run is not None or not _is_sealed(row)
            run = run or _encodable(row, piece)
        elif isinstance(row, dict) and row.get("type") in LINE_TYPES[1:] and _has_place(row) and _is_sealed(row):
            # A line that stands twice is read once.
            torn = torn or (row["group"], row["line"]) in places
            if (row["group"], row["line"]) not in places:
                places.add((row["group"], row["line"]))
                lines.append(_encodable(row, piece))
        else:
            torn = True
    return run, lines, torn


def _in_plan_order(run: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    order = {name: place for place, name in enumerate(_announced(run))}
    return sorted(lines, key=lambda row: (order.get(row.get("group", ""), len(order)), row.get("line", 0)))


def _announced(run: Mapping[str, Any]) -> list[str]:
    """The names of the groups that a run line announces, in the order of the plan."""
    names = run.get("groups")
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def _by_group(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in lines:
        groups.setdefault(str(row.get("group")), []).append(row)
    return groups


def _has_place(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("group"), str) and all(type(row.get(key)) is int for key in ("line", "of"))


def _is_whole(rows: Sequence[Mapping[str, Any]]) -> bool:
    # Nothing is made of the size that a line states: a record may come from anyone.
    places = sorted(row.get("line", -1) for row in rows)
    return {row.get("of") for row in rows} == {len(rows)} and places == list(range(len(rows)))


def _without_volatile(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [_without_volatile(item) for item in value]
    return value

"""Writer of a record file, which knows what of it stands already, so that a killed run goes on."""

from __future__ import annotations

import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.results.errors import InputError, PlanError, record_stays
from gradleak.results.files import append_to, open_private, write_file
from gradleak.results.finding import Finding, Status
from gradleak.results.record import finding_of, parse, row_of
from gradleak.results.record_lines import CUT, SCHEMA, in_plan_order, is_whole, read_lines, sealed, text_of
from gradleak.results.score import jsonable
from gradleak.results.verdict import Verdict

if sys.platform != "win32":
    import fcntl

_RUN_LINE = b'{"type": "run"'
# What a record has to have in common with the run that goes on with it.
COMPARED = ("seed", "gradleak", "versions", "device", "plan_digest", "shard", "thresholds", "groups")
Guard = Callable[[Mapping[str, Any], bool], None]


class RecordWriter:
    """Appends groups of lines to a record file and knows which groups already stand there.

    Only the parent process of a run writes, and one writer at a time: it holds a lock (on `.<name>.lock` beside the
    file) that the system releases when the process ends, however it ends. Close the writer, or use it in a `with`
    statement, to release the lock earlier.

    A file left by a killed run is repaired on opening: lines that are torn or damaged are dropped, whole groups are kept, and
    the missing lines of a broken group are written again without doubling those that stand. The lines of a group whose middle
    was damaged therefore end up at the end of the file; `Record.canonical` has them in the order of the plan.

    A record of the same plan whose code has changed since (of an attack, a loss, the model) is set aside, under a name with its
    digest, and begun anew.

    Attributes:
        path: the record file.
        begun: whether the header of this run stood in the file already.
        damage: what was dropped on opening beside a last line that a kill cut off, a phrase each.
        set_aside: where the record of other code lies now, or None.
    """

    def __init__(self, path: str | os.PathLike[str], run: Mapping[str, Any], *, guard: Guard | None = None) -> None:
        """Open `path` for a run with this header, resuming if it holds the same plan.

        Args:
            path: the record file; its folder must exist.
            run: the header; must hold `plan_digest` and `groups`.
            guard: asked before lines of an earlier run are kept (False) or, since code has changed, set aside (True), with the
                header that they stand under; what it raises leaves the file as it is.

        Raises:
            PlanError: if the folder is missing, another process writes the file, or the file holds something else, or
                another plan, another seed or other versions; the file is left as it is.
            WriteError: if the file cannot be written.
        """
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise PlanError(f"{self.path}: expected an existing folder, got none; create {self.path.parent} first")
        self._run = sealed({"type": "run", "schema": SCHEMA, **jsonable(dict(run))})
        # As they stand in the file.
        self._rows: list[Mapping[str, Any]] = []
        self._places: dict[str, dict[int, Mapping[str, Any]]] = {}
        self.begun = False
        self.damage: list[str] = []
        self.set_aside: Path | None = None
        self._release = weakref.finalize(self, os.close, _lock(self.path))
        try:
            if self.path.exists() and self.path.stat().st_size > 0:
                self._resume(guard)
            else:
                self._rewrite([])
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

    @property
    def lines(self) -> int:
        """Number of lines that stand in the file beside the header."""
        return len(self._rows)

    def missing(self, groups: Iterable[str]) -> list[str]:
        """Those of `groups` that are not whole in the file, in the given order."""
        return [name for name in groups if not is_whole(self._places.get(name, {}).values())]

    def findings(self, group: str) -> list[Finding]:
        """The findings of a group that stand in the file, in their order.

        Raises:
            InputError: if a line is no finding of its kind.
        """
        rows = self._places.get(group, {})
        return [finding_of(rows[place]) for place in sorted(rows) if rows[place]["type"] == "finding"]

    def failed(self, group: str) -> bool:
        """True if a finding of a group failed, was left out or cannot be read, so that the group is tried again."""
        rows = self._places.get(group, {}).values()
        return any(row.get("status") in (Status.FAILED, Status.LEFT_OUT) or parse(row) is None for row in rows)

    def write_group(self, group: str, found: Sequence[Finding | Verdict]) -> None:
        """Append a group, flushed to disk before returning; lines that already stand are not written twice.

        Lines of an earlier attempt that had another number of lines are replaced.

        Args:
            group: its name.
            found: what its lines hold.

        Raises:
            InputError: for an empty group, or a finding that JSON cannot hold; nothing is written.
            PlanError: if the writer was closed.
            WriteError: if the file cannot be written.
        """
        if not self._release.alive:
            raise PlanError(f"{self.path}: this writer was closed; open a new one to write group {group}")
        if not found:
            raise InputError(f"group {group}: expected at least one line, got none")
        rows = [row_of(group, place, len(found), one) for place, one in enumerate(found)]
        lines = {row["line"]: text_of(row) for row in rows}
        if any(row["of"] != len(found) for row in self._places.get(group, {}).values()):
            self.drop([group])
        standing = self._places.setdefault(group, {})
        fresh = [row for row in rows if row["line"] not in standing]
        append_to(self.path, b"".join(lines[row["line"]] for row in fresh))
        self._rows += fresh
        standing |= {row["line"]: row for row in fresh}

    def drop(self, groups: Iterable[str]) -> None:
        """Take the lines of these groups out of the file, atomically, so that they are written anew."""
        gone = {name for name in groups if name in self._places}
        if gone:
            self._rewrite([row for row in self._rows if row["group"] not in gone])

    def finish(self) -> None:
        """Put the lines in the order of the plan, atomically; until then they stand in the order of arrival."""
        ordered = in_plan_order(self._run, self._rows)
        if any(one is not other for one, other in zip(ordered, self._rows, strict=True)):
            self._rewrite(ordered)

    def _resume(self, guard: Guard | None) -> None:
        found = read_lines(self.path)
        if found.run is None:
            beginning = self.path.read_bytes()[: len(_RUN_LINE)]
            if found.rows or not _RUN_LINE.startswith(beginning):
                raise PlanError(f"{self.path}: expected a record, got a file without a run line. Use another --out")
            # A run line that was torn by a kill: nothing stands yet, so start over.
            self._rewrite([])
            return
        changed = self._compare(found.run, COMPARED if found.rows else COMPARED[:5], edited=found.edited)
        if not found.rows:
            self.begun = not changed
            self._rewrite([])
            return
        if guard is not None:
            guard(self._run if found.edited else found.run, changed)
        if changed:
            self.set_aside = _free(self.path, str(found.run["plan_digest"]))
            self.path.replace(self.set_aside)
            self._rewrite([])
            return
        self.begun = True
        self.damage = [one for one in found.damage if not one.endswith(CUT)]
        if found.edited:
            self.damage.insert(0, "the header is not what its checksum says")
        else:
            self._run = found.run
        self._hold(found.rows)
        if not found.tidy or found.edited:
            self._rewrite(found.rows)

    def _compare(self, stored: Mapping[str, Any], keys: Sequence[str], *, edited: bool) -> bool:
        """True if a record is one of this plan with other code.

        Raises:
            PlanError: if it is that of another plan, or cannot be told.
        """
        own = self._run
        differing = [key for key in keys if _compared(key, stored) != _compared(key, own)]
        if edited and differing:
            raise record_stays(
                self.path,
                "the header of the record there is not what its checksum says, so that nobody can tell whether it is of this run "
                f"({', '.join(differing)})",
            )
        # The settings are the same: code, weights or a model behind a name changed, so all is computed anew.
        of_this_plan = "plan" in stored and stored["plan"] == own.get("plan")
        if differing[:1] == ["plan_digest"] and of_this_plan and isinstance(stored.get("plan_digest"), str):
            return True
        if said := difference(stored, own, keys):
            raise record_stays(self.path, said)
        return False

    def _hold(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Know these lines as those of the file."""
        self._rows = list(rows)
        self._places = {}
        for row in self._rows:
            self._places.setdefault(row["group"], {})[row["line"]] = row

    def _rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        write_file(self.path, b"".join(text_of(row) for row in (self._run, *rows)))
        self._hold(rows)


def difference(stored: Mapping[str, Any], own: Mapping[str, Any], keys: Iterable[str] = COMPARED) -> str:
    """First difference between the header of a record and that of a run, in words; "" where there is none.

    Args:
        stored: the header of the record.
        own: the header of the run.
        keys: what is compared.
    """
    for key in keys:
        if _compared(key, stored) != _compared(key, own):
            this, that = _apart(_compared(key, own), _compared(key, stored))
            mixed = f": numbers can differ between {key.removesuffix('s')}s, and one record would mix them"
            why = mixed if key in ("versions", "device") else ""
            return f"the record there has {key} {that}, this run has {this}{why}"
    return ""


def _compared(key: str, header: Mapping[str, Any]) -> Any:
    """Part of a header that is compared: of Python's version the part by which its compiled code differs."""
    value = header.get(key)
    if key == "versions" and isinstance(value, Mapping):
        return {name: ".".join(str(one).split(".")[:2]) if name == "python" else one for name, one in value.items()}
    return value


def _apart(one: Any, other: Any) -> tuple[str, str]:
    """Two values that differ, or what differs in them, in a few words."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        name = next((name for name in {**one, **other} if one.get(name) != other.get(name)), "")
        return f"{name} {repr(one.get(name))[:100]}", f"{name} {repr(other.get(name))[:100]}"
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        place = next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(one), len(other)))
        this, that = (
            f"of number {len(each)}, at place {place} {str(each[place : place + 1])[:100]}" for each in (one, other)
        )
        return this, that
    return repr(one)[:200], repr(other)[:200]


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
    handle = open_private(_lock_of(path), os.O_RDWR)
    if sys.platform != "win32":
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Perhaps somebody looks at this moment whether it is held.
                time.sleep(0.02)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise PlanError(
                f"{path}: another run is writing this record, or a writer of this process was not closed; "
                "wait for it, or use another --out"
            ) from error
    return handle


def is_being_written(path: Path) -> bool:
    """True if a process writes a record; False where nobody can tell, as on Windows. Nothing is written.

    Args:
        path: the record file.
    """
    if sys.platform == "win32":
        return False
    try:
        handle = os.open(_lock_of(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        # And with it what was locked.
        os.close(handle)
    return False


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")

"""Store of a study's results, a record as it comes: a killed study goes on, and one that is done computes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gradleak.attacks import Checkpoint
from gradleak.core import Batch
from gradleak.results import GradleakError, InputError, RecordWriter, UnknownFinding
from gradleak.results.versions import version_of

Key = Mapping[str, Any]
T = TypeVar("T")


class Store:
    """Cells by key, in a file that grows as they end; without a file they are kept in memory.

    A cell is anything of a kind that pydantic reads back: a number, a dataclass, a list of them. A key holds all that a cell
    depends on, besides the code. The file is a record with one group a cell: whatever kills the study, whole cells stay, and
    what is torn is computed again. One study at a time writes a file; another may go on with it.

    Attributes:
        reused: how many cells were asked for and found in the file so far.
    """

    def __init__(self, path: str | None) -> None:
        """Read the cells that there are.

        Args:
            path: of the file, which is made with its folder when the first cell is added; None to keep nothing.

        Raises:
            InputError: for a file that holds something else, comes from another version, or is written at this moment.
        """
        self.path = None if path is None else Path(path)
        self._cells: dict[str, Any] = {}
        self._read: set[str] = set()
        self._writer: RecordWriter | None = None
        self.reused = 0
        if self.path is None:
            return
        parent = next((folder for folder in self.path.parents if folder.exists()), Path())
        if self.path.is_dir() or not parent.is_dir():
            raise InputError(f"cells: expected the name of a file in a folder, got {path!r}")
        if self.path.exists():
            self._writer = _open(self.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another study at the file; every cell is already there."""
        if self._writer is not None:
            self._writer.close()

    def get(self, key: Key, kind: type[T]) -> T | None:
        """The cell of a key, or None; one that is of another kind, as an older study left it, is thrown away."""
        group = _digest(key)
        if group not in self._cells and self._writer is not None and not self._writer.missing([group]):
            self._cells[group] = _cell(self._writer, group)
            self._read.add(group)
        if group not in self._cells:
            return None
        try:
            found = TypeAdapter(kind).validate_python(self._cells[group])
        except ValidationError:
            del self._cells[group]
            self._read.discard(group)
            if self._writer is not None:
                self._writer.drop([group])
            return None
        self.reused += group in self._read
        return found

    def add(self, key: Key, kind: type[T], cell: T) -> T:
        """Keep a cell, on disk where there is a file; returns it."""
        group, plain = _digest(key), TypeAdapter(kind).dump_python(cell)
        self._cells[group] = plain
        if self.path is not None:
            if self._writer is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = _open(self.path)
            _write(self._writer, group, key, plain)
        return cell

    def kept(self, key: Key, kind: type[T], compute: Callable[[], T]) -> T:
        """The cell of a key, or the one that `compute` makes, which is kept from then on."""
        found = self.get(key, kind)
        return self.add(key, kind, compute()) if found is None else found

    def checkpoint(self, key: Key) -> Checkpoint | None:
        """Place of a long attack's state until its cell is there; None without a file."""
        if self.path is None:
            return None
        return Checkpoint(path=self.path.with_name(f"{self.path.name}.{_digest(key)[:12]}.state"))


def content_of(examples: Sequence[Batch]) -> str:
    """A hash of inputs and targets, for keys: two files of one name hold different images."""
    total = hashlib.sha256()
    for example in examples:
        for tensor in (example.inputs, example.targets):
            total.update(str(tuple(tensor.shape)).encode())
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def _open(path: Path) -> RecordWriter:
    version = version_of("gradleak")
    header = {"plan_digest": "cells of studies", "groups": [], "gradleak": version}
    try:
        return RecordWriter(path, header)
    except GradleakError as error:
        raise InputError(
            f"cells: expected a file of cells by gradleak {version} that no other study is writing, or a new "
            f"one, got {path}; name another file"
        ) from error


def _write(writer: RecordWriter, group: str, key: Key, cell: Any) -> None:
    writer.write_group(group, [UnknownFinding(kind="cell", item=group, audit="studies", key=dict(key), cell=cell)])


def _cell(writer: RecordWriter, group: str) -> Any:
    (found,) = writer.findings(group)
    return (found.model_extra or {}).get("cell")


def _digest(key: Key) -> str:
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()


__all__ = ["Key", "Store", "content_of"]

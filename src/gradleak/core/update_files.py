"""Files that hold an update, read without trust: sizes come before memory, and nothing in a file is ever run."""

from __future__ import annotations

import ast
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradleak.core.module_copy import first_line
from gradleak.core.torch_file import HOW_TO_CONVERT, read_torch_archive
from gradleak.results import InputError
from gradleak.results.errors import shown
from gradleak.results.files import expect_file

METADATA_KEY = "gradleak"
# The most tensors of an update, and the most bytes of what a file says about them.
MOST_TENSORS = 50_000
MOST_HEADER_BYTES = 16 * 2**20
# A file may unfold to this many times its size (pruned updates compress well), or to so many bytes.
MOST_UNFOLDING = 200
UNFOLDS_FREELY = 2**27
# No byte of deflated data stands for more.
_DEFLATED = 1032
_MOST_ARRAY_HEADER = 10_000
# What the readers of damaged or foreign files raise besides OSError.
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,  # NotImplementedError and RecursionError too
    EOFError,
    MemoryError,
    OverflowError,
    SyntaxError,
    Warning,  # of numpy, where a user makes errors of them
    SafetensorError,
    zipfile.BadZipFile,
    zlib.error,
    OSError,
)


def read_tensors(file: Path, max_bytes: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file by name, and what the file states about them, by the key that `Update.save` writes.

    Args:
        file: safetensors, npz, or a torch file of plain tensors.
        max_bytes: refuse files whose tensors would need more memory than this, before they are read.

    Raises:
        InputError: in one line, for a missing, oversized, damaged or unsafe file.
    """
    size = expect_file(file, "an update file").stat().st_size
    if size > max_bytes:
        raise InputError(f"{file}: {size} bytes, more than the {max_bytes} allowed (max_bytes)")
    if file.suffix not in _READERS:
        raise InputError(f"{file}: expected .safetensors, .npz, .pt or .pth, got {file.suffix!r}; {HOW_TO_CONVERT}")
    read, what = _READERS[file.suffix]
    try:
        tensors, header = read(file, max_bytes)
    except InputError:
        raise
    except _UNREADABLE as error:
        raise InputError(f"{file}: not {what} ({first_line(error)[:160]}); {HOW_TO_CONVERT}") from error
    if not tensors:
        raise InputError(f"{file}: expected at least one tensor, got none")
    return tensors, header


def _safetensors(file: Path, max_bytes: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    del max_bytes  # the library checks that the tensors fill the file and no more
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        _check_header(file, size)
        entries = _parsed(file, stream.read(size), "header")
    _check_count(file, len(entries))
    with safe_open(file, framework="pt") as handle:
        header = _stated(file, (handle.metadata() or {}).get(METADATA_KEY, "{}"))
        names = dict.fromkeys(handle.keys())
        order = dict.fromkeys([*(name for name in header.get("order", ()) if name in names), *names])
        # Copies: the tensors of safetensors are a view of the file, which may change or shrink on disk.
        return {name: handle.get_tensor(name).clone() for name in order}, header


def _stated(file: Path, text: str) -> dict[str, Any]:
    header = _parsed(file, text, "gradleak header")
    form = {"kind": str, "provenance": dict, "order": list}
    if any(key in header and not isinstance(header[key], form[key]) for key in form):
        raise InputError(f"{file}: expected kind, provenance and order in the gradleak header, got another form")
    if not all(isinstance(name, str) for name in header.get("order", ())):
        raise InputError(f"{file}: expected names of tensors in the gradleak header, got something else")
    return header


def _parsed(file: Path, text: str | bytes, what: str) -> dict[str, Any]:
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        header = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged {what} ({first_line(error)[:80]}); write it again") from error
    if not isinstance(header, dict):
        raise InputError(f"{file}: expected a table as the {what}, got another form")
    return header


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        # Readers differ in which of the two counts.
        raise ValueError("a name stands there twice")
    return table


def _npz(file: Path, max_bytes: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    with _archive(file, max_bytes) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in tensors:
                raise InputError(f"{file}: expected one entry a name, got two that read {shown(name)}; rename one")
            tensors[name] = torch.from_numpy(_array(file, archive, entry))
    return tensors, {}


def _array(file: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """The array of an entry, with memory of its own and in the byte order of this machine."""
    with archive.open(entry) as stream:
        described = _npy_header(stream)
        shape, kind = described["shape"], described["descr"]
        if kind == "|O":
            raise InputError(
                f"{file}: expected numeric arrays, got Python objects in {shown(entry.filename)}; {HOW_TO_CONVERT}"
            )
        if not (isinstance(kind, str) and re.fullmatch("[<>|=]?[?biufc][0-9]*", kind)):
            raise ValueError(f"{shown(entry.filename)} holds no numbers")
        if not (isinstance(shape, tuple) and all(type(size) is int for size in shape)):
            raise ValueError(f"{shown(entry.filename)} has no shape")
        dtype, held = np.dtype(kind), entry.file_size - stream.tell()
        if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != held:
            raise InputError(
                f"{file}: {shown(entry.filename)} promises shape {shown(shape)} of {dtype.itemsize} bytes each, which its "
                f"{held} bytes do not hold; write it again"
            )
        flat = np.frombuffer(stream.read(), dtype)
    order: Literal["C", "F"] = "F" if described["fortran_order"] else "C"
    return np.array(flat.reshape(shape, order=order), dtype=dtype.newbyteorder("="))


def _npy_header(stream: IO[bytes]) -> dict[str, Any]:
    """Kind, shape and order of an array, as it states them; numpy's reader fails on odd ones in many more ways."""
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError("an entry is no array")
    size = int.from_bytes(stream.read(2 if magic[6] == 1 else 4), "little")
    if size > _MOST_ARRAY_HEADER:
        raise ValueError(f"an array takes {size} bytes to say what it is")
    described: dict[str, Any] = ast.literal_eval(stream.read(size).decode())
    return described


def _torch(file: Path, max_bytes: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with _archive(file, max_bytes) as archive:
        stored = read_torch_archive(archive)
        _check_unfolding(file, sum(one.bytes for one in stored.values()), max_bytes, "in memory")
        return {name: one.tensor() for name, one in stored.items()}, {}


@contextmanager
def _archive(file: Path, max_bytes: int) -> Iterator[zipfile.ZipFile]:
    """The opened archive, whose entries are no more, and unpack to no more, than a file may hold."""
    if not zipfile.is_zipfile(file):
        raise InputError(f"{file}: expected a zip archive inside {file.suffix}, got something else; {HOW_TO_CONVERT}")
    _check_header(file, _table_bytes(file))
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _check_count(file, len(entries))
        _check_unfolding(file, sum(entry.file_size for entry in entries), max_bytes, "unpacked")
        names = [entry.filename for entry in entries]
        lying = [entry.filename for entry in entries if not _is_possible(entry)]
        if lying or len(set(names)) < len(names) or sum(entry.compress_size for entry in entries) > file.stat().st_size:
            raise ValueError(
                f"{shown(lying[0])} promises more than can be in it"
                if lying
                else "two entries have one name or one place"
            )
        yield archive


def _is_possible(entry: zipfile.ZipInfo) -> bool:
    if entry.compress_type == zipfile.ZIP_STORED:
        return entry.file_size == entry.compress_size
    return entry.compress_type == zipfile.ZIP_DEFLATED and entry.file_size <= _DEFLATED * entry.compress_size


def _table_bytes(file: Path) -> int:
    """Size of the table of a zip archive, as its end states it: reading the table takes memory."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 2**16 - 128))
        end = stream.read()
    sizes = [int.from_bytes(end[at.start() + 12 : at.start() + 16], "little") for at in re.finditer(b"PK\5\6", end)]
    large = [int.from_bytes(end[at.start() + 40 : at.start() + 48], "little") for at in re.finditer(b"PK\6\6", end)]
    return max([size for size in sizes if size < 2**32 - 1] + large, default=0)


def _check_header(file: Path, size: int) -> None:
    if size > MOST_HEADER_BYTES:
        raise InputError(
            f"{file}: expected at most {MOST_HEADER_BYTES} bytes that list the tensors, got {size}; write it again, or "
            "split the update"
        )


def _check_count(file: Path, count: int) -> None:
    if count > MOST_TENSORS:
        raise InputError(f"{file}: expected at most {MOST_TENSORS} tensors, got {count}; split the update")


def _check_unfolding(file: Path, size: int, max_bytes: int, where: str) -> None:
    """Refuse contents larger than `max_bytes`, or far larger than the file that holds them."""
    if size > max_bytes:
        raise InputError(f"{file}: {size} bytes {where}, more than the {max_bytes} allowed (max_bytes)")
    held = file.stat().st_size
    if size > max(UNFOLDS_FREELY, MOST_UNFOLDING * held):
        raise InputError(
            f"{file}: {size} bytes {where} from a file of {held}, more than {MOST_UNFOLDING} times as much; save the "
            "tensors uncompressed and with memory of their own (tensor.contiguous())"
        )


_Reader = Callable[[Path, int], tuple[dict[str, Tensor], dict[str, Any]]]
_READERS: Mapping[str, tuple[_Reader, str]] = {
    ".safetensors": (_safetensors, "a readable safetensors file"),
    ".npz": (_npz, "an npz of numeric arrays"),
    ".pt": (_torch, "a torch file of plain tensors"),
    ".pth": (_torch, "a torch file of plain tensors"),
}

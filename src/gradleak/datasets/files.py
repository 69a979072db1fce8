"""Data from files of the user: IDX, images, and ranges of rows."""

from __future__ import annotations

import gzip
import importlib.util
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradleak.core import Batch, Domain
from gradleak.results import InputError, check_count
from gradleak.results.files import expect_file


def row_range(*, count: int, first: int, last: int | None, available: int, source: str) -> slice:
    """The rows that may be drawn, checked.

    Args:
        count: how many are to be drawn of them.
        first: the first row.
        last: the row behind the last one; None for the end.
        available: how many rows there are.
        source: of what, for messages.

    Raises:
        InputError: naming `first`, `last` or `count`, if the rows are not there or fewer than `count`.
    """
    check_count("first", first, least=0)
    end = available if last is None else last
    check_count("last", end)
    check_count("count", count)
    # Small integers of numpy overflow where they are compared with, or subtracted from, those that they cannot hold.
    first, end = int(first), int(end)
    if not first < end <= available:
        raise InputError(f"first, last: expected rows of the {available:,} in {source}, got {first} to {end}")
    if int(count) > end - first:
        raise InputError(f"count: expected 1 to {end - first}, the rows from {first} to {end} of {source}, got {count}")
    return slice(first, end)


# What numpy and Pillow raise for damaged files.
DAMAGED = (ValueError, OSError, EOFError, LookupError, RuntimeError, SyntaxError, MemoryError)
_Path = str | os.PathLike[str]
# A file of an installed package: "package:file". One letter before the colon is a drive.
PACKAGED = re.compile(r"([A-Za-z_]\w+):(.+)")


def packaged_file(path: _Path) -> Path:
    """The path, or for "package:file" that of a file which an installed package carries; it is found without an import.

    Args:
        path: of a file.

    Raises:
        InputError: if the package is not installed.
    """
    packaged = PACKAGED.fullmatch(str(path))
    if packaged is None:
        return Path(path)
    package, inside = packaged.groups()
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or []) if found is not None else []
    if not places:
        raise InputError(
            f"{path}: expected the installed package {package}, which carries the file, and it is not installed"
        )
    return Path(places[0]) / inside


def idx_file(
    *, images: _Path, labels: _Path, count: int, seed: int = 0, first: int = 0, last: int | None = None
) -> Batch:
    """A batch of labeled gray images from a pair of idx files, drawn without replacement.

    A larger count with the same seed begins with the same images. Two ranges of rows that do not overlap keep what a
    generator is trained on apart from what is audited.

    Args:
        images: idx3 file of bytes, plain or gzipped.
        labels: its idx1 file.
        count: number of images.
        seed: seed of the draw; the global RNG is never touched.
        first: first row of the file that may be drawn.
        last: the row behind the last one; None for the end of the file.

    Returns:
        Inputs (count, 1, h, w) float32 in [0, 1], targets (count,) int64, and the domain.

    Raises:
        InputError: for a missing or unfit file, or more images than the rows have.

    Source:
        LeCun et al. 1998 (MNIST and the idx format); Xiao et al. 2017 (Fashion-MNIST).
    """
    levels, classes = read_idx(images, 3), read_idx(labels, 1)
    if len(levels) != len(classes):
        raise InputError(f"{Path(labels)}: expected {len(levels)} labels, as many as images, got {len(classes)}")
    rows = row_range(count=count, first=first, last=last, available=len(levels), source=Path(images).name)
    chosen = rows.start + np.random.default_rng(seed).permutation(rows.stop - rows.start)[:count]
    pixels = torch.from_numpy(levels[chosen].astype(np.float32) / 255)[:, None]
    domain = Domain.image(channels=1, height=levels.shape[1], width=levels.shape[2])
    return Batch(pixels, torch.from_numpy(classes[chosen].astype(np.int64)), domain)


def read_idx(path: _Path, axes: int) -> NDArray[np.uint8]:
    """An idx file of bytes, plain or gzipped, as an array.

    Args:
        path: of the file.
        axes: how many the array has.

    Raises:
        InputError: for a missing file, or one that is no such array.
    """
    file = expect_file(path, f"an idx{axes} file")
    content = file.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{file}: not a whole gzip file ({error})") from error
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        raise InputError(
            f"{file}: expected an idx{axes} file of bytes (it begins 00 00 08 0{axes}), got {content[:4].hex(' ')}"
        )
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != math.prod(shape) or not shape[0]:
        raise InputError(f"{file}: expected {math.prod(shape)} bytes for {shape}, got {len(content) - start}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def npz_arrays(path: _Path, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file by name; never unpickled.

    Args:
        path: of the file.
        names: of the arrays to read; None for all.

    Raises:
        InputError: for a missing file or array, or one that holds no arrays of numbers.
    """
    file = expect_file(path, "an npz file")
    how = "write it with numpy.savez from arrays of numbers"
    # What is none, numpy takes for a pickle, and says how to open it unsafely.
    if not zipfile.is_zipfile(file):
        raise InputError(f"{file}: not an npz of numeric arrays (another kind of file, or a truncated one); {how}")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            if missing := [name for name in names or () if name not in arrays.files]:
                raise InputError(f"{file}: expected arrays {', '.join(missing)}, got {', '.join(arrays.files)}")
            return {name: arrays[name] for name in names or arrays.files}
    except InputError:
        raise
    except (*DAMAGED, zipfile.BadZipFile, zlib.error) as error:
        said = (
            "it holds Python objects, which are never unpickled"
            if "pickle" in str(error)
            else " ".join(str(error).split())
        )
        raise InputError(f"{file}: not an npz of numeric arrays ({said[:200]}); {how}") from error


def image_file(
    *,
    path: str | os.PathLike[str],
    count: int,
    seed: int = 0,
    only: str | None = None,
    first: int = 0,
    last: int | None = None,
) -> Batch:
    """A batch of labeled images from an npz file, drawn without replacement.

    A larger count with the same seed begins with the same images. Two ranges of rows that do not overlap keep what a
    generator is trained on apart from what is audited.

    Args:
        path: npz with `x`, uint8 (n, h, w) or (n, h, w, c) with 1 or 3 channels, and `y`, integers (n,); never unpickled.
        count: number of images.
        seed: seed of the draw; the global RNG is never touched.
        only: name of a boolean array (n,) in the file; only images where it is true are drawn.
        first: first row of the file that may be drawn.
        last: the row behind the last one; None for the end of the file.

    Returns:
        Inputs (count, c, h, w) float32 in [0, 1], targets (count,) int64, and the domain.

    Raises:
        InputError: for a missing or unfit file, or more images than the rows have.
    """
    file, arrays = Path(path), npz_arrays(path, ("x", "y", *([only] if only else [])))
    images, labels = arrays["x"], arrays["y"]
    if not labels.ndim or (only and not arrays[only].ndim):
        raise InputError(f"{file}: expected y and {only or 'rows'} of one entry a row, got one number")
    allowed = np.flatnonzero(arrays[only]) if only else np.arange(len(labels))
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3) or len(images) != len(labels):
        raise InputError(
            f"{file}: expected x uint8 (n, h, w) or (n, h, w, 1 or 3) and y (n,), got x {images.dtype} {images.shape} "
            f"and y {labels.shape}"
        )
    # How many there are is asked of the rows that `only` leaves.
    rows = row_range(count=1 if only else count, first=first, last=last, available=len(labels), source=file.name)
    allowed = allowed[(allowed >= rows.start) & (allowed < rows.stop)]
    check_count("count", count)
    if count > len(allowed):
        raise InputError(
            f"count: expected no more than the {len(allowed)} of the rows from {rows.start} to {rows.stop} of {file.name} where "
            f"{only} is true, got {count}"
        )
    chosen = allowed[np.random.default_rng(seed).permutation(len(allowed))[:count]]
    pixels = torch.from_numpy(images[chosen]).permute(0, 3, 1, 2).to(torch.float32) / 255
    _, channels, height, width = pixels.shape
    domain = Domain.image(channels=channels, height=height, width=width)
    return Batch(pixels.contiguous(), torch.from_numpy(labels[chosen].astype(np.int64)), domain)

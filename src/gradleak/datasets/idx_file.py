"""Images from files in the idx format, as MNIST and Fashion-MNIST are published."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gradleak.core import Batch, Domain
from gradleak.datasets.row_range import row_range
from gradleak.results import InputError

_Path = str | os.PathLike[str]


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
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: expected an idx{axes} file, got no such file")
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

"""Images of CIFAR-100 from files of one's own: the published binary files, or an npz archive. Nothing is unpickled."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from gradleak.core import Batch, Domain
from gradleak.datasets.files import image_file, row_range
from gradleak.results import InputError

_SIDE, _CHANNELS = 32, 3
_PIXELS = _CHANNELS * _SIDE * _SIDE
_LABELS = 2
_RECORD = _LABELS + _PIXELS
_COARSE, _FINE = 20, 100
# A pickle of protocol 2 and later begins with this byte, and then the protocol; a coarse label is below 20.
_PICKLE = 0x80


def cifar100(
    *,
    path: str | os.PathLike[str],
    count: int,
    seed: int = 0,
    coarse: bool = False,
    first: int = 0,
    last: int | None = None,
) -> Batch:
    """A batch of labeled images of CIFAR-100, drawn without replacement.

    A larger count with the same seed begins with the same images. Two ranges of rows that do not overlap keep what a
    generator is trained on apart from what is audited.

    The "python version" of the set (`train`, `test`, `meta` without a suffix) consists of pickles, which can run any code
    when they are read; they are refused. The "binary version" has the same images in the same order.

    Args:
        path: `train.bin` or `test.bin` of the binary version (records of a coarse label, a fine label and 3,072 bytes, red
            before green before blue), or an npz with `x` uint8 (n, 32, 32, 3) and `y` (n,), the fine labels.
        count: number of images.
        seed: seed of the draw; the global RNG is never touched.
        coarse: the 20 superclasses as targets instead of the 100 classes; binary files only.
        first: first row of the file that may be drawn.
        last: the row behind the last one; None for the end of the file.

    Returns:
        Inputs (count, 3, 32, 32) float32 in [0, 1], targets (count,) int64, and the domain.

    Raises:
        InputError: for a missing or unfit file, a pickle or an archive, or more images than the rows have.

    Cost: reads the drawn images and all labels, not the whole file (an npz is read whole).

    Source:
        Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images"; the binary layout is the one stated with
        the published files.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: expected test.bin or train.bin of CIFAR-100, or an npz, got no such file")
    with file.open("rb") as opened:
        start = opened.read(4)
    if start.startswith(b"PK"):
        if coarse:
            raise InputError(f"{file}: expected a binary file for coarse labels, got an npz, which has the fine ones")
        batch = image_file(path=file, count=count, seed=seed, first=first, last=last)
        if batch.inputs.shape[1:] != (_CHANNELS, _SIDE, _SIDE):
            raise InputError(f"{file}: expected images of 32 x 32 x 3, got {tuple(batch.inputs.shape[1:])}")
        _check(file, batch.targets.numpy(), _FINE)
        return batch
    records = _records(file, start)
    rows = row_range(count=count, first=first, last=last, available=len(records), source=file.name)
    chosen = rows.start + np.random.default_rng(seed).permutation(rows.stop - rows.start)[:count]
    drawn = np.asarray(records[chosen])
    pixels = torch.from_numpy(drawn[:, _LABELS:].astype(np.float32) / 255).reshape(count, _CHANNELS, _SIDE, _SIDE)
    targets = torch.from_numpy(drawn[:, 0 if coarse else 1].astype(np.int64))
    return Batch(pixels, targets, Domain.image(channels=_CHANNELS, height=_SIDE, width=_SIDE))


def _records(file: Path, start: bytes) -> np.ndarray:
    """The records of a binary file (n, 3074), read as they are drawn."""
    hint = "use test.bin or train.bin of the binary version (cifar-100-binary.tar.gz, unpacked)"
    if start.startswith(b"\x1f\x8b"):
        raise InputError(f"{file}: expected an unpacked file, got a gzip archive; {hint}")
    if len(start) >= 2 and start[0] == _PICKLE and 2 <= start[1] <= 5:
        raise InputError(f"{file}: this is a pickle, which can run any code and is never read; {hint}")
    size = file.stat().st_size
    if not size or size % _RECORD:
        raise InputError(f"{file}: expected records of {_RECORD:,} bytes, got {size:,} bytes; {hint}")
    records = np.memmap(file, dtype=np.uint8, mode="r", shape=(size // _RECORD, _RECORD))
    _check(file, records[:, 0], _COARSE)
    _check(file, records[:, 1], _FINE)
    return records


def _check(file: Path, labels: np.ndarray, classes: int) -> None:
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"{file}: expected labels from 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}; is it CIFAR-100?"
        )


__all__ = ["cifar100"]

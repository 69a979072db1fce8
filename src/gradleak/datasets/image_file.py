"""Images from a NumPy archive of one's own."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import torch

from gradleak.core import Batch, Domain
from gradleak.datasets.row_range import row_range
from gradleak.results import InputError, check_count


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
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: expected an npz file with arrays x and y, got no such file")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in ("x", "y", *([only] if only else [])) if name not in arrays.files]
            if missing:
                raise InputError(f"{file}: expected arrays {', '.join(missing)}, got {', '.join(arrays.files)}")
            images, labels = arrays["x"], arrays["y"]
            allowed = np.flatnonzero(arrays[only]) if only else np.arange(len(labels))
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: not an npz of numeric arrays ({error}); write it with numpy.savez") from error
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

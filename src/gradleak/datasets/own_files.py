"""Data from files of one's own: tables as CSV, arrays as npz or safetensors, folders of images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gradleak.core import Batch, Domain, Vocabulary
from gradleak.data import Column, ColumnKind, Table, raw_domain, scaled_domain
from gradleak.data.table import text_rows
from gradleak.datasets.files import DAMAGED, npz_arrays, row_range
from gradleak.results import InputError
from gradleak.results.files import expect_file

# Modes of images that conversion to gray or color keeps the levels of.
_BYTES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "La", "CMYK", "YCbCr", "LAB", "HSV")
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")


def csv_file(
    *,
    path: str | os.PathLike[str],
    target: str,
    count: int,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    values: Mapping[str, tuple[str, ...]] | None = None,
    scale: bool = False,
    delimiter: str = ",",
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
) -> Batch:
    """A batch of rows of a CSV file with a header, drawn without replacement.

    Inputs stand in the order of the file. A column of `ranges` is one number, one of `values` as many as it has values: 1
    for that of the row, 0 for the others. Other columns are left out. A cell that does not fit is refused with its line.

    Args:
        path: of the file, UTF-8.
        target: the column to predict: of `values`, whose place is the class, or of `ranges`, for regression.
        count: number of rows.
        ranges: smallest and largest value that a column can take, from the codebook and not from the rows.
        values: the values that a column can take.
        scale: whether numbers are scaled to [0, 1] by their range; by default they stand as in the file.
        delimiter: one character between cells.
        seed: seed of the draw; the global RNG is never touched.
        first: first row that may be drawn.
        last: the row behind the last one; None for the end of the file.

    Returns:
        Inputs (count, d) float32; targets (count,) int64, or (count, 1) float32 for regression; the domain, a range a column.

    Raises:
        InputError: for a missing or unfit file, with the line, or columns that it does not have.
    """
    ranges, values = dict(ranges or {}), dict(values or {})
    names = header_of(path, delimiter)
    known = ranges.keys() | values.keys()
    lacking = sorted({target, *known} - set(names)) or sorted({target} - known) or sorted(ranges.keys() & values.keys())
    if lacking or len(known) < 2:
        raise InputError(
            f"{Path(path)}: expected the target and at least one further column, each under ranges or under values and in the "
            f"header ({', '.join(names)[:200]}), got {', '.join(lacking) or target}"
        )
    columns = [_column(name, ranges, values, target) for name in names if name in known]
    table = Table.read(path, columns=columns, delimiter=delimiter)
    rows = row_range(count=count, first=first, last=last, available=table.size, source=Path(path).name)
    chosen = rows.start + np.random.default_rng(seed).permutation(rows.stop - rows.start)[:count]
    given = [column for column in columns if column.name != target]
    parts = [_inputs(column, table.cells[column.name][chosen], scale) for column in given]
    inputs = torch.from_numpy(np.concatenate(parts, axis=1)).to(torch.float32)
    wanted = torch.from_numpy(table.cells[target][chosen])
    targets = wanted.to(torch.int64) if target in values else wanted.to(torch.float32)[:, None]
    return Batch(inputs, targets, scaled_domain(given) if scale else raw_domain(given))


def header_of(path: str | os.PathLike[str], delimiter: str = ",") -> list[str]:
    """The names of the columns of a CSV file.

    Raises:
        InputError: for a missing file, or one whose first line is no header.
    """
    names, _ = next(text_rows(path, delimiter=delimiter), ([], ""))
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        raise InputError(
            f"{Path(path)}: expected a header of different names with {delimiter!r} between them in the first line, got "
            f"{', '.join(names)[:200]!r}"
        )
    return names


def array_file(
    *,
    path: str | os.PathLike[str],
    count: int,
    inputs: str = "x",
    targets: str = "y",
    vocabulary: int | None = None,
    padding: int | None = None,
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
) -> Batch:
    """A batch of examples of an npz or safetensors file, drawn without replacement.

    Args:
        path: of the file; never unpickled. Images of bytes in an npz are read by `image_file`.
        count: number of examples.
        inputs: name of the array of inputs, (n, ...), as the model takes them: floating point numbers, or ids of tokens.
        targets: name of the array of targets, (n, ...); that of the inputs for language models.
        vocabulary: number of ids that the model knows, for tokens.
        padding: id that fills up short sentences.
        seed: seed of the draw; the global RNG is never touched.
        first: first example that may be drawn.
        last: the example behind the last one; None for the end of the file.

    Returns:
        Inputs (count, ...) float32, or int64 for tokens; targets (count, ...) int64 or float32; the domain of tokens, and
        none of numbers: state it under `data.domain`.

    Raises:
        InputError: for a missing or unfit file.
    """
    arrays = arrays_of(path)
    file = Path(path)
    missing = [name for name in (inputs, targets) if name not in arrays]
    if missing:
        raise InputError(f"{file}: expected arrays {inputs} and {targets}, got {', '.join(arrays) or 'none'}")
    given, wanted = inputs_of(arrays, inputs, file), arrays[targets]
    if given.dim() < 2 or wanted.dim() < 1 or len(given) != len(wanted):
        raise InputError(
            f"{file}: expected {inputs} (n, ...) and {targets} of as many rows, got {tuple(given.shape)} and "
            f"{tuple(wanted.shape)}"
        )
    if given.is_floating_point() is not (vocabulary is None):
        raise InputError(
            f"{file}: expected {inputs} of floating point numbers without a vocabulary, or ids with one, got {given.dtype} and "
            f"vocabulary {vocabulary}; images of bytes are read by image_file"
        )
    rows = row_range(count=count, first=first, last=last, available=len(given), source=file.name)
    chosen = torch.from_numpy(rows.start + np.random.default_rng(seed).permutation(rows.stop - rows.start)[:count])
    taken = wanted[chosen].to(torch.float32 if wanted.is_floating_point() else torch.int64)
    if vocabulary is None:
        return Batch(given[chosen].to(torch.float32), taken)
    ids = Vocabulary(size=vocabulary, padding=padding)
    return Batch(given[chosen].to(torch.int64), taken, Domain.tokens(ids, given.shape[1]))


def arrays_of(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The numeric arrays of an npz or safetensors file by name.

    Raises:
        InputError: for a missing file, or one that is neither.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = expect_file(path, "an npz or safetensors file")
    if file.suffix == ".safetensors":
        try:
            return {name: _real(one, name, file) for name, one in load_file(file).items()}
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{file}: not a whole safetensors file ({' '.join(str(error).split())[:200]}); write it with "
                "safetensors.torch.save_file"
            ) from error
    return {name: _real(one, name, file) for name, one in npz_arrays(file).items()}


def inputs_of(arrays: Mapping[str, Tensor], name: str, file: Path) -> Tensor:
    """The inputs among the arrays of a file; true and false are numbers, too.

    Raises:
        InputError: for none, or for values that are not finite.
    """
    given = arrays[name].to(torch.float32) if arrays[name].dtype is torch.bool else arrays[name]
    if not given.numel():
        raise InputError(f"{file}: expected at least one row in {name}, got shape {tuple(given.shape)}")
    if given.is_floating_point() and not bool(torch.isfinite(given).all()):
        wrong = [row for row, one in enumerate(given) if not bool(torch.isfinite(one).all())]
        raise InputError(
            f"{file}: expected finite numbers in {name}, got NaN or infinity in {len(wrong)} of {len(given)} rows, first in row "
            f"{wrong[0]}; fill them in or leave these rows out"
        )
    return given


def _real(array: Any, name: str, file: Path) -> Tensor:
    """An array of a file as a tensor; what is complex, no number, or has more than 63 bits is refused."""
    kind = str(array.dtype)
    if not isinstance(array, Tensor):
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"{file}: expected an array of real numbers for {name}, got {kind}; leave it out or convert it"
            )
        array = torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))))
    if array.is_complex():
        raise InputError(
            f"{file}: expected an array of real numbers for {name}, got {kind}; leave it out or convert it"
        )
    if array.dtype in _UNSIGNED:
        # Torch computes little with these.
        array = array.to(torch.int64)
        if bool((array < 0).any()):
            raise InputError(f"{file}: expected whole numbers of at most 63 bits in {name}, got larger ones")
    return cast(Tensor, array)


def image_folder(
    *,
    path: str | os.PathLike[str],
    count: int,
    channels: int = 3,
    height: int | None = None,
    width: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
) -> Batch:
    """A batch of images of a folder with one folder a class, drawn without replacement; only these are read.

    Args:
        path: of the folder; the names of its folders in alphabetical order are the classes.
        count: number of images.
        channels: 1 for gray, 3 for color.
        height: that images are brought to, by bicubic interpolation; None for the height that all of them have.
        width: as height.
        mean: of each channel, in [0, 1], as the model's inputs are normalized; None for 0.
        std: as mean; None for 1.
        seed: seed of the draw; the global RNG is never touched.
        first: first image that may be drawn, counted class by class in alphabetical order.
        last: the image behind the last one; None for the end.

    Returns:
        Inputs (count, channels, h, w) float32, (pixel - mean)/std of pixels in [0, 1]; targets (count,) int64; the domain.

    Raises:
        InputError: for a missing folder, one without folders of images, or images of several sizes.
    """
    if channels not in (1, 3):
        raise InputError(f"channels: expected 1 or 3, got {channels}")
    if any(not 0 <= level <= 1 for level in (*(mean or ()), *(std or ()))):
        raise InputError(f"mean, std: expected numbers of pixels in [0, 1], got {mean} and {std}; divide them by 255")
    files = pictures_of(path)
    listed = [(file, label) for label, inside in enumerate(files.values()) for file in inside]
    rows = row_range(count=count, first=first, last=last, available=len(listed), source=Path(path).name)
    order = rows.start + np.random.default_rng(seed).permutation(rows.stop - rows.start)[:count]
    chosen = [listed[place] for place in order]
    size = None if height is None or width is None else (width, height)
    pixels = [_pixels(file, channels, size) for file, _ in chosen]
    shapes = {array.shape for array in pixels}
    if len(shapes) > 1:
        raise InputError(
            f"{Path(path)}: expected images of one size, got {', '.join(map(str, sorted(shapes)))}; state height and width"
        )
    _, tall, wide = shapes.pop()
    domain = Domain.image(channels=channels, height=tall, width=wide, mean=mean, std=std)
    whole = domain.from_pixels(torch.from_numpy(np.stack(pixels)))
    return Batch(whole, torch.tensor([label for _, label in chosen]), domain)


def pictures_of(path: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """The images of a folder with one folder a class, by class, both in alphabetical order.

    Raises:
        InputError: for a missing folder, or one without such folders.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder, got no such folder")
    inside = {
        one.name: sorted(file for file in one.iterdir() if file.suffix.lower() in PICTURES and not file.is_dir())
        for one in sorted(folder.iterdir())
        if one.is_dir()
    }
    found = {name: files for name, files in inside.items() if files}
    if not found:
        raise InputError(
            f"{folder}: expected one folder a class with images ({', '.join(PICTURES)}), got none; without labels return a Batch "
            "from a function of your own"
        )
    return found


@contextmanager
def picture_of(file: Path) -> Iterator[Image.Image]:
    """The image in a file, open until the end of what is done with it.

    Args:
        file: in a format that Pillow reads.

    Raises:
        InputError: for another or a truncated file, or one of more pixels than Pillow takes.
    """
    try:
        with Image.open(file) as picture:
            yield picture
    except (*DAMAGED, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{file}: expected an image, got one that cannot be read ({' '.join(str(error).split())[:200]}); mend it, or take it "
            "out of the folder"
        ) from error


def _pixels(file: Path, channels: int, size: tuple[int, int] | None) -> NDArray[np.float32]:
    with picture_of(file) as picture:
        if picture.mode not in _BYTES and not picture.mode.startswith("I;16"):
            raise InputError(
                f"{file}: expected 8 or 16 bits a channel, got mode {picture.mode}; return a Batch of numbers from a function of "
                "your own"
            )
        # Pillow cuts 16 bits off at 255.
        made = (
            picture.convert("L" if channels == 1 else "RGB")
            if picture.mode in _BYTES
            else Image.fromarray(np.asarray(picture).astype(np.float32) / np.float32(257))
        )
        made = made if size is None else made.resize(size, Image.Resampling.BICUBIC)
        levels: NDArray[np.float32] = np.clip(
            np.asarray(made, dtype=np.float32) / np.float32(255), np.float32(0), np.float32(1)
        )
    if levels.ndim == 2:
        return np.repeat(levels[None], channels, axis=0)
    return np.ascontiguousarray(levels.transpose(2, 0, 1))


def _column(
    name: str, ranges: Mapping[str, Sequence[float]], values: Mapping[str, Sequence[str]], target: str
) -> Column:
    if name in ranges:
        return Column(name=name, low=ranges[name][0], high=ranges[name][1])
    kind = ColumnKind.LABEL if name == target else ColumnKind.CATEGORY
    return Column(name=name, kind=kind, values=tuple(values[name]))


def _inputs(column: Column, cells: NDArray[Any], scale: bool) -> NDArray[np.float64]:
    return column.encode(cells) if scale or not column.is_number else cells[:, None].astype(np.float64)

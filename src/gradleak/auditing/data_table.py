"""Ways to read a data file, as the table `[data]` of a plan states them: what is guessed from the file says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.core import Domain
from gradleak.core.vocabulary import text_lines
from gradleak.data.table import text_rows
from gradleak.datasets.own_files import arrays_of, header_of, inputs_of, picture_of, pictures_of
from gradleak.results import InputError
from gradleak.results.errors import shown

# A column of more different texts is a name or a remark, no category.
MOST_VALUES = 60
# So many different whole numbers are classes.
MOST_CLASSES = 20
# Places of a sentence where the model says nothing.
LONGEST = 32
# What files write for a number that is not known, or none.
_UNKNOWN = frozenset(
    {"", "?", "-", ".", "na", "n/a", "<na>", "nan", "null", "none", "nil", "inf", "-inf", "+inf", "infinity"}
)
_GUESSED = "guessed from this file; state what the codebook says, since a server that is told them learns of the rows"


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """A table `[data]`, and what to say of it.

    Attributes:
        table: its keys, `use` first.
        about: what the data are.
        comments: by key.
        widths: numbers that a row gives the model, by column.
        classes: how many the targets are, 0 where they are none.
        said: what whoever wrote no flag for it should know, "" for nothing.
    """

    table: Mapping[str, Any]
    about: str
    comments: Mapping[str, str] = field(default_factory=dict)
    widths: Mapping[str, int] = field(default_factory=dict)
    classes: int = 0
    said: str = ""


def data_tables(
    data: str,
    *,
    count: int,
    target: str | None = None,
    inputs: str | None = None,
    size: tuple[int, int] | None = None,
    vocabularies: Sequence[int] = (),
    words: tuple[str, str | None] | None = None,
    public_text: str | None = None,
) -> Iterator[DataTable]:
    """The ways to read data, the likeliest first.

    Args:
        data: a file, a folder, `module:function`, or a name of `gradleak list`.
        count: number of examples; fewer where there are fewer.
        target: column or array of the targets.
        inputs: array of the inputs.
        size: height and width of images of a folder.
        vocabularies: numbers of ids that the model may know, the likeliest first; smaller ones may be those of places.
        words: files of the model's vocabulary and of its merges, where data are sentences; None to count words.
        public_text: file whose words are counted; None for the first half of the sentences.

    Raises:
        InputError: for a file that cannot be read, or of a kind for which there is no loader.
    """
    path = Path(data)
    if words is not None and public_text is not None:
        raise InputError(
            "expected a vocabulary, or a public text whose words are counted, got both; drop one of the two"
        )
    if size is not None and not path.is_dir():
        raise InputError(f"--size: expected a folder of images, got {data}; leave it out")
    told = words is not None or public_text is not None
    if path.is_dir() and not told:
        yield from _folder(path, count, size)
    elif path.is_file() and (path.suffix.lower() == ".txt" or told):
        columns = {"text_column": inputs, "label_column": target}
        yield from _sentences(path, count, columns, vocabularies, words, public_text)
    elif told:
        raise InputError(
            f"{data}: expected a file of sentences for a vocabulary or a public text, .txt, .csv or .tsv, got no such file"
        )
    elif path.suffix.lower() in (".csv", ".tsv"):
        yield _csv(path, count, target)
    elif path.suffix.lower() in (".npz", ".safetensors"):
        yield from _arrays(path, count, (inputs or "x", target or "y"), vocabularies)
    elif path.is_file():
        raise InputError(
            f"{data}: expected a CSV, npz, safetensors or text file, a folder of images or module:function, got "
            f"{path.suffix or 'a file without a suffix'}; write a function that returns a gradleak.Batch"
        )
    elif ":" in data:
        yield DataTable(table={"use": data}, about="examples of a function of your own, all that it returns")
    elif data.isidentifier():
        yield DataTable(table={"use": data, "count": count}, about=f"`gradleak explain {data}` has its arguments")
    else:
        raise InputError(f"{data}: expected a file, a folder of images or module:function, got no such file")


def _csv(path: Path, count: int, target: str | None) -> DataTable:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    names = header_of(path, delimiter)
    wanted = names[-1] if target is None else target
    if wanted not in names:
        raise InputError(f"{path}: expected the target among its columns {', '.join(names)[:300]}, got {shown(wanted)}")
    _, *found = text_rows(path, delimiter=delimiter)
    if not found:
        raise InputError(f"{path}: expected rows below the header, got none")
    for row, place in found:
        if len(row) != len(names):
            raise InputError(f"{place}: expected {len(names)} cells, as many as the header has names, got {len(row)}")
    rows, places = [row for row, _ in found], [place for _, place in found]
    ranges: dict[str, list[float]] = {}
    values: dict[str, list[str]] = {}
    left: list[str] = []
    for name, cells in zip(names, zip(*rows, strict=True), strict=True):
        _refuse_unknown(name, cells, places)
        numbers, different = _numbers(cells), sorted(set(cells))
        if name == wanted and (classes := _classes(different, numbers)):
            values[name] = classes
        elif numbers is not None:
            ranges[name] = _range(numbers)
        elif len(different) <= MOST_VALUES and len(different) > 1:
            values[name] = different
        else:
            left.append(name)
    if wanted in left:
        raise InputError(
            f"{path}: expected classes or numbers in the target {wanted}, got more than {MOST_VALUES} different texts"
        )
    scale = any(high - low > 10 for name, (low, high) in ranges.items() if name != wanted)
    comments = {
        "target": "the last column" if target is None else "",
        "scale": "numbers to [0, 1] by their ranges; false where the model takes them as they stand",
        "ranges": f"The smallest and the largest value that a number can take, {_GUESSED}.",
        "values": "One input a value, 1 for that of the row. Values that occur in this file: complete them from the codebook.",
    }
    if left:
        comments["values"] += f"\nLeft out, as names or remarks: {', '.join(left)}."
    table = {
        "use": "csv_file",
        "path": path.as_posix(),
        "target": wanted,
        "count": min(count, len(rows)),
        "scale": scale,
    }
    table |= {} if delimiter == "," else {"delimiter": delimiter}
    return DataTable(
        table={**table, "ranges": ranges, "values": values},
        about=f"{len(rows):,} rows; drawn by the seed, so that a larger count begins with the same ones",
        comments=comments,
        widths={name: 1 if name in ranges else len(values[name]) for name in names if name not in (wanted, *left)},
        classes=len(values.get(wanted, ())),
    )


def _refuse_unknown(name: str, cells: Sequence[str], places: Sequence[str]) -> None:
    """Refuse an empty cell, and what stands for no number in a column that has nothing else but numbers.

    Raises:
        InputError: with the line.
    """
    unknown = [place for place, cell in enumerate(cells) if cell.lower() in _UNKNOWN]
    if not unknown:
        return
    known = [cell for cell in cells if cell.lower() not in _UNKNOWN]
    among = "numbers" if known and _numbers(known) is not None else "values"
    if among == "values" and all(cells):
        # Unknown is a value like another.
        return
    first = unknown[0] if among == "numbers" else cells.index("")
    raise InputError(
        f"{places[first]}, column {name}: expected a value, got {cells[first] or 'an empty cell'} among {among}; fill it in or "
        "drop the row"
    )


def _numbers(cells: Sequence[str]) -> Tensor | None:
    try:
        found = torch.tensor([float(cell) for cell in cells], dtype=torch.float64)
    except ValueError:
        return None
    return found if bool(torch.isfinite(found).all()) else None


def _classes(different: Sequence[str], numbers: Tensor | None) -> list[str]:
    """The classes that a target has, in the order of their codes; none for a number to predict."""
    if numbers is None:
        return list(different) if len(different) <= MOST_VALUES else []
    if bool((numbers == numbers.round()).all()) and len(different) <= MOST_CLASSES:
        return sorted(different, key=float)
    return []


def _range(numbers: Tensor) -> list[float]:
    guessed = Domain.guess(numbers[:, None])
    ends = (guessed.low, guessed.high)
    return [float(end[0] if isinstance(end, tuple) else end) for end in ends]


def _arrays(path: Path, count: int, names: tuple[str, str], vocabularies: Sequence[int]) -> Iterator[DataTable]:
    arrays = arrays_of(path)
    inputs, targets = names
    held = ", ".join(f"{name} {tuple(one.shape)}" for name, one in arrays.items())
    for name, flag in ((inputs, "--inputs"), (targets, "--target")):
        if name not in arrays:
            raise InputError(f"{path}: expected an array {name}, got {held or 'none'}; name it by {flag}")
    given, wanted = inputs_of(arrays, inputs, path), arrays[targets]
    whole = wanted.dim() == 1 and not wanted.is_floating_point() and wanted.numel() > 0
    classes = int(wanted.max()) + 1 if whole else 0
    count = min(count, len(given))
    base = {"path": path.as_posix(), "count": count}
    if given.dtype is torch.uint8 and path.suffix == ".npz" and (inputs, targets) == ("x", "y"):
        yield DataTable(table={"use": "image_file", **base}, about=f"images of bytes: {held}", classes=classes)
        return
    named = {"inputs": inputs, "targets": targets}
    if given.is_floating_point():
        domain = Domain.guess(given.to(torch.float32))
        ends = {"low": domain.low, "high": domain.high, "kind": domain.kind.value}
        yield DataTable(
            table={"use": "array_file", **base, **named, "domain": ends},
            about=held,
            comments={
                "domain": f"The range that a number can take, {_GUESSED}.\nFor normalized images state mean and std."
            },
            classes=classes,
        )
        return
    if given.dim() != 2:
        raise InputError(
            f"{path}: expected {inputs} of floating point numbers, of ids (n, T), or images of bytes called x beside "
            f"labels y in an npz, got {given.dtype} {tuple(given.shape)}"
        )
    known = [size for size in vocabularies if size > int(given.max())]
    if not known:
        raise InputError(
            f"{path}: expected a model with an nn.Embedding of more than {int(given.max())} rows for the ids {inputs}, got "
            f"{', '.join(map(str, vocabularies)) or 'none'}"
        )
    for size in known:
        yield DataTable(
            table={"use": "array_file", **base, **named, "vocabulary": size},
            about=f"ids of tokens: {held}",
            comments={"vocabulary": "number of ids that the model knows; padding = 0 for the id that fills up"},
        )


def _sentences(
    path: Path,
    count: int,
    columns: Mapping[str, str | None],
    vocabularies: Sequence[int],
    words: tuple[str, str | None] | None,
    public_text: str | None,
) -> Iterator[DataTable]:
    if not vocabularies:
        raise InputError(f"{path}: expected a model with an nn.Embedding for the words of sentences, got none")
    lines = sum(bool(line.strip()) for line in text_lines(path))
    rows = lines if path.suffix.lower() == ".txt" else max(lines - 1, 1)
    named = {key: name for key, name in columns.items() if name is not None}
    apart: dict[str, int] = {}
    said = ""
    if words is None and public_text is None:
        if rows < 2:
            raise InputError(
                f"{path}: expected two sentences at least, since the words of some of them are counted as public, got {rows}; "
                "name a public text (--public-text) or the model's vocabulary (--vocabulary)"
            )
        half = rows // 2
        apart, rows = {"public_last": half, "first": half}, rows - half
        said = (
            f"{path}: no public text was named, so that the first {half:,} sentences are taken for public, their words are "
            f"counted, and the other {rows:,} are audited; name a public text (--public-text) or the model's vocabulary "
            "(--vocabulary)"
        )
    table = {"use": "text_file", "path": path.as_posix(), "count": min(count, rows), **named}
    told = {"length": "places of a row; shorter sentences are filled up, longer ones cut"}
    counted = {
        **told,
        "public_text": "whose words are counted: everybody knows them",
        "public_last": "lines of it that are public; the private sentences begin there",
        "words": "as many as the model knows, less [PAD], [CLS], [SEP] and [MASK]",
    }
    # A table of places takes sentences of at most as many.
    lengths = sorted({min(one, LONGEST) for one in (*vocabularies, LONGEST) if one > 2}, reverse=True)
    for size in vocabularies if words is None else vocabularies[:1]:
        for targets, length in product(("classes", "causal_lm"), lengths):
            of_words: dict[str, Any] = {
                "public_text": path.as_posix() if public_text is None else Path(public_text).as_posix(),
                "words": size - 4,
            }
            if words is not None:
                vocabulary, merges = words
                of_words = {"vocabulary": vocabulary} | ({} if merges is None else {"merges": merges})
            elif size < 6:
                continue
            yield DataTable(
                table={**table, **of_words, **apart, "length": length, "targets": targets},
                about=f"{rows:,} sentences; drawn by the seed, so that a larger count begins with the same ones",
                comments=told if words is not None else counted,
                said=said,
            )


def _folder(path: Path, count: int, size: tuple[int, int] | None) -> Iterator[DataTable]:
    files = pictures_of(path)
    every = [file for inside in files.values() for file in inside]
    sizes = Counter[tuple[int, int]]()
    modes = Counter[str]()
    for file in every[:200]:
        with picture_of(file) as picture:
            sizes[(picture.height, picture.width)] += 1
            modes[picture.mode] += 1
    if size is None and len(sizes) > 1:
        seen = ", ".join(f"{height}x{width}" for height, width in list(sizes)[:5])
        raise InputError(
            f"{path}: expected images of one size, got {seen}; say what the model takes by --size HEIGHTxWIDTH"
        )
    sized = {} if size is None else {"height": size[0], "width": size[1]}
    gray = all(mode in ("L", "1", "LA") or mode.startswith("I") for mode in modes)
    for channels in (1, 3) if gray else (3, 1):
        yield DataTable(
            table={
                "use": "image_folder",
                "path": path.as_posix(),
                "count": min(count, len(every)),
                "channels": channels,
                **sized,
            },
            about=f"{len(every):,} images of {len(files)} classes: {', '.join(list(files)[:8])}",
            comments={
                "channels": "1 gray, 3 color; also mean = [...] and std = [...] where the model takes normalized images"
            },
            classes=len(files),
        )

"""The part of a long table beyond the rows that are shown: made when it is asked for, and summarized in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    MOST,
    Badge,
    Block,
    Chip,
    Column,
    Hint,
    Inline,
    Style,
    Table,
    Tag,
    Text,
    Words,
    labels,
    numbers,
    pieces,
    plain,
)
from gradleak.reporting.numerals import MISSING, Quantity, decimal

# So many different words of a column are told apart, and so many are named.
_APART, _NAMED = 1000, 4
# What is said of entries of a list, and of pictures, that a page leaves out.
MORE = "more stand in the record."
BESIDE = "more, not as near, stand in the record, and their pictures beside it."
# A release has some ten scores.
MOST_SCORES = 10 * MOST
STAND_IN_RECORD = (
    "of releases that came out no worse stand in the record; the JSON document has the range of each score by scenario."
)
# Columns of a row side by side; below the first share of a column a number is no news, below the second it is a copy.
MOST_COLUMNS, _FINE, _SMALL = 12, 0.01, 1e-3
One = TypeVar("One")


class Rows(Sequence[Sequence[Words]], Generic[One]):
    """Rows of a table, each made when it is shown, so that a page of thousands holds those alone that it shows.

    Args:
        of: what the rows tell of, one a row.
        make: the cells of a row.
    """

    def __init__(self, of: Sequence[One], make: Callable[[One], Sequence[Words]]) -> None:
        self._of, self._make = of, make

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self._make(one) for one in self._of[place]]
        return self._make(self._of[place])


def beyond(table: Table) -> Text | None:
    """A line on the rows beyond those that a page shows: ranges of numbers, counts of words; None where there are none.

    Args:
        table: whose rows are made one after the other, and not kept.
    """
    if table.most is None or len(table.rows) <= table.most:
        return None
    count = len(table.rows) - table.most
    head = f"**{count:,} {table.folded}**"
    if table.rest:
        return Text(parts=[[head, table.rest]], style=Style.FINE)
    tallies = [_Numbers(column) if column.numeric else _Labels(column) for column in table.columns]
    for place in range(table.most, len(table.rows)):
        for tally, cell in zip(tallies, table.rows[place], strict=True):
            tally.add(cell)
    told: list[Inline] = []
    for tally in tallies:
        said = tally.told(count)
        told += [*([";"] if told and said else []), *said]
    where = "stand in the record, in short:" if told else "stand in the record"
    return Text(parts=[[head, where, *told, "."]], style=Style.FINE)


class _Numbers:
    """Smallest and largest number of a column."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._least: tuple[float, str] | None = None
        self._most: tuple[float, str] | None = None
        self._without = 0

    def add(self, cell: Words) -> None:
        """Take a cell in."""
        found = next(filter(None, map(_number, pieces(cell))), None)
        if found is None:
            self._without += 1
            return
        self._least = found if self._least is None or found[0] < self._least[0] else self._least
        self._most = found if self._most is None or found[0] > self._most[0] else self._most

    def told(self, count: int) -> list[Inline]:
        """The range in words, and how many have no number."""
        if self._least is None or self._most is None:
            return []
        (_, low), (_, high) = self._least, self._most
        lacking = f"({self._without:,} without)" if self._without else ""
        badge = [Badge(self._column.evidence)] if self._column.evidence else []
        return [self._column.label, low if low == high else f"{low} to {high}", *badge, lacking]


class _Labels:
    """Words of a column, counted."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._found: Counter[str] = Counter()

    def add(self, cell: Words) -> None:
        """Take a cell in."""
        words = next(filter(None, map(_word, pieces(cell))), MISSING)
        if words in self._found or len(self._found) <= _APART:
            self._found[words] += 1

    def told(self, count: int) -> list[Inline]:
        """The words, each with its number; of many how many there are, and nothing of more than are told apart."""
        different = len(self._found)
        if self._column.why or set(self._found) <= {MISSING, ""} or different == count or different > _APART:
            return []
        if different > _NAMED:
            return [self._column.label, f"of {different:,} kinds"]
        return [self._column.label, ", ".join(f"{words} ({times:,})" for words, times in self._found.most_common())]


def _number(piece: Inline) -> tuple[float, str] | None:
    """A number and how it is printed; counts are texts."""
    if isinstance(piece, Quantity):
        return None if piece.value is None else (piece.value, piece.text)
    try:
        return (float(piece.replace(",", "")), piece) if isinstance(piece, str) else None
    except ValueError:
        return None


def _word(piece: Inline) -> str:
    if isinstance(piece, str):
        return plain(piece)
    if isinstance(piece, Chip):
        return piece.verdict.value if piece.verdict else ""
    return piece.text if isinstance(piece, Tag | Hint | Quantity) else ""


def side_by_side(true: Sequence[Sequence[float]], claimed: Sequence[Sequence[float]]) -> list[Block]:
    """The true row and the rebuilt one that are nearest to each other, column by column.

    Args:
        true: rows in the units of the data.
        claimed: rebuilt ones.
    """
    width = len(true[0]) if true else 0
    pairs = [(a, b) for a in true for b in claimed if len(a) == len(b) == width]
    if not pairs:
        return []
    spans = [max(_FINE, *map(abs, column)) for column in zip(*(row for pair in pairs for row in pair), strict=True)]
    near = min(pairs, key=lambda pair: sum(((a - b) / span) ** 2 for a, b, span in zip(*pair, spans, strict=True)))
    columns = [*labels("Row"), *numbers(*(f"Column {place + 1}" for place in range(min(width, MOST_COLUMNS))))]
    shown: list[list[Words]] = []
    for name, row in zip(("True", "Rebuilt"), near, strict=True):
        # What is small beside its column is no news to a reader.
        told = [0.0 if abs(value) < _SMALL * span else value for value, span in zip(row, spans, strict=True)]
        shown.append([name, *map(decimal, told[:MOST_COLUMNS])])
    further = f"the first {MOST_COLUMNS} of {width} columns, in the units of the data" if width > MOST_COLUMNS else ""
    return [Table(columns=columns, rows=shown, caption=further, single=True)]


def support_terms() -> list[Block]:
    """Meaning of the words about pictures out of a generator."""
    parts: list[Words] = [[name, meaning] for name, meaning in words.SUPPORT_MEANINGS.items()]
    return [
        Text(parts=["Pictures out of a generator, and what the update itself says of them"], style=Style.HEADING),
        Text(parts=parts, style=Style.TERMS),
    ]

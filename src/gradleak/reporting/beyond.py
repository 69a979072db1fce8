"""The part of a long table beyond the rows that are shown: made when it is asked for, and summarized in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from gradleak.reporting.blocks import (
    MOST,
    Badge,
    Chip,
    Column,
    Hint,
    Inline,
    Style,
    Table,
    Tag,
    Text,
    Words,
    pieces,
    plain,
)
from gradleak.reporting.numerals import MISSING, Quantity

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

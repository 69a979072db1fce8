"""Column of a table: its meaning, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gradleak.core import Domain, DomainKind
from gradleak.results import InputError


class ColumnKind(StrEnum):
    """Kind of the cells of a column, and of the inputs that they make."""

    NUMBER = "number"
    """A number v; one input, (v - low) / (high - low)."""
    AMOUNT = "amount"
    """A number whose largest values lie far above the others; one input, log(1 + v - low) / log(1 + high - low)."""
    CATEGORY = "category"
    """One of m strings or codes; m inputs, 1 for the value of the row and 0 for the others."""
    ONE_HOT = "one_hot"
    """m columns of 0 and 1 with exactly one 1, which are one category; m inputs."""
    LABEL = "label"
    """One of m strings that is never an input: a target, a sensitive variable outside the inputs, an owner."""


class Encoding(StrEnum):
    """Inputs that a category or one-hot group makes."""

    ONE_HOT = "one_hot"
    """As many as it has values: 1 for the value of the row, 0 for the others."""
    CODES = "codes"
    """One, in [0, 1]: the place of the value in the alphabetical list of the m values, over m - 1."""


_NUMERIC = (ColumnKind.NUMBER, ColumnKind.AMOUNT)


@dataclass(frozen=True, kw_only=True)
class Column:
    """The public description of one column: its kind and its range or its values.

    Nothing here is fitted on the rows that the table holds. Ranges and values are stated by whoever describes the table,
    from a codebook or other public knowledge; a cell outside of them is an error and not a reason to widen them, since a
    range taken from private rows would tell their largest value to everybody who is told the scaling.

    Attributes:
        name: as in the header of the file.
        kind: see `ColumnKind`.
        low: of a number, the smallest value it can take.
        high: of a number, the largest; None for a number that is no input (then it stays in its own unit).
        values: of a category, its values in the order of their codes. A label may leave them out: they are then the
            different strings of the file, sorted. For the columns of a one-hot group they are the names to print, by
            default those of the columns.
        members: of a one-hot group, the columns of the file that make it up.
        source: the column that this one was made from (by `Table.cut` or `Table.regroup`); wherever this one is taken out of
            the inputs, that one is too.

    Raises:
        InputError: for a range, values or members that do not fit the kind.
    """

    name: str
    kind: ColumnKind = ColumnKind.NUMBER
    low: float = 0.0
    high: float | None = None
    values: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    source: str | None = None

    def __post_init__(self) -> None:
        """Check that range, values and members belong to the kind."""
        if self.kind not in tuple(ColumnKind):
            raise InputError(f"column {self.name}: expected a kind of {', '.join(ColumnKind)}, got {self.kind!r}")
        object.__setattr__(self, "kind", ColumnKind(self.kind))
        for field in ("values", "members"):
            given = getattr(self, field)
            if isinstance(given, str):
                raise InputError(f"column {self.name}: expected several {field}, got the string {given!r}")
            object.__setattr__(self, field, tuple(given))
            if len(set(getattr(self, field))) < len(getattr(self, field)):
                raise InputError(f"column {self.name}: expected different {field}, got {getattr(self, field)}")
        if self.kind is ColumnKind.ONE_HOT and not self.values:
            object.__setattr__(self, "values", self.members)
        if self.is_number:
            self._check_range()
        elif self.kind is ColumnKind.CATEGORY and len(self.values) < 2:
            raise InputError(
                f"column {self.name}: expected its values (at least two), got {self.values}; state them from the codebook"
            )
        if (self.kind is ColumnKind.ONE_HOT) != bool(self.members):
            raise InputError(
                f"column {self.name}: members belong to a one-hot group, and it needs them; got {self.members}"
            )
        if self.kind is ColumnKind.ONE_HOT and not 2 <= len(self.members) == len(self.values):
            raise InputError(
                f"column {self.name}: expected at least two members and as many values, got {len(self.members)} and "
                f"{len(self.values)}"
            )

    @property
    def is_number(self) -> bool:
        """True if its cells are numbers, not codes of values."""
        return self.kind in _NUMERIC

    @property
    def width(self) -> int:
        """The number of inputs it makes, one-hot."""
        return 1 if self.is_number else len(self.values)

    @property
    def entries(self) -> tuple[str, ...]:
        """A name for each of its inputs."""
        return self.entries_of(Encoding.ONE_HOT)

    def entries_of(self, encoding: Encoding | str) -> tuple[str, ...]:
        """A name for each of its inputs in this encoding."""
        if self.is_number or Encoding(encoding) is Encoding.CODES:
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.values)

    def encode(
        self, cells: NDArray[np.float64] | NDArray[np.int64], encoding: Encoding | str = Encoding.ONE_HOT
    ) -> NDArray[np.float64]:
        """Its inputs, (n, width) in [0, 1], or (n, 1) as codes, from the cells that `Table` holds.

        Args:
            cells: numbers (n,) float64, or codes of values (n,) int64.
            encoding: of values; numbers are the same in both.

        Raises:
            InputError: for a number without a range, or an unknown encoding.

        Examples:
            >>> Column(name="age", high=90.0).encode(np.array([45.0])).tolist()
            [[0.5]]
            >>> Column(name="ward", kind="category", values=("C", "A", "B")).encode(np.array([0, 1, 2]), "codes").tolist()
            [[1.0], [0.0], [0.5]]
        """
        if encoding not in tuple(Encoding):
            raise InputError(f"column {self.name}: expected an encoding of {', '.join(Encoding)}, got {encoding!r}")
        if not self.is_number and Encoding(encoding) is Encoding.CODES:
            # The stated values, not those of the rows, are what is put in order.
            places = np.argsort(np.argsort(np.array(self.values)))
            return (places / (len(self.values) - 1))[cells.astype(np.int64)][:, None].astype(np.float64)
        if not self.is_number:
            return np.eye(len(self.values))[cells.astype(np.int64)]
        if self.high is None:
            raise InputError(
                f"column {self.name}: expected its range (low, high) for an input, got none; state it from the codebook, "
                "not from the rows"
            )
        if self.kind is ColumnKind.AMOUNT:
            scaled = np.log1p(cells - self.low) / math.log1p(self.high - self.low)
        else:
            scaled = (cells - self.low) / (self.high - self.low)
        return scaled[:, None].astype(np.float64)

    def parse(self, texts: Sequence[str], places: Sequence[str]) -> NDArray[np.float64] | NDArray[np.int64]:
        """The cells of a column as numbers or codes.

        Args:
            texts: the cells of one column, or of the members of a one-hot group joined by a tab.
            places: where each stands, for messages.

        Raises:
            InputError: naming the first cell that does not fit.
        """
        if self.is_number:
            return self._numbers(texts, places)
        if self.members:
            return np.array(
                [self._group(text, place) for text, place in zip(texts, places, strict=True)], dtype=np.int64
            )
        codes = {value: code for code, value in enumerate(self.values)}
        found = np.array([codes.get(text, -1) for text in texts], dtype=np.int64)
        if (found < 0).any():
            row = int((found < 0).argmax())
            raise InputError(
                f"{places[row]}, column {self.name}: expected one of {', '.join(self.values)}; got {texts[row]!r}"
            )
        return found

    def _check_range(self) -> None:
        if self.values:
            raise InputError(f"column {self.name}: values belong to a category or a label, not to a {self.kind}")
        limits = [self.low, *([] if self.high is None else [self.high])]
        if not all(math.isfinite(limit) for limit in limits) or limits != sorted(set(limits)):
            raise InputError(f"column {self.name}: expected finite low < high, got low={self.low}, high={self.high}")

    def _numbers(self, texts: Sequence[str], places: Sequence[str]) -> NDArray[np.float64]:
        numbers = np.array([_float(text) for text in texts])
        for row in np.flatnonzero(~np.isfinite(numbers))[:1]:
            raise InputError(f"{places[row]}, column {self.name}: expected a finite number, got {texts[row]!r}")
        if self.high is not None:
            for row in np.flatnonzero((numbers < self.low) | (numbers > self.high))[:1]:
                raise InputError(
                    f"{places[row]}, column {self.name}: expected {self.low:g} to {self.high:g}, got {texts[row]}; state the "
                    "range of the codebook, or clean the row"
                )
        return numbers

    def _group(self, text: str, place: str) -> int:
        """Place of the 1 in a one-hot group."""
        bits = [_float(part) for part in text.split("\t")]
        if sorted(bits) != [0.0] * (len(bits) - 1) + [1.0]:
            raise InputError(
                f"{place}, column {self.name}: expected one 1 and zeros in {', '.join(self.members)}, got "
                f"{', '.join(text.split(chr(9)))}"
            )
        return bits.index(1.0)


def scaled_domain(columns: Sequence[Column], encoding: Encoding | str = Encoding.ONE_HOT) -> Domain:
    """The domain of rows whose numbers are scaled to [0, 1] by their ranges, as `Table` has them, with its columns.

    Args:
        columns: in the order of the inputs; labels make none.
        encoding: of categories and one-hot groups.

    Examples:
        >>> columns = [Column(name="age", high=90.0), Column(name="sex", kind="category", values=("f", "m"))]
        >>> scaled_domain(columns).columns
        (1, 2)
    """
    widths = _widths(columns, encoding)
    return Domain(shape=(sum(widths),), kind=DomainKind.TABULAR, columns=widths)


def raw_domain(columns: Sequence[Column], encoding: Encoding | str = Encoding.ONE_HOT) -> Domain:
    """The domain of rows whose numbers stand in their own units: a range for every entry, from the descriptions.

    For models that take ages as ages. `Table` scales every column to [0, 1] by its range, so that rows of a
    `Population` need no more than the default range.

    Args:
        columns: in the order of the inputs; labels make none.
        encoding: of categories and one-hot groups.

    Raises:
        InputError: for a number without a range, or no input.

    Examples:
        >>> sex = Column(name="sex", kind="category", values=("f", "m"))
        >>> domain = raw_domain([Column(name="age", low=16.0, high=90.0), sex])
        >>> domain.low, domain.high
        ((16.0, 0.0, 0.0), (90.0, 1.0, 1.0))
    """
    ends: list[tuple[float, float]] = []
    for column in columns:
        if column.is_number and column.high is None:
            raise InputError(
                f"column {column.name}: expected its range (low, high), got none; state it from the codebook"
            )
        own = (column.low, 1.0 if column.high is None else column.high)
        if column.kind is not ColumnKind.LABEL:
            ends += [own if column.is_number else (0.0, 1.0)] * len(column.entries_of(encoding))
    low, high = (tuple(float(end[place]) for end in ends) for place in (0, 1))
    return Domain(shape=(len(ends),), low=low, high=high, kind=DomainKind.TABULAR, columns=_widths(columns, encoding))


def _widths(columns: Sequence[Column], encoding: Encoding | str) -> tuple[int, ...]:
    """The number of inputs that each column makes."""
    return tuple(len(column.entries_of(encoding)) for column in columns if column.kind is not ColumnKind.LABEL)


def _float(text: str) -> float:
    """The number that a text is; NaN for none."""
    try:
        return float(text)
    except ValueError:
        return math.nan

"""Records of an audit: the place of the attribute, and the numbers that make a valid one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradleak.data import Column, ColumnKind, Encoding, Table
from gradleak.results import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordAttribute:
    """One attribute of a record: the entries of the input that hold it, and what each of its m values writes there.

    Attributes:
        name: of the attribute.
        values: names of its m values.
        places: of the entries in a flat input.
        codes: what a value writes into them, (m, entries).

    Raises:
        InputError: for fewer than two values, or shapes that disagree.

    Examples:
        >>> sex = RecordAttribute(name="sex", values=("f", "m"), places=(1, 2), codes=torch.eye(2))
        >>> sex.with_value(torch.tensor([[0.5, 1.0, 0.0]]), 1).tolist()
        [[0.5, 0.0, 1.0]]
        >>> sex.value_of(torch.tensor([0.5, 1.0, 0.0]))
        0
    """

    name: str
    values: Sequence[str]
    places: tuple[int, ...]
    codes: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        """Check the shapes."""
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "places", tuple(int(place) for place in self.places))
        if len(self.values) < 2 or tuple(self.codes.shape) != (len(self.values), len(self.places)) or not self.places:
            raise InputError(
                f"attribute {self.name}: expected at least two values and codes (values, entries), got "
                f"{len(self.values)} values, {len(self.places)} entries and {tuple(self.codes.shape)}"
            )
        if min(self.places) < 0 or len(set(self.places)) < len(self.places):
            raise InputError(f"attribute {self.name}: expected different entries from 0, got {list(self.places)}")
        if len(torch.unique(self.codes, dim=0)) < len(self.values):
            raise InputError(f"attribute {self.name}: expected a code of its own for every value")

    @classmethod
    def of(
        cls,
        table: Table,
        attribute: str,
        *,
        without: Sequence[str] = (),
        encoding: Encoding | str = Encoding.ONE_HOT,
    ) -> RecordAttribute:
        """The attribute that a column of a table is, where `table.inputs(without=..., encoding=...)` writes it.

        Args:
            table: with its columns described.
            attribute: a category or one-hot group among the inputs.
            without: columns that are no inputs.
            encoding: of categories and one-hot groups.

        Raises:
            InputError: for a column of numbers, a label, or one that is no input.
        """
        place = 0
        for column in input_columns(table, without):
            width = len(column.entries_of(encoding))
            if column.name == attribute:
                if column.is_number:
                    break
                codes = torch.from_numpy(column.encode(np.arange(len(column.values)), encoding)).float()
                return cls(name=attribute, values=column.values, places=tuple(range(place, place + width)), codes=codes)
            place += width
        table.column(attribute)
        raise InputError(
            f"attribute {attribute}: expected a category or one-hot group among the inputs of {table.name}, got a "
            f"{table.column(attribute).kind}; the game replaces it by another of its values"
        )

    def value_of(self, record: Tensor) -> int:
        """Value of a flat record, from 0: the nearest code."""
        held = record.reshape(-1)[list(self.places)]
        return int((self.codes.to(held) - held).square().sum(dim=1).argmin())

    def with_value(self, records: Tensor, value: int) -> Tensor:
        """Copies of records (n, *shape) that have this value; differentiable in the other entries."""
        flat = records.reshape(len(records), -1)
        written = self.codes[value].to(flat).expand(len(flat), -1)
        return flat.index_copy(1, torch.tensor(self.places, device=flat.device), written).reshape(records.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordConstraints:
    """Constraints that make a vector of numbers a valid record: ranges of its entries, one-hot groups, and few levels.

    Attributes:
        low: smallest value of every entry, (d,).
        high: largest.
        groups: entries of which exactly one is 1 and the others 0.
        levels: by entry, the values that it can have (a category written as a code).

    Raises:
        InputError: for ranges or entries that do not fit.

    Examples:
        >>> rules = RecordConstraints(low=torch.zeros(3), high=torch.ones(3), groups=((1, 2),))
        >>> rules.nearest(torch.tensor([[1.5, -0.2, -0.1]])).tolist()
        [[1.0, 0.0, 1.0]]
    """

    low: Tensor = field(repr=False)
    high: Tensor = field(repr=False)
    groups: tuple[tuple[int, ...], ...] = ()
    levels: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check ranges and entries."""
        if self.low.dim() != 1 or self.low.shape != self.high.shape or not bool((self.low <= self.high).all()):
            raise InputError(
                f"RecordConstraints: expected low <= high, (d,) each, got {tuple(self.low.shape)} and "
                f"{tuple(self.high.shape)}"
            )
        named = [place for group in self.groups for place in group] + list(self.levels)
        if len(set(named)) < len(named) or not all(0 <= place < len(self.low) for place in named):
            raise InputError(
                f"RecordConstraints: expected every entry in one group or with levels at most, from 0 to "
                f"{len(self.low) - 1}"
            )

    @classmethod
    def of(
        cls,
        table: Table,
        *,
        without: Sequence[str] = (),
        encoding: Encoding | str = Encoding.ONE_HOT,
        rows: Tensor | None = None,
    ) -> RecordConstraints:
        """The constraints that the columns of a table state, within the ranges of some rows where those are given.

        Args:
            table: with its columns described.
            without: columns that are no inputs.
            encoding: of categories and one-hot groups.
            rows: public rows (n, d), whose smallest and largest numbers are the ranges; None for those of the columns.
        """
        groups, levels, place = [], {}, 0
        for column in input_columns(table, without):
            width = len(column.entries_of(encoding))
            if not column.is_number and width > 1:
                groups.append(tuple(range(place, place + width)))
            elif not column.is_number:
                codes = column.encode(np.arange(len(column.values)), encoding)[:, 0]
                levels[place] = tuple(float(code) for code in np.sort(codes))
            place += width
        low, high = torch.zeros(place), torch.ones(place)
        if rows is not None:
            flat = rows.reshape(len(rows), -1)
            if flat.shape[1] != place:
                raise InputError(f"RecordConstraints: expected rows of {place} entries, got {flat.shape[1]}")
            low, high = flat.amin(dim=0), flat.amax(dim=0)
        return cls(low=low, high=high, groups=tuple(groups), levels=levels)

    def nearest(self, records: Tensor) -> Tensor:
        """The valid records (n, d) next to these: numbers cut to their range, the largest of a group 1, levels rounded."""
        found = torch.minimum(torch.maximum(records, self.low.to(records)), self.high.to(records))
        for group in self.groups:
            largest = records[:, list(group)].argmax(dim=1)
            found[:, list(group)] = torch.nn.functional.one_hot(largest, len(group)).to(records)
        for place, values in self.levels.items():
            known = torch.tensor(values).to(records)
            found[:, place] = known[(records[:, place, None] - known).abs().argmin(dim=1)]
        return found

    def within(self, records: Tensor) -> Tensor:
        """Records (n, d) with their numbers cut to the ranges; groups as they are."""
        free = torch.ones(len(self.low), dtype=torch.bool, device=records.device)
        free[[place for group in self.groups for place in group]] = False
        cut = torch.minimum(torch.maximum(records, self.low.to(records)), self.high.to(records))
        return torch.where(free, cut, records)

    def holds(self, records: Tensor) -> bool:
        """True if records (n, d) are valid."""
        return torch.equal(self.nearest(records), records)


def input_columns(table: Table, without: Sequence[str]) -> list[Column]:
    """The columns that make the inputs, in their order, as `Table.inputs` takes them."""
    described = [table.column(name) for name in without]
    left_out = {column.name for column in described} | {column.source for column in described if column.source}
    return [column for column in table.columns if column.kind is not ColumnKind.LABEL and column.name not in left_out]

"""One's own table: rows of numbers and strings with a description of every column."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.data.column import Column, ColumnKind, Encoding, scaled_domain
from gradleak.data.population import Population
from gradleak.results import InputError
from gradleak.results.files import expect_file

Cells = NDArray[np.float64] | NDArray[np.int64]


def text_rows(
    path: str | os.PathLike[str], *, delimiter: str = ",", comment: str | None = None
) -> Iterator[tuple[list[str], str]]:
    """The rows of a delimited text file with the line that each ends in, such as "cases.csv, line 3".

    Args:
        path: UTF-8 text. Spaces around a cell and empty lines mean nothing.
        delimiter: one character; " " stands for any run of spaces.
        comment: lines that begin so are left out.

    Raises:
        InputError: for no such file, another encoding, or a quote without end.
    """
    file = expect_file(path, "a text file of rows")
    spaces = delimiter == " "
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=spaces, strict=True)
            for row in reader:
                cells = [cell.strip() for cell in row]
                while spaces and cells and not cells[-1]:
                    cells.pop()
                if any(cells) and not (comment and row[0].startswith(comment)):
                    yield cells, f"{file.name}, line {reader.line_num}"
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a text file of rows in UTF-8 ({error}); save it as UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{file}: not a text file of rows ({error}); check the delimiter and the quotes") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows whose columns are described, before it is decided what is target, input or secret.

    The description is public; it is never fitted on the rows (see `Column`). `Table.read` makes one from a delimited text
    file and `Table.from_rows` from rows in memory.

    Attributes:
        name: for tables and messages.
        columns: their descriptions, in the order of the inputs.
        cells: by column, numbers (n,) float64 or codes of its values (n,) int64.
        dropped: rows left out because a cell was missing.

    Raises:
        InputError: for no rows, two columns of one name, or cells that do not fit the columns.

    Examples:
        >>> columns = [Column(name="age", high=90.0), Column(name="sex", kind="category", values=("f", "m"))]
        >>> columns += [Column(name="paid", kind="label", values=("no", "yes"))]
        >>> table = Table.from_rows([(45, "f", "yes"), (18, "m", "no")], columns=columns, name="two rows")
        >>> table.population(target="paid", sensitive="sex", keep_sensitive=True).inputs.tolist()
        [[0.5, 1.0, 0.0], [0.20000000298023224, 0.0, 1.0]]
        >>> table.population(target="paid", sensitive="sex", keep_sensitive=False).inputs.tolist()
        [[0.5], [0.20000000298023224]]
    """

    name: str
    columns: tuple[Column, ...]
    cells: Mapping[str, Cells] = field(repr=False)
    dropped: int = 0

    def __repr__(self) -> str:
        """One line: name and sizes."""
        return f"Table({self.name!r}, {self.size:,} rows, {len(self.columns)} columns)"

    def __post_init__(self) -> None:
        """Check that names differ and that every column has a cell in every row."""
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise InputError(f"table {self.name}: expected columns of different names, got {names}")
        if set(self.cells) != set(names):
            raise InputError(f"table {self.name}: expected cells of {names}, got {list(self.cells)}")
        sizes = {len(cells) for cells in self.cells.values()}
        if len(sizes) > 1 or sizes == {0}:
            raise InputError(
                f"table {self.name}: expected as many rows in every column, at least one, got {sorted(sizes)}"
            )
        for column in self.columns:
            cells = self.cells[column.name]
            if column.is_number and not np.isfinite(cells).all():
                raise InputError(
                    f"table {self.name}, column {column.name}: expected finite numbers, got NaN or infinity"
                )
            if not column.is_number and not (cells.min() >= 0 and cells.max() < len(column.values)):
                raise InputError(
                    f"table {self.name}, column {column.name}: expected codes from 0 to {len(column.values) - 1}, got "
                    f"{cells.min()} to {cells.max()}"
                )

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[Column],
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        missing: str = "?",
        drop_missing: bool = False,
        comment: str | None = None,
        name: str | None = None,
    ) -> Table:
        """A table from a delimited text file; columns of the file that no description names are left out.

        Args:
            path: UTF-8 text. Spaces around a cell and empty lines mean nothing.
            columns: what the columns are, in the order wanted for the inputs.
            header: true where the first line holds the names of the columns; their names, in the order of the file, where
                it has no such line.
            delimiter: one character; " " stands for any run of spaces.
            missing: how the file writes an unknown cell. Where a column has it among its `values`, unknown is a value
                like another.
            drop_missing: leave out rows with an unknown cell, and count them in `dropped`, in place of an error.
            comment: lines that begin so are left out.
            name: of the table; by default the file's.

        Raises:
            InputError: for no such file, or with the number of the line: too few or too many fields, a value not in
                `values`, a number out of range or not finite, an unknown cell.

        Cost:
            About a microsecond a cell.
        """
        found = [*text_rows(path, delimiter=delimiter, comment=comment)]
        rows: list[Sequence[str]] = [row for row, _ in found]
        places = [place for _, place in found]
        if header is True:
            names: Sequence[str] = rows[0] if rows else ()
            rows, places = rows[1:], places[1:]
        elif header is False:
            names = [column.name for column in columns]
        else:
            names = header
        return cls._of(name or Path(path).stem, rows, places, names, columns, missing, drop_missing)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[object]],
        *,
        columns: Sequence[Column],
        header: Sequence[str] | None = None,
        missing: str = "?",
        drop_missing: bool = False,
        name: str = "table",
    ) -> Table:
        """A table from rows in memory: strings, or numbers, which are read as they print.

        Args:
            rows: one sequence of cells a row.
            columns: what the columns are, in the order wanted for the inputs.
            header: names of the cells of a row, in order; by default those of `columns`.
            missing: how an unknown cell is written.
            drop_missing: leave out rows with an unknown cell in place of an error.
            name: of the table.

        Raises:
            InputError: as `read`, with the number of the row, from 0.
        """
        texts = [[str(cell).strip() for cell in row] for row in rows]
        names = header if header is not None else [column.name for column in columns]
        places = [f"{name}, row {number}" for number in range(len(texts))]
        return cls._of(name, texts, places, names, columns, missing, drop_missing)

    @classmethod
    def _of(
        cls,
        name: str,
        rows: Sequence[Sequence[str]],
        places: Sequence[str],
        names: Sequence[str],
        columns: Sequence[Column],
        missing: str,
        drop_missing: bool,
    ) -> Table:
        wanted = [member for column in columns for member in (column.members or (column.name,))]
        absent = [member for member in wanted if member not in names]
        if absent or len(set(names)) < len(names):
            raise InputError(
                f"{name}: expected the columns {', '.join(absent or wanted)}, each once; the header has {', '.join(names)}"
            )
        for row, place in zip(rows, places, strict=True):
            if len(row) != len(names):
                raise InputError(f"{place}: expected {len(names)} fields, got {len(row)}")
        at = {member: list(names).index(member) for member in wanted}
        texts = {
            column.name: ["\t".join(row[at[member]] for member in column.members) for row in rows]
            if column.members
            else [row[at[column.name]] for row in rows]
            for column in columns
        }
        kept = np.ones(len(rows), dtype=bool)
        for column in columns:
            if missing in column.values:
                continue
            unknown = np.array(
                [missing in text.split("\t") if column.members else text == missing for text in texts[column.name]]
            )
            if unknown.any() and not drop_missing:
                raise InputError(
                    f"{places[int(unknown.argmax())]}, column {column.name}: {int(unknown.sum())} cells are unknown "
                    f"({missing!r}); name {missing!r} among its values, or pass drop_missing=True"
                )
            kept &= ~unknown
        chosen = np.flatnonzero(kept).tolist()
        if not chosen:
            raise InputError(
                f"{name}: expected at least one row, got {len(rows)} of which {len(rows)} have unknown cells"
            )
        described, cells = [], {}
        for column in columns:
            own = [texts[column.name][row] for row in chosen]
            if column.kind is ColumnKind.LABEL and not column.values:
                column = replace(column, values=tuple(sorted(set(own))))
            cells[column.name] = column.parse(own, [places[row] for row in chosen])
            described.append(column)
        return cls(name=name, columns=tuple(described), cells=cells, dropped=len(rows) - len(chosen))

    @property
    def size(self) -> int:
        """The number of rows, n."""
        return len(next(iter(self.cells.values())))

    def column(self, name: str) -> Column:
        """The description of a column.

        Raises:
            InputError: if there is none of this name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise InputError(
            f"table {self.name}: expected one of its columns {', '.join(column.name for column in self.columns)}; got {name!r}"
        )

    def cut(self, column: str, *, edges: Sequence[float], names: Sequence[str] = (), into: str = "") -> Table:
        """The table with one more column, a label: the bin in which a number lies.

        With edges e₁ < … < eₖ the bins are v ≤ e₁, e₁ < v ≤ e₂, …, v > eₖ. The number itself stays; where the bins are
        the target or a property, it is taken out of the inputs together with them.

        Args:
            column: a number or an amount.
            edges: in increasing order and in the unit of the column; stated, not taken from the rows.
            names: of the bins, one more than edges; by default made from the edges.
            into: name of the new column; by default "<column> bin".

        Raises:
            InputError: for a column that holds no numbers, or edges and names that do not fit.

        Examples:
            >>> ages = Table.from_rows([(30,), (31,), (80,)], columns=[Column(name="age", high=116.0)])
            >>> ages.cut("age", edges=(30, 60)).cells["age bin"].tolist()
            [0, 1, 2]
        """
        described = self.column(column)
        if not described.is_number:
            raise InputError(f"table {self.name}: expected a column of numbers to cut, got {column} ({described.kind})")
        limits = [float(edge) for edge in edges]
        if not limits or limits != sorted(set(limits)):
            raise InputError(f"Table.cut: expected edges in increasing order, got {list(edges)}")
        if not names:
            middle = [f"above {low:g}, up to {high:g}" for low, high in pairwise(limits)]
            names = [f"up to {limits[0]:g}", *middle, f"above {limits[-1]:g}"]
        if len(names) != len(limits) + 1:
            raise InputError(f"Table.cut: expected {len(limits) + 1} names for {len(limits)} edges, got {list(names)}")
        new = Column(name=into or f"{column} bin", kind=ColumnKind.LABEL, values=tuple(names), source=column)
        codes = np.searchsorted(np.array(limits), self.cells[column], side="left").astype(np.int64)
        return replace(self, columns=(*self.columns, new), cells={**self.cells, new.name: codes})

    def regroup(self, column: str, *, groups: Mapping[str, Sequence[str]], into: str) -> Table:
        """The table with one more column, a label: the group that the value of a category belongs to.

        Where the group is the target or a property, the category is taken out of the inputs together with it.

        Args:
            column: a category, label or one-hot group.
            groups: name of a group → the values in it; every value of the column once. The codes are in this order.
            into: name of the new column.

        Raises:
            InputError: for a column of numbers, or groups that leave out or repeat a value or name an unknown one.

        Examples:
            >>> codes = Table.from_rows([("A92",), ("A93",)], columns=[Column(name="status", kind="label")])
            >>> codes.regroup("status", groups={"f": ["A92"], "m": ["A93"]}, into="sex").cells["sex"].tolist()
            [0, 1]
        """
        described = self.column(column)
        members = [value for group in groups.values() for value in group]
        if described.is_number or sorted(members) != sorted(described.values):
            raise InputError(
                f"Table.regroup: expected each value of {column} in one group, {', '.join(described.values) or 'and values'}; "
                f"got {', '.join(members)}"
            )
        code = {value: place for place, group in enumerate(groups.values()) for value in group}
        new = Column(name=into, kind=ColumnKind.LABEL, values=tuple(groups), source=column)
        codes = np.array([code[value] for value in described.values], dtype=np.int64)[self.cells[column]]
        return replace(self, columns=(*self.columns, new), cells={**self.cells, into: codes})

    def inputs(
        self, *, without: Sequence[str] = (), encoding: Encoding | str = Encoding.ONE_HOT
    ) -> tuple[Tensor, tuple[str, ...]]:
        """The inputs that all columns but these make, (n, d) float32 in [0, 1], and a name for each entry.

        Labels make none.

        Args:
            without: names of columns to leave out; those that they were cut from are left out too.
            encoding: of categories and one-hot groups, see `Encoding`.

        Raises:
            InputError: if no column is left, a number has no range, or there is no such column or encoding.
        """
        used = self._used(without)
        inputs = self._encode(used, encoding)
        return inputs, tuple(entry for column in used for entry in column.entries_of(encoding))

    def population(
        self,
        *,
        target: str,
        sensitive: str,
        keep_sensitive: bool,
        side: Sequence[str] = (),
        users: str | None = None,
        without: Sequence[str] = (),
        regression: bool = False,
        encoding: Encoding | str = Encoding.ONE_HOT,
    ) -> Population:
        """The rows as a game plays on them: inputs, target, and the sensitive variable with its values.

        The target is no input. Proxies are not looked for: a property whose column is removed may still be written in
        another (the relationship "Husband" tells the sex); name such columns in `without` where that is not wanted.

        Args:
            target: a category or label; with `regression` a number or amount.
            sensitive: a category, label or one-hot group; a number after `cut`.
            keep_sensitive: true for attribute inference, where the sensitive column is among the inputs; false for a
                property, which is not (nor is the number that it was cut from).
            side: what the adversary knows of every row besides its gradient, φ(x), encoded like inputs; the target may be
                among them.
            users: the column that says who a row belongs to, or None.
            without: further columns that are no inputs.
            regression: targets as numbers (n, 1) float32, scaled like an input; in their own unit where the column states
                no range.
            encoding: of categories and one-hot groups among inputs and side, see `Encoding`; codes stand in the name of
                the population.

        Raises:
            InputError: for a column that is not there or of the wrong kind, a side column that is the sensitive one, or an
                unknown encoding.
        """
        described, aim = self.column(sensitive), self.column(target)
        if described.is_number:
            raise InputError(
                f"sensitive={sensitive!r}: expected values, got a {described.kind}; cut it first: table.cut({sensitive!r}, "
                "edges=...)"
            )
        if aim.is_number != regression:
            raise InputError(
                f"target={target!r}: expected {'a number' if regression else 'classes'} with regression={regression}, got a "
                f"{aim.kind}; cut a number into classes, or pass regression={not regression}"
            )
        secret = self._with_sources([sensitive])
        if secret & self._with_sources([target]):
            raise InputError(f"expected a target that is not the sensitive variable, got {target} and {sensitive}")
        if secret & self._with_sources(side):
            raise InputError(
                f"side: expected no column that holds the sensitive variable {sensitive}, got {list(side)}"
            )
        held = (described.source or "") if described.kind is ColumnKind.LABEL else sensitive
        if keep_sensitive and (not held or held in without):
            raise InputError(
                f"sensitive={sensitive!r}: expected a column among the inputs with keep_sensitive=True, got one that is not; "
                "pass keep_sensitive=False, or describe it as a category"
            )
        left_out = [target, *without, *([] if keep_sensitive else [sensitive])]
        inputs, _ = self.inputs(without=left_out, encoding=encoding)
        told = "" if Encoding(encoding) is Encoding.ONE_HOT else f", {encoding}"
        return Population(
            name=f"{self.name}: {sensitive}{told}",
            inputs=inputs,
            targets=self._targets(aim),
            sensitive=torch.from_numpy(self.cells[sensitive].astype(np.int64)),
            values=described.values,
            users=None if users is None else self._owners(users),
            side=self._encode([self.column(name) for name in side], encoding) if side else None,
            domain=scaled_domain(self._used(left_out), encoding),
            holds_sensitive=keep_sensitive,
        )

    def _used(self, without: Sequence[str]) -> list[Column]:
        """The columns that make inputs."""
        left_out = self._with_sources(without)
        used = [
            column for column in self.columns if column.kind is not ColumnKind.LABEL and column.name not in left_out
        ]
        if not used:
            raise InputError(
                f"table {self.name}: expected at least one column for the inputs, got none besides {left_out}"
            )
        return used

    def _with_sources(self, names: Sequence[str]) -> set[str]:
        """These columns and those that they were cut from."""
        if isinstance(names, str):
            raise InputError(f"expected several names of columns, got the string {names!r}")
        described = [self.column(name) for name in names]
        return {column.name for column in described} | {column.source for column in described if column.source}

    def _encode(self, columns: Sequence[Column], encoding: Encoding | str) -> Tensor:
        parts = [column.encode(self.cells[column.name], encoding) for column in columns]
        return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))

    def _targets(self, aim: Column) -> Tensor:
        cells = self.cells[aim.name]
        if not aim.is_number:
            return torch.from_numpy(cells.astype(np.int64))
        scaled = cells[:, None] if aim.high is None else aim.encode(cells)
        return torch.from_numpy(scaled.astype(np.float32))

    def _owners(self, users: str) -> Tensor:
        if self.column(users).is_number:
            raise InputError(f"users={users!r}: expected a label or category, got a {self.column(users).kind}")
        return torch.from_numpy(self.cells[users].astype(np.int64))

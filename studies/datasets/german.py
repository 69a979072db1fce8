"""The German credit data of UCI: 1,000 loans, good or bad, with the sex of the person inside a coded column."""

from __future__ import annotations

import os

from gradleak.data import Column, ColumnKind, Population, Table

_SEX = {"female": ("A92", "A95"), "male": ("A91", "A93", "A94")}


def german_credit(path: str | os.PathLike[str], *, sensitive: str = "sex", keep_sensitive: bool = False) -> Population:
    """The 1,000 rows of the Statlog German credit file, for an inference game; by default about the sex of the person.

    The sex is written in the codes of "personal-status" (A91, A93, A94 male; A92, A95 female), which says the marital status
    too. As a property both go out of the inputs; as an attribute that whole column stays.

    Args:
        path: `german.data`, the file with codes: 20 attributes and the class a line, separated by spaces.
        sensitive: "sex", or a column of codes, for instance "foreign-worker".
        keep_sensitive: true for attribute inference, where its column is among the 63 inputs; false for a property (58).

    Returns:
        Targets are 1 for a bad loan (300 rows).

    Raises:
        InputError: for a missing or unfit file, with the line, or a column that has no classes.

    Source:
        Hofmann 1994, "Statlog (German Credit Data)" (UCI).
    """
    return german_credit_table(path).population(target="risk", sensitive=sensitive, keep_sensitive=keep_sensitive)


def german_credit_table(path: str | os.PathLike[str]) -> Table:
    """The 1,000 rows of the Statlog German credit file with its 21 columns described, and a column "sex" made from the codes.

    The codes are all those of the codebook, also A47 and A95, which no row has. The codebook gives no ranges of the numbers;
    those here are round ones that hold for consumer loans of the time (at most 72 months, 20,000 marks, 100 years of age).

    Args:
        path: `german.data`, the file with codes.

    Raises:
        InputError: for a missing or unfit file, with the line.
    """
    columns = (
        _codes("checking-account", 1, 4),
        Column(name="months", high=72.0),
        _codes("credit-history", 3, 4, first=0),
        Column(name="purpose", kind=ColumnKind.CATEGORY, values=tuple(f"A4{code}" for code in range(11))),
        Column(name="amount", kind=ColumnKind.AMOUNT, high=20000.0),
        _codes("savings", 6, 5),
        _codes("employment", 7, 5),
        Column(name="rate", low=1.0, high=4.0),
        _codes("personal-status", 9, 5),
        _codes("debtors", 10, 3),
        Column(name="residence", low=1.0, high=4.0),
        _codes("property", 12, 4),
        Column(name="age", high=100.0),
        _codes("other-plans", 14, 3),
        _codes("housing", 15, 3),
        Column(name="credits", low=1.0, high=4.0),
        _codes("job", 17, 4),
        Column(name="dependents", low=1.0, high=2.0),
        _codes("telephone", 19, 2),
        _codes("foreign-worker", 20, 2),
        Column(name="risk", kind=ColumnKind.LABEL, values=("1", "2")),
    )
    table = Table.read(path, columns=columns, header=False, delimiter=" ", name="german credit")
    return table.regroup("personal-status", groups=_SEX, into="sex")


def _codes(name: str, attribute: int, last: int, *, first: int = 1) -> Column:
    """A column whose values are A<attribute><first> to A<attribute><last>, as the codebook writes them."""
    values = tuple(f"A{attribute}{code}" for code in range(first, last + 1))
    return Column(name=name, kind=ColumnKind.CATEGORY, values=values)

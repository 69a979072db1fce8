"""Few combinations of many settings: every pair of values meets at least once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(*values: Sequence[Any]) -> list[tuple[int, ...]]:
    """Places of the values of each combination, chosen greedily and the same in every run.

    Of two settings that is the whole product; of three with 10, 4 and 4 values it is about 40 of 160.
    """
    rows = list(product(*(range(len(column)) for column in values)))
    columns = list(combinations(range(len(values)), 2))
    missing = {(i, j, row[i], row[j]) for row in rows for i, j in columns}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: sum((i, j, row[i], row[j]) in missing for i, j in columns))
        missing -= {(i, j, best[i], best[j]) for i, j in columns}
        chosen.append(best)
    return sorted(chosen)


def each_value(*values: Sequence[Any]) -> list[tuple[int, ...]]:
    """Places of the values of each combination, so that every value of every setting comes up at least once."""
    longest = max(len(column) for column in values)
    return [tuple((place + shift) % len(column) for shift, column in enumerate(values)) for place in range(longest)]


def covering(names: str, *values: Sequence[Any], pairs: bool = True, ids: Any = None) -> pytest.MarkDecorator:
    """A parametrization by every combination, of which those that `pairwise` leaves out are slow.

    Args:
        names: Names of the test's arguments, with commas, the settings in the order of `values`.
        values: Values of each setting.
        pairs: Whether every pair of values runs unmarked; else every single value does.
        ids: A function from a value to its name.
    """
    quick = set(pairwise(*values) if pairs else each_value(*values))
    name = ids or (lambda value: getattr(value, "__name__", str(value)))
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                *(column[place] for column, place in zip(values, places, strict=True)),
                marks=[] if places in quick else [pytest.mark.slow],
                id="-".join(name(column[place]) for column, place in zip(values, places, strict=True)),
            )
            for places in product(*(range(len(column)) for column in values))
        ],
    )

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from gradleak.datasets import adult_census
from gradleak.results import InputError

pytestmark = pytest.mark.skipif(find_spec("xai") is None, reason="xai is not installed")


def test_rows_are_those_of_the_uci_file(shared: Path) -> None:
    """Held against the original file of UCI, which has the columns in the same order plus one."""
    with (shared / "data" / "adult" / "adult.data").open(encoding="utf-8") as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines) if len(row) == 15]
    data = adult_census(count=32561)
    assert data.size == len(rows) == 32561
    assert int(data.targets.sum()) == sum(row[-1] == ">50K" for row in rows)
    assert int(data.sensitive.sum()) == sum(row[9] == "Male" for row in rows)
    ages, hours = (sorted(int(row[place]) for row in rows) for place in (0, 12))
    assert torch.allclose(data.inputs[:, 0].sort().values * 90, torch.tensor(ages).float())
    assert torch.allclose(data.inputs[:, 2].sort().values * 99, torch.tensor(hours).float())
    assert float(data.inputs.min()) == 0.0
    assert float(data.inputs.max()) == 1.0
    # Seven columns of classes, one value each.
    assert torch.equal(data.inputs[:, 5:].sum(dim=1), torch.full((32561,), 7.0))


def test_a_larger_count_begins_with_the_same_rows() -> None:
    few, more = adult_census(count=5, seed=3), adult_census(count=50, seed=3, sensitive="ethnicity")
    assert torch.equal(few.inputs, more.inputs[:5])
    assert int(more.sensitive.max()) > 1
    assert few.inputs.shape == (5, 65)
    few.domain.check(few.inputs)


def test_what_the_census_does_not_hold_is_refused() -> None:
    with pytest.raises(InputError, match="from 1 to 32561"):
        adult_census(count=40000)
    with pytest.raises(InputError, match="gender, ethnicity, got 'age'"):
        adult_census(count=5, sensitive="age")

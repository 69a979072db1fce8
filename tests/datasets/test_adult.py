from __future__ import annotations

import csv
import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from gradleak.datasets import adult_census, adult_files, adult_files_table, adult_population, adult_table
from gradleak.results import InputError

xai = pytest.mark.skipif(find_spec("xai") is None, reason="xai is not installed")


@xai
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


@xai
def test_a_larger_count_begins_with_the_same_rows() -> None:
    few, more = adult_census(count=5, seed=3), adult_census(count=50, seed=3, sensitive="ethnicity")
    assert torch.equal(few.inputs, more.inputs[:5])
    assert int(more.sensitive.max()) > 1
    assert few.inputs.shape == (5, 65)
    few.domain.check(few.inputs)


@xai
def test_what_the_census_does_not_hold_is_refused() -> None:
    with pytest.raises(InputError, match="from 1 to 32561"):
        adult_census(count=40000)
    with pytest.raises(InputError, match="gender, ethnicity, got 'age'"):
        adult_census(count=5, sensitive="age")


@pytest.fixture
def files(shared: Path) -> Path:
    folder = shared / "data" / "adult"
    if not (folder / "adult.test").is_file():
        pytest.skip("the two files of UCI are not at hand")
    return folder


@xai
def test_the_first_row_by_hand() -> None:
    """39, State-gov, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, <=50K."""
    table = adult_table()
    inputs, names = table.inputs()
    row = dict(zip(names, inputs[0].tolist(), strict=True))
    assert row["age"] == pytest.approx(39 / 90)
    assert row["education-num"] == pytest.approx(13 / 16)
    assert row["hours-per-week"] == pytest.approx(40 / 99)
    assert row["capital-gain"] == pytest.approx(math.log(2175) / math.log(100000))
    assert row["capital-loss"] == 0
    assert {name for name, value in row.items() if value == 1} == {
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "ethnicity=White",
        "gender=Male",
    }
    assert table.cells["loan"][0] == 0


@xai
def test_the_population_is_the_census_with_and_without_the_sensitive_column() -> None:
    order = torch.randperm(32561, generator=torch.Generator().manual_seed(0))
    batch = adult_census(count=32561)
    inside, outside = adult_population(keep_sensitive=True), adult_population()
    assert torch.equal(inside.inputs[order], batch.inputs)
    assert torch.equal(inside.targets[order], batch.targets)
    assert torch.equal(inside.sensitive[order], batch.sensitive)
    # The two entries of gender are the last ones.
    assert torch.equal(outside.inputs, inside.inputs[:, :-2])
    assert torch.equal(inside.inputs[:, -1].long(), inside.sensitive)
    assert tuple(inside.values) == ("Female", "Male")
    assert adult_population(sensitive="ethnicity").inputs.shape == (32561, 60)
    with pytest.raises(InputError, match="gender, ethnicity, got 'age'"):
        adult_population(sensitive="age")


@xai
def test_the_first_row_as_codes_by_hand() -> None:
    """State-gov is place 7 of 9, Bachelors 9 of 16, Never-married 4 of 7, and so on, from 0 and in alphabetical order."""
    people = adult_population(encoding="codes", keep_sensitive=True)
    assert people.inputs.shape == (32561, 12)
    places = [7 / 8, 9 / 15, 4 / 6, 1 / 14, 1 / 5, 4 / 4, 1 / 1]
    assert people.inputs[0, 5:].tolist() == pytest.approx(places)
    assert torch.equal(people.inputs[:, :5], adult_population().inputs[:, :5])
    assert adult_population(encoding="codes").inputs.shape == (32561, 11)
    assert (people.name, adult_population().name) == ("adult: gender, codes", "adult: gender")
    with pytest.raises(InputError, match="one_hot, codes, got 'ordinal'"):
        adult_population(encoding="ordinal")


def test_both_files_of_uci_in_their_order(files: Path) -> None:
    rows = []
    for name in ("adult.data", "adult.test"):
        with (files / name).open(encoding="utf-8") as lines:
            rows += [[cell.strip().rstrip(".") for cell in row] for row in csv.reader(lines) if len(row) == 15]
    people = adult_files(files)
    assert people.inputs.shape == (len(rows), 105) == (48842, 105)
    assert people.targets.tolist() == [int(row[14] == ">50K") for row in rows]
    assert people.sensitive.tolist() == [int(row[9] == "Male") for row in rows]
    ages = torch.tensor([float(row[0]) for row in rows])
    torch.testing.assert_close(people.inputs[:, 0] * 90, ages)


@pytest.mark.slow
def test_both_files_of_uci_as_codes_and_as_a_table(files: Path) -> None:
    assert adult_files(files, encoding="codes").inputs.shape == (48842, 12)
    table = adult_files_table(files)
    with (files / "adult.data").open(encoding="utf-8") as lines:
        countries = {row[13].strip() for row in csv.reader(lines) if len(row) == 15}
    assert set(table.column("native-country").values) == countries
    inside = table.population(target="income", sensitive="race", keep_sensitive=True)
    assert inside.inputs.shape == (48842, 108)
    assert float(inside.inputs.min()) == 0.0
    assert float(inside.inputs.max()) == 1.0
    # Eight columns of classes besides the six numbers, one value each.
    assert torch.equal(inside.inputs[:, 6:].sum(dim=1), torch.full((48842,), 8.0))


def test_a_broken_file_of_uci_is_named_with_its_line(tmp_path: Path) -> None:
    row = (
        "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 0, 0, 40, Peru, "
    )
    (tmp_path / "adult.data").write_text(f"{row}<=50K\n{row}>50K\n")
    (tmp_path / "adult.test").write_text(f"|1x3 Cross validator\n{row}<=50K.\n{row.replace('Peru', '?')}>50K.\n")
    assert adult_files(tmp_path).targets.tolist() == [0, 1, 0, 1]
    assert adult_files(tmp_path, weight=True).inputs.shape == (4, 106)
    (tmp_path / "adult.test").write_text(f"|1x3 Cross validator\n{row}<=50K\n")
    with pytest.raises(
        InputError, match=r"adult\.test, line 2, column income: expected one of <=50K\., >50K\.; got '<=50K'"
    ):
        adult_files(tmp_path)

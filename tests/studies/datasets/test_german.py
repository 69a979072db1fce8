"""The German credit file, against the csv module's reading of it."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from gradleak.results import InputError
from studies.datasets import german_credit, german_credit_table

ROW = "A11 6 A34 A43 1169 A65 A75 4 {} A101 4 A121 67 A143 A152 2 A173 1 A192 A201 {}\n"


@pytest.fixture
def file(shared: Path) -> Path:
    path = shared / "data" / "german" / "german.data"
    if not path.is_file():
        pytest.skip("the file of UCI is not at hand")
    return path


def test_rows_are_those_of_the_uci_file(file: Path) -> None:
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.reader(lines, delimiter=" "))
    people = german_credit(file)
    assert people.inputs.shape == (1000, 58)
    assert people.targets.tolist() == [int(row[20] == "2") for row in rows]
    # The documentation of UCI: A92 and A95 are women.
    assert people.sensitive.tolist() == [int(row[8] not in ("A92", "A95")) for row in rows]
    assert people.inputs[:, 4].tolist() == pytest.approx([int(row[1]) / 72 for row in rows])
    inside = german_credit(file, keep_sensitive=True)
    assert inside.inputs.shape == (1000, 63)
    torch.testing.assert_close(inside.inputs.sum(dim=1) - people.inputs.sum(dim=1), torch.ones(1000), atol=1e-5, rtol=0)
    amounts = german_credit_table(file).cells["amount"]
    assert amounts.tolist() == [int(row[4]) for row in rows]


def test_a_row_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "german.data"
    path.write_text(ROW.format("A93", 1) + ROW.format("A95", 2))
    people = german_credit(path)
    assert people.sensitive.tolist() == [1, 0]
    assert people.targets.tolist() == [0, 1]
    assert torch.equal(people.inputs[0], people.inputs[1])
    inputs, names = german_credit_table(path).inputs()
    row = dict(zip(names, inputs[0].tolist(), strict=True))
    assert row["amount"] == pytest.approx(math.log(1170) / math.log(20001))
    assert row["rate"] == 1.0
    assert row["purpose=A43"] == row["personal-status=A93"] == 1.0


def test_unknown_codes_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "german.data"
    path.write_text(ROW.format("A93", 1) + ROW.format("A96", 2))
    with pytest.raises(
        InputError, match=r"line 2, column personal-status: expected one of A91, A92, A93, A94, A95; got 'A96'"
    ):
        german_credit(path)

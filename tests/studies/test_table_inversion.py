"""Rows of the census rebuilt column by column: who claims what, and how it is counted."""

from __future__ import annotations

import pytest
import torch

from gradleak.datasets import adult_census
from studies import TableAttacker, TableInversion
from studies.table_inversion import most_frequent, tolerances


def test_blind_guessers_and_a_solved_batch() -> None:
    study = TableInversion(
        sizes=(2,),
        counts=(2,),
        budget=120,
        attackers=(TableAttacker.MODE, TableAttacker.TABLEAK, TableAttacker.LINEAR_ROWS),
    )
    found = study.run(say=lambda line: None)
    by_name = {finding.quantity: finding for finding in found.findings}
    assert by_name["2 rows, linear_rows: share of cells"].ours == 1.0
    assert 0.2 < by_name["2 rows, blind: most frequent: share of cells"].ours < 0.8
    (table,) = found.tables
    assert [row[0] for row in table.rows[:2]] == ["age", "education-num"]
    assert table.rows[-1][0] == "plain gradients"
    assert len(table.rows) == 12 + 3
    assert "most certain" in found.conclusion[0]


def test_the_most_frequent_row_is_right_more_often_than_any_public_row() -> None:
    public = adult_census(count=300)
    spread = tolerances(public)
    ages = public.inputs[:, 0].double()
    assert spread[0] == pytest.approx(0.319 * float(ages.std()))
    row = most_frequent(public, spread)
    near = ((public.inputs[:, 0] - row[0]).abs() <= spread[0]).sum()
    assert all(((public.inputs[:, 0] - age).abs() <= spread[0]).sum() <= near for age in public.inputs[:, 0])
    assert torch.equal(row[-2:], torch.tensor([0.0, 1.0]))  # more men than women

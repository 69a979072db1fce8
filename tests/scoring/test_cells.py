"""Cells of a table that a claim has right."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import accuracy_score

from gradleak.core import Batch, Domain, Reconstruction
from gradleak.results import InputError, Outcome
from gradleak.scoring import score_cells, score_claim

TABLE = Domain(shape=(5,), low=(0.0,) * 5, high=(100.0, 1.0, 1.0, 1.0, 1.0), kind="tabular", columns=(1, 3, 1))
ROWS = Batch(
    torch.tensor([[50.0, 1, 0, 0, 0.5], [20.0, 0, 0, 1, 0.25]], dtype=torch.float64), torch.tensor([0, 1]), TABLE
)


def _claim(rows: list[list[float]], outcome: Outcome = Outcome.BUDGET_SPENT) -> Reconstruction:
    return Reconstruction(
        inputs=torch.tensor(rows, dtype=torch.float64), targets=ROWS.targets, loss=0.1, outcome=outcome
    )


def test_categories_are_right_by_their_largest_entry_and_numbers_within_the_tolerance() -> None:
    # In the other order; the first true row is right in all, the second in its age alone.
    score = score_cells(_claim([[24.9, 0.1, 0.8, 0.1, 0.9], [54.9, 0.4, 0.3, 0.3, 0.46]]), ROWS)
    assert (score.name, score.value, score.unit) == ("cell_accuracy", 1.0, "share")
    assert score.details["per_example"] == pytest.approx([1.0, 1 / 3])
    assert score.details["by_column"] == [1.0, 0.5, 0.5]
    assert score.details["mean"] == pytest.approx(4 / 6)
    assert (score.details["categories"], score.details["numbers"]) == (0.5, 0.75)
    tight = score_cells(_claim([[24.9, 0.1, 0.8, 0.1, 0.9], [54.9, 0.4, 0.3, 0.3, 0.46]]), ROWS, tolerances=(0, 0, 0.1))
    assert tight.details["by_column"] == [0.0, 0.5, 0.5]


def test_the_share_of_categories_is_the_accuracy_of_their_codes() -> None:
    generator = torch.Generator().manual_seed(0)
    domain = Domain(shape=(4,), kind="tabular", columns=(4,))
    truth = domain.decided(torch.rand(30, 4, generator=generator, dtype=torch.float64))
    made = truth + 0.9 * torch.rand(30, 4, generator=generator, dtype=torch.float64)
    batch = Batch(truth, torch.zeros(30, dtype=torch.int64), domain)
    for place in range(30):
        one = Batch(truth[place : place + 1], batch.targets[:1], domain)
        claim = Reconstruction(inputs=made[place : place + 1], targets=None, loss=0.0, outcome=Outcome.BUDGET_SPENT)
        expected = accuracy_score([int(truth[place].argmax())], [int(made[place].argmax())])
        assert score_cells(claim, one).value == expected


def test_an_undecided_category_names_nothing_and_no_claim_has_no_value() -> None:
    score = score_cells(_claim([[50.0, 0.5, 0.5, 0.0, 0.5], [20.0, 0, 0, 1, 0.25]]), ROWS)
    assert score.details["by_column"] == [1.0, 0.5, 1.0]
    nothing = Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.NO_SIGNAL)
    assert score_cells(nothing, ROWS).value is None
    broken = score_cells(_claim([[torch.nan] * 5, [torch.inf] * 5]), ROWS)
    assert (broken.value, broken.outcome) == (None, Outcome.NOT_FINITE)


def test_claims_on_tables_with_columns_have_the_score_and_others_do_not() -> None:
    assert "cell_accuracy" in {score.name for score in score_claim(_claim(ROWS.inputs.tolist()), ROWS)}
    plain = Batch(ROWS.inputs / 100, ROWS.targets, Domain(shape=(5,), kind="tabular"))
    assert "cell_accuracy" not in {score.name for score in score_claim(_claim(plain.inputs.tolist()), plain)}
    with pytest.raises(InputError, match="expected a domain with columns"):
        score_cells(_claim(plain.inputs.tolist()), plain)
    with pytest.raises(InputError, match="one for each of 3 columns"):
        score_cells(_claim(ROWS.inputs.tolist()), ROWS, tolerances=(0.1, 0.2))

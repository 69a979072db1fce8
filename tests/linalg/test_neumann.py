from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.linalg.spectra import symmetric, vector

from gradleak.linalg import DenseOperator, LinearSolution, neumann_series
from gradleak.results import InputError, Outcome


def _sum(matrix: torch.Tensor, right: torch.Tensor, **options: float | None) -> LinearSolution:
    return neumann_series(DenseOperator(matrix), right, generator=torch.Generator().manual_seed(2), **options)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1.0, 0.2), (None, 0.0), (0.5, 0.3)])
def test_agrees_with_numpy_where_it_converges(scale: float | None, shift: float) -> None:
    matrix, right = symmetric(torch.linspace(0.1, 1.5, 30)), vector(30)
    found = _sum(matrix, right, scale=scale, shift=shift, tolerance=1e-12)
    np.testing.assert_allclose(
        found.solution, np.linalg.solve(matrix.numpy() + shift * np.eye(30), right.numpy()), rtol=1e-8, atol=1e-10
    )
    assert found.outcome is Outcome.CONVERGED
    assert found.residual <= 1e-12


def test_partial_sums_are_those_of_the_paper() -> None:
    matrix, right = symmetric(torch.linspace(0.1, 1.5, 10)), vector(10)
    found = _sum(matrix, right, max_terms=4)
    total, term = np.zeros(10), right.numpy()
    for _ in range(4):
        total, term = total + term, term - matrix.numpy() @ term
    np.testing.assert_allclose(found.solution, total, rtol=1e-12)
    assert (found.outcome, found.iterations) == (Outcome.BUDGET_SPENT, 4)


@pytest.mark.parametrize("largest", [2.0, 2.5, 1e6])
def test_the_condition_is_checked_first(largest: float) -> None:
    matrix, right = symmetric([largest, *torch.linspace(0.1, 1.0, 20).tolist()]), vector(21)
    found = _sum(matrix, right)
    assert found.outcome is Outcome.UNSUPPORTED
    assert "cannot converge" in found.note
    assert (found.iterations, float(found.solution.norm())) == (0, 0.0)
    assert _sum(matrix, right, scale=None, max_terms=5).outcome is Outcome.BUDGET_SPENT


def test_ill_conditioned_says_how_many_terms_are_missing() -> None:
    found = _sum(symmetric(torch.logspace(-12, 0, 40, dtype=torch.float64)), vector(40), scale=None, max_terms=200)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.residual > 0.1
    assert "more are needed" in found.note


def test_singular_converges_in_the_range_and_not_outside() -> None:
    matrix = symmetric([0.0, 0.0, 0.5, 1.0, 1.5])
    inside = matrix @ vector(5)
    found = _sum(matrix, inside, tolerance=1e-12)
    np.testing.assert_allclose(found.solution, np.linalg.pinv(matrix.numpy()) @ inside.numpy(), rtol=1e-8, atol=1e-10)
    outside = _sum(matrix, vector(5), max_terms=300)
    assert outside.outcome is Outcome.BUDGET_SPENT
    assert outside.note == "the residual no longer falls"


def test_edges() -> None:
    nothing = _sum(symmetric([1.0, 0.5]), torch.zeros(2).double())
    assert (float(nothing.solution.norm()), nothing.outcome) == (0.0, Outcome.CONVERGED)
    assert _sum(torch.zeros(3, 3).double(), vector(3)).outcome is Outcome.NOT_INFORMATIVE
    shifted = _sum(torch.zeros(3, 3).double(), vector(3), shift=0.5, tolerance=1e-12)
    np.testing.assert_allclose(shifted.solution, 2 * vector(3), rtol=1e-10)
    one = _sum(torch.tensor([[0.5]]).double(), torch.tensor([2.0]).double(), tolerance=1e-12)
    assert one.solution.tolist() == [pytest.approx(4.0)]
    broken = torch.full((2, 2), torch.nan).double()
    assert _sum(broken, vector(2)).outcome is Outcome.NOT_FINITE


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="shift: expected a finite number of at least 0, got -1"):
        _sum(torch.eye(2), torch.ones(2), shift=-1.0)
    with pytest.raises(InputError, match="scale: expected a finite positive number, got 0"):
        _sum(torch.eye(2), torch.ones(2), scale=0.0)
    with pytest.raises(InputError, match=r"expected a right-hand side \(2,\), got \(3,\)"):
        _sum(torch.eye(2), torch.ones(3))

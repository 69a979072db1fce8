from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from tests.linalg.spectra import factor, vector

from gradleak.linalg import DenseOperator, lsmr
from gradleak.results import InputError, Outcome


@pytest.mark.parametrize("shift", [0.0, 1e-3, 1.0])
def test_agrees_with_scipy_and_the_normal_equations(shift: float) -> None:
    matrix, target = factor(torch.linspace(0.2, 3.0, 30), 70), vector(70)
    operator = DenseOperator(matrix)
    found = lsmr(operator, target, shift=shift, tolerance=1e-12)
    theirs = scipy.sparse.linalg.lsmr(
        matrix.numpy(), target.numpy(), damp=np.sqrt(shift), atol=1e-14, btol=1e-14, conlim=0.0, maxiter=500
    )[0]
    dense = np.linalg.solve(matrix.numpy().T @ matrix.numpy() + shift * np.eye(30), matrix.numpy().T @ target.numpy())
    np.testing.assert_allclose(found.solution, theirs, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.solution, dense, rtol=1e-9, atol=1e-11)
    assert found.outcome is Outcome.CONVERGED
    assert found.residual < 1e-11
    assert found.matvecs == operator.matvecs


@pytest.mark.parametrize("shape", [(40, 15), (15, 40)])
def test_a_rank_deficient_map_gives_the_solution_of_smallest_norm(shape: tuple[int, int]) -> None:
    values = torch.tensor([3.0, 2.0, 1.0, 0.5] + [0.0] * 11)
    matrix = factor(values, 40) if shape == (40, 15) else factor(values, 40).T
    target = vector(shape[0])
    found = lsmr(DenseOperator(matrix), target, tolerance=1e-12)
    np.testing.assert_allclose(found.solution, np.linalg.pinv(matrix.numpy()) @ target.numpy(), rtol=1e-9, atol=1e-12)
    assert found.outcome is Outcome.CONVERGED
    assert found.iterations <= 8


def test_no_budget_is_called_converged_before_the_residual_is() -> None:
    matrix, target = factor(torch.logspace(-2, 0, 30, dtype=torch.float64), 50), vector(50)
    words = set()
    for budget in range(1, 120, 3):
        found = lsmr(DenseOperator(matrix), target, tolerance=1e-8, max_iterations=budget)
        rest = matrix.T @ (target - matrix @ found.solution)
        residual = float(rest.norm() / (matrix.T @ target).norm())
        assert found.residual == pytest.approx(residual, rel=1e-6)
        assert (found.outcome is Outcome.CONVERGED) == (residual <= 2e-8)
        words.add(found.outcome)
    assert words == {Outcome.CONVERGED, Outcome.BUDGET_SPENT}


def test_ill_conditioned_spends_its_budget_in_words() -> None:
    matrix = factor(torch.logspace(-6, 0, 80, dtype=torch.float64), 120)  # κ of AᵀA is 1e12
    target = vector(120)
    found = lsmr(DenseOperator(matrix), target, max_iterations=40)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.iterations == 40
    assert bool(torch.isfinite(found.solution).all())
    rest = matrix.T @ (target - matrix @ found.solution)
    assert found.residual == pytest.approx(float(rest.norm() / (matrix.T @ target).norm()))
    assert "would not have been noticed" in found.note
    damped = lsmr(DenseOperator(matrix), target, shift=1e-2, max_iterations=200)
    assert damped.outcome is Outcome.CONVERGED
    assert damped.note == ""


def test_one_dimension_zero_map_and_zero_right_hand_side() -> None:
    one = lsmr(DenseOperator(torch.tensor([[2.0], [0.0]]).double()), torch.tensor([6.0, 5.0]).double())
    assert one.solution.tolist() == [pytest.approx(3.0)]
    zero = lsmr(DenseOperator(torch.zeros(4, 3).double()), vector(4))
    assert (float(zero.solution.norm()), zero.outcome) == (0.0, Outcome.CONVERGED)
    still = lsmr(DenseOperator(torch.eye(3).double()), torch.zeros(3).double())
    assert (float(still.solution.norm()), still.residual, still.outcome) == (0.0, 0.0, Outcome.CONVERGED)


def test_a_target_that_is_reached_exactly() -> None:
    matrix = factor([1.0, 1.0, 1.0], 3)
    found = lsmr(DenseOperator(matrix), matrix @ vector(3), tolerance=1e-14)
    np.testing.assert_allclose(found.solution, vector(3), rtol=1e-12)
    assert found.outcome is Outcome.CONVERGED


def test_not_finite_is_a_word() -> None:
    matrix = torch.eye(3, dtype=torch.float64)
    matrix[1, 1] = torch.nan
    assert lsmr(DenseOperator(matrix), torch.ones(3).double()).outcome is Outcome.NOT_FINITE


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="shift: expected a finite number of at least 0, got -1"):
        lsmr(DenseOperator(torch.eye(3)), torch.ones(3), shift=-1.0)
    with pytest.raises(InputError, match=r"expected a right-hand side \(3,\), got \(4,\)"):
        lsmr(DenseOperator(torch.eye(3)), torch.ones(4))

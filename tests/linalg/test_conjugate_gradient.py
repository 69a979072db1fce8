from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak.linalg import DenseOperator, Gram, conjugate_gradient
from gradleak.results import InputError, Outcome


def _factor(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _right(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize("shift", [0.0, 0.1, 10.0])
def test_agrees_with_numpy_solve_for_a_block(shift: float) -> None:
    factor, right = _factor(50, 20), _right(20, 3)
    found = conjugate_gradient(Gram(DenseOperator(factor)), right, shift=shift, tolerance=1e-12)
    system = factor.numpy().T @ factor.numpy() + shift * np.eye(20)
    np.testing.assert_allclose(found.solution, np.linalg.solve(system, right.numpy()), rtol=1e-9)
    assert found.outcome is Outcome.CONVERGED
    assert found.residual < 1e-11


def test_a_vector_keeps_its_shape() -> None:
    found = conjugate_gradient(Gram(DenseOperator(_factor(50, 20))), _right(20), shift=1.0)
    assert found.solution.shape == (20,)


def test_a_singular_system_gives_the_solution_of_smallest_norm() -> None:
    factor = _factor(5, 20)
    right = factor.T @ _right(5)
    found = conjugate_gradient(Gram(DenseOperator(factor)), right, tolerance=1e-12)
    expected = np.linalg.pinv(factor.numpy().T @ factor.numpy()) @ right.numpy()
    np.testing.assert_allclose(found.solution, expected, rtol=1e-8)
    assert found.outcome is Outcome.CONVERGED


def test_right_hand_side_outside_the_range_is_not_called_converged() -> None:
    found = conjugate_gradient(Gram(DenseOperator(_factor(5, 20))), _right(20), max_iterations=200)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert "a part in the null space" in found.note
    assert float(found.solution.norm()) < 1e6
    assert found.iterations < 30


def test_zero_right_hand_side_needs_no_product() -> None:
    found = conjugate_gradient(Gram(DenseOperator(_factor(50, 20))), torch.zeros(20, dtype=torch.float64))
    assert float(found.solution.norm()) == 0.0
    assert (found.matvecs, found.outcome) == (0, Outcome.CONVERGED)


def test_zero_operator_with_shift_divides_by_it() -> None:
    right = _right(6)
    found = conjugate_gradient(DenseOperator(torch.zeros(6, 6, dtype=torch.float64)), right, shift=2.0)
    torch.testing.assert_close(found.solution, right / 2)


def test_budget_end_is_a_word_and_keeps_the_iterate() -> None:
    scales = torch.logspace(-6, 0, 40, dtype=torch.float64)
    found = conjugate_gradient(DenseOperator(torch.diag(scales)), _right(40), max_iterations=5)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.iterations == 5
    assert found.matvecs == 6
    assert found.residual > 1e-8


def test_no_budget_is_called_converged_before_the_residual_is() -> None:
    scales, right = torch.logspace(-4, 0, 30, dtype=torch.float64), _right(30)
    words = set()
    for budget in range(1, 120, 3):
        found = conjugate_gradient(DenseOperator(torch.diag(scales)), right, tolerance=1e-8, max_iterations=budget)
        residual = np.linalg.norm(right - scales * found.solution) / np.linalg.norm(right)
        assert found.residual == pytest.approx(residual, rel=1e-6)
        assert (found.outcome is Outcome.CONVERGED) == (residual <= 2e-8)
        words.add(found.outcome)
    assert words == {Outcome.CONVERGED, Outcome.BUDGET_SPENT}


def test_not_finite_is_a_word() -> None:
    broken = torch.eye(3, dtype=torch.float64)
    broken[0, 0] = torch.nan
    assert conjugate_gradient(DenseOperator(broken), torch.ones(3).double()).outcome is Outcome.NOT_FINITE


def test_converged_columns_rest() -> None:
    right = torch.stack([torch.eye(30, dtype=torch.float64)[0], _right(30)], dim=1)
    operator = DenseOperator(torch.diag(torch.linspace(1, 9, 30, dtype=torch.float64)))
    found = conjugate_gradient(operator, right)
    assert found.matvecs < 2 * found.iterations + 2
    torch.testing.assert_close(found.solution[:, 0], right[:, 0])


def test_bad_arguments() -> None:
    operator = DenseOperator(torch.eye(3))
    with pytest.raises(InputError, match="shift: expected a finite number of at least 0, got -1"):
        conjugate_gradient(operator, torch.ones(3), shift=-1.0)
    with pytest.raises(InputError, match=r"right-hand side \(3,\) or \(3, k\), got \(4,\)"):
        conjugate_gradient(operator, torch.ones(4))

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.linalg.spectra import factor, vector

from gradleak.linalg import DenseOperator, LinearSolution, least_squares_descent
from gradleak.results import InputError, Outcome


def _descend(matrix: torch.Tensor, target: torch.Tensor, **options: float | None) -> LinearSolution:
    return least_squares_descent(DenseOperator(matrix), target, generator=torch.Generator().manual_seed(2), **options)


@pytest.mark.parametrize("shift", [0.0, 0.3])
@pytest.mark.parametrize("step", [None, 0.3])
def test_agrees_with_numpy_least_squares(step: float | None, shift: float) -> None:
    matrix, target = factor(torch.linspace(0.5, 2.0, 12), 30), vector(30)
    found = _descend(matrix, target, step=step, shift=shift, tolerance=1e-12)
    stacked = np.vstack([matrix.numpy(), np.sqrt(shift) * np.eye(12)])
    expected = np.linalg.lstsq(stacked, np.concatenate([target.numpy(), np.zeros(12)]), rcond=None)[0]
    np.testing.assert_allclose(found.solution, expected, rtol=1e-9)
    assert found.outcome is Outcome.CONVERGED


def test_iterates_are_gradient_steps() -> None:
    matrix, target = factor(torch.linspace(0.5, 2.0, 12), 30), vector(30)
    found = _descend(matrix, target, step=0.2, shift=0.1, max_iterations=3)
    x = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        loss = ((target - matrix @ x) ** 2).sum() / 2 + 0.1 * (x**2).sum() / 2
        x = (x - 0.2 * torch.autograd.grad(loss, x)[0]).detach().requires_grad_()
    torch.testing.assert_close(found.solution, x.detach(), rtol=1e-12, atol=1e-14)
    assert (found.iterations, found.outcome) == (3, Outcome.BUDGET_SPENT)


def test_a_step_that_is_too_long_is_refused_with_the_longest_one() -> None:
    found = _descend(factor([2.0, 1.0, 0.5], 6), vector(6), step=0.6)
    assert found.outcome is Outcome.UNSUPPORTED
    assert found.note.startswith("the descent cannot converge: step · (λmax + shift) = 2.4")
    assert "take a step below 0.5" in found.note


def test_products_are_counted_on_the_factor() -> None:
    operator = DenseOperator(factor([2.0, 1.0, 0.5], 6))
    found = least_squares_descent(operator, vector(6), generator=torch.Generator().manual_seed(0))
    assert found.matvecs == operator.matvecs


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match=r"least_squares_descent: expected a right-hand side \(2,\), got \(3,\)"):
        _descend(torch.eye(2), torch.ones(3))

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.linalg.spectra import symmetric, vector

from gradleak.linalg import DenseOperator, TraceEstimate, lanczos_quadrature
from gradleak.results import InputError, Outcome


def _inverse(shift: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda nodes: 1 / (nodes + shift)


def _estimate(
    matrix: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor], seed: int = 0, **options: object
) -> TraceEstimate:
    return lanczos_quadrature(
        DenseOperator(matrix),
        function,
        generator=torch.Generator().manual_seed(seed),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "function", [_inverse(0.1), torch.log1p, lambda nodes: nodes**3], ids=["inverse", "log", "cube"]
)
def test_agrees_with_the_dense_spectrum_within_its_interval(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    values = torch.linspace(0.1, 4.0, 100, dtype=torch.float64)
    found = _estimate(symmetric(values), function, samples=40, steps=40)
    assert found.interval is not None
    assert found.interval[0] <= float(function(values).sum()) <= found.interval[1]
    assert found.outcome is Outcome.CONVERGED
    assert found.matvecs == 40 * 40
    assert found.inner_error < 1e-2


def test_intervals_cover_the_trace_as_often_as_they_say() -> None:
    values = torch.logspace(-1, 1, 24, dtype=torch.float64)
    matrix, truth = symmetric(values), float((1 / values).sum())
    intervals = [_estimate(matrix, _inverse(0.0), seed, samples=12, steps=24).interval for seed in range(150)]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    assert covered > 0.90


def test_gauss_quadrature_of_one_vector_is_exact_with_all_steps() -> None:
    matrix, weights = symmetric(torch.logspace(-3, 0, 12, dtype=torch.float64)), vector(12).abs()
    found = _estimate(matrix, _inverse(1e-3), steps=12, samples=60, weights=weights)
    dense = np.linalg.inv(matrix.numpy() + 1e-3 * np.eye(12)) * np.outer(weights, weights)
    signs = torch.Generator().manual_seed(0)
    drawn = (2 * torch.randint(0, 2, (12, 60), generator=signs) - 1).double().numpy()
    assert found.value == pytest.approx(np.mean(np.einsum("ns,nm,ms->s", drawn, dense, drawn)), rel=1e-9)


def test_the_null_space_is_left_out_and_counted() -> None:
    values = [0.0] * 5 + torch.linspace(1.0, 2.0, 25).tolist()
    found = _estimate(symmetric(values), _inverse(0.0), range_only=True, samples=200, steps=30)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.null_dimension == pytest.approx(5.0, rel=0.2)
    assert found.value == pytest.approx(sum(1 / value for value in values if value), rel=0.05)


def test_ill_conditioned_is_too_small_and_says_so() -> None:
    values = torch.logspace(-12, 0, 100, dtype=torch.float64)
    found = _estimate(symmetric(values), _inverse(0.0), steps=20, range_only=True)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.value is not None
    assert found.value < float((1 / values).sum())
    assert found.inner_error > 1e-2


@pytest.mark.parametrize("steps", [2, 3, 50])
def test_repeated_eigenvalues_exhaust_the_krylov_space(steps: int) -> None:
    found = _estimate(symmetric([2.0] * 20 + [0.5] * 10), _inverse(0.0), steps=steps, samples=50)
    assert found.value == pytest.approx(30.0, rel=0.2)
    assert (found.outcome, found.matvecs) == (Outcome.CONVERGED, 100)
    assert found.inner_error == 0.0


def test_edges() -> None:
    one = _estimate(torch.tensor([[4.0]]).double(), _inverse(0.0))
    assert one.value == pytest.approx(0.25)
    zero = _estimate(torch.zeros(20, 20).double(), _inverse(0.5))
    assert zero.value == pytest.approx(40.0)
    nothing = _estimate(torch.zeros(20, 20).double(), _inverse(0.0), range_only=True)
    assert (nothing.value, nothing.outcome) == (None, Outcome.NOT_INFORMATIVE)
    broken = _estimate(torch.full((20, 20), torch.nan).double(), _inverse(0.0))
    assert (broken.value, broken.outcome) == (None, Outcome.NOT_FINITE)


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="samples: expected a whole number of at least 2, got 1"):
        _estimate(torch.eye(3), _inverse(1.0), samples=1)
    with pytest.raises(InputError, match="expected a square operator"):
        _estimate(torch.ones(2, 3), _inverse(1.0))


def test_weights_may_be_any_square_matrix() -> None:
    values = torch.linspace(0.5, 3.0, 8, dtype=torch.float64)
    matrix = symmetric(values)
    weights = torch.randn((8, 8), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    want = float((weights @ torch.linalg.inv(matrix) @ weights.T).trace())
    found = _estimate(matrix, _inverse(0.0), samples=400, steps=8, weights=DenseOperator(weights))
    assert found.interval[0] <= want <= found.interval[1]
    assert found.value == pytest.approx(want, rel=0.1)

"""Bounds from a Lanczos run, against spectra that are known and against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from gradleak.linalg import (
    DenseOperator,
    GaussRadau,
    bounded_inverse,
    conjugate_gradient,
    largest_eigenvalue_bounds,
)
from gradleak.results import InputError, Outcome

F64 = torch.float64


def _drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _gram(values: Tensor, seed: int = 0) -> DenseOperator:
    """A symmetric matrix with these eigenvalues."""
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=_drawn(seed), dtype=F64)).Q
    return DenseOperator(basis @ torch.diag(values) @ basis.T)


SPECTRA = {
    "ramp": torch.linspace(0, 1, 120, dtype=F64),
    "decay": torch.logspace(0, -8, 120, dtype=F64),
    "flat with a peak": torch.cat([torch.full((119,), 0.5, dtype=F64), torch.ones(1, dtype=F64)]),
    "repeated": torch.cat([torch.zeros(60, dtype=F64), torch.ones(60, dtype=F64)]),
}


class TestLargestEigenvalue:
    @pytest.mark.parametrize("spectrum", SPECTRA)
    def test_the_interval_covers_as_often_as_it_says(self, spectrum: str) -> None:
        # Few steps: the upper bound has to come from the law of the start alone.
        operator, runs, missed = _gram(SPECTRA[spectrum]), 300, 0
        largest = float(np.linalg.eigvalsh(operator._matrix.numpy())[-1])
        for seed in range(runs):
            found = largest_eigenvalue_bounds(
                operator, generator=_drawn(seed), confidence=0.8, tolerance=1e-9, max_steps=3
            )
            assert found.low <= largest * (1 + 1e-12)
            missed += found.high < largest * (1 - 1e-12)
        # No more misses than chance makes of 20 % in 999 of 1,000 such tests.
        assert missed <= stats.binom.ppf(0.999, runs, 0.2)

    def test_a_start_without_the_leading_vector_is_what_the_probability_is_for(self) -> None:
        # Two eigenvalues: after one step the bound is exact where |γ| is just the quantile.
        values = torch.tensor([0.0] * 9 + [1.0], dtype=F64)
        missed = [
            largest_eigenvalue_bounds(
                _gram(values), generator=_drawn(seed), confidence=0.5, tolerance=1e-9, max_steps=1
            ).high
            < 1.0 - 1e-9
            for seed in range(200)
        ]
        assert 0 < sum(missed) <= 130

    def test_it_stops_where_the_bounds_are_close(self) -> None:
        found = largest_eigenvalue_bounds(_gram(SPECTRA["decay"]), generator=_drawn(0), tolerance=0.1)
        assert found.outcome is Outcome.CONVERGED
        assert found.steps == found.matvecs < 12
        assert found.low <= 1.0 <= found.high <= 1.1 * found.low

    def test_an_exhausted_space_gives_the_eigenvalue(self) -> None:
        found = largest_eigenvalue_bounds(_gram(SPECTRA["repeated"]), generator=_drawn(0), tolerance=1e-6)
        assert found.steps == 2
        assert found.low == found.high == pytest.approx(1.0)
        one = largest_eigenvalue_bounds(DenseOperator(torch.tensor([[3.0]])), generator=_drawn(0))
        assert (one.low, one.high) == (3.0, 3.0)

    def test_zero_and_not_finite_operators_are_named(self) -> None:
        zero = largest_eigenvalue_bounds(DenseOperator(torch.zeros(5, 5, dtype=F64)), generator=_drawn(0))
        assert (zero.outcome, zero.low, zero.high) == (Outcome.NOT_INFORMATIVE, 0.0, 0.0)
        nan = largest_eigenvalue_bounds(DenseOperator(torch.full((5, 5), math.nan, dtype=F64)), generator=_drawn(0))
        assert nan.outcome is Outcome.NOT_FINITE
        assert math.isnan(nan.low)

    def test_what_is_out_of_range_is_refused(self) -> None:
        with pytest.raises(InputError, match="square"):
            largest_eigenvalue_bounds(DenseOperator(torch.ones(3, 2)), generator=_drawn(0))
        with pytest.raises(InputError, match="between 0 and 1"):
            largest_eigenvalue_bounds(DenseOperator(torch.eye(2)), generator=_drawn(0), confidence=1.0)


class TestInverse:
    @pytest.mark.parametrize("spectrum", SPECTRA)
    @pytest.mark.parametrize("shift", [1e-3, 1.0])
    def test_the_bounds_hold_after_every_number_of_steps(self, spectrum: str, shift: float) -> None:
        operator = _gram(SPECTRA[spectrum])
        for seed in range(5):
            right = torch.randn(120, generator=_drawn(seed), dtype=F64)
            matrix = operator._matrix.numpy() + shift * np.eye(120)
            exact = float(np.linalg.norm(np.linalg.solve(matrix, right.numpy())))
            for steps in (1, 2, 5, 20):
                found = bounded_inverse(operator, right, shift=shift, tolerance=0.0, max_steps=steps)
                assert found.norm_bound is not None
                assert float(found.solution.norm()) <= exact * (1 + 1e-9)
                assert found.norm_bound >= exact * (1 - 1e-9)

    def test_the_iterate_is_that_of_conjugate_gradients(self) -> None:
        operator, right = _gram(SPECTRA["ramp"]), torch.randn(120, generator=_drawn(1), dtype=F64)
        found = bounded_inverse(operator, right, shift=0.1, tolerance=0.0, max_steps=6)
        other = conjugate_gradient(operator, right, shift=0.1, tolerance=0.0, max_iterations=6)
        torch.testing.assert_close(found.solution, other.solution, rtol=1e-9, atol=1e-12)
        assert found.residual == pytest.approx(other.residual, rel=1e-6)
        assert found.outcome is Outcome.BUDGET_SPENT

    def test_it_takes_fewer_products_than_a_residual_would(self) -> None:
        operator, right = _gram(SPECTRA["decay"]), torch.randn(120, generator=_drawn(1), dtype=F64)
        found = bounded_inverse(operator, right, shift=1e-4, tolerance=0.05)
        by_residual = conjugate_gradient(operator, right, shift=1e-4, tolerance=0.05 * 1e-4)
        assert found.outcome is Outcome.CONVERGED
        assert found.matvecs < 0.7 * by_residual.matvecs

    def test_special_cases_are_named(self) -> None:
        zero = bounded_inverse(_gram(SPECTRA["ramp"]), torch.zeros(120, dtype=F64), shift=1.0)
        assert (zero.outcome, zero.norm_bound, zero.matvecs) == (Outcome.CONVERGED, 0.0, 0)
        nan = bounded_inverse(
            DenseOperator(torch.full((3, 3), math.nan, dtype=F64)), torch.ones(3, dtype=F64), shift=1.0
        )
        assert nan.outcome is Outcome.NOT_FINITE
        none = GaussRadau().solve(DenseOperator(torch.eye(3)), torch.ones(3), torch.ones(3), 0.0)
        assert none.outcome is Outcome.UNSUPPORTED
        assert "take LSMR" in none.note
        with pytest.raises(InputError, match="right-hand side"):
            bounded_inverse(DenseOperator(torch.eye(2)), torch.ones(3), shift=1.0)

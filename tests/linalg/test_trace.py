from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.linalg.spectra import symmetric, vector

from gradleak.linalg import DenseOperator, ShiftedInverse, TraceEstimate, hutchinson, hutchpp
from gradleak.results import InputError, Outcome

Estimator = Callable[..., TraceEstimate]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("estimate", [hutchinson, hutchpp])
def test_intervals_cover_the_trace_as_often_as_they_say(estimate: Estimator) -> None:
    matrix = symmetric(torch.logspace(-2, 1, 60))
    truth = float(matrix.trace())
    trials = 300
    found = [estimate(DenseOperator(matrix), generator=_generator(seed), samples=30) for seed in range(trials)]
    covered = sum(low <= truth <= high for low, high in (item.interval for item in found))
    # 95 % nominal: 0.95 ± 4 standard errors of 300 trials.
    assert covered / trials > 0.90
    mean = np.mean([item.value for item in found])
    error = np.std([item.value for item in found]) / np.sqrt(trials)
    assert abs(mean - truth) < 4 * error


def test_hutchpp_beats_hutchinson_on_a_falling_spectrum() -> None:
    matrix = symmetric(1.0 / torch.arange(1, 101) ** 2)
    truth = float(matrix.trace())

    def spread(estimate: Estimator) -> float:
        values = [estimate(DenseOperator(matrix), generator=_generator(s), samples=45).value for s in range(40)]
        return float(np.sqrt(np.mean((np.array(values) - truth) ** 2)))

    assert spread(hutchpp) < spread(hutchinson) / 4


@pytest.mark.parametrize("estimate", [hutchinson, hutchpp])
def test_the_trace_of_a_weighted_inverse(estimate: Estimator) -> None:
    values = torch.logspace(-1, 1, 40, dtype=torch.float64)
    matrix, weights = symmetric(values), vector(40).abs()
    operator = DenseOperator(matrix)
    inverse = ShiftedInverse(operator, shift=0.1, weights=weights, tolerance=1e-10)
    found = estimate(inverse, generator=_generator(), samples=60)
    dense = np.linalg.inv(matrix.numpy() + 0.1 * np.eye(40)) * np.outer(weights, weights)
    assert found.interval[0] <= np.trace(dense) <= found.interval[1]
    assert found.outcome is Outcome.CONVERGED
    assert found.matvecs == operator.matvecs == inverse.inner_matvecs
    assert found.inner_error < 1e-9


def test_inner_solves_that_do_not_converge_are_named() -> None:
    matrix = symmetric(torch.logspace(-12, 0, 60, dtype=torch.float64))
    inverse = ShiftedInverse(DenseOperator(matrix), max_iterations=20)
    found = hutchpp(inverse, generator=_generator(), samples=12)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.value is not None
    assert found.value < float(np.trace(np.linalg.inv(matrix.numpy())))
    assert found.inner_error > 1e-6


def test_exact_cases() -> None:
    low = symmetric([5.0, 3.0] + [0.0] * 58)
    assert hutchpp(DenseOperator(low), generator=_generator()).value == pytest.approx(8.0, rel=1e-10)
    assert hutchpp(DenseOperator(symmetric([1.0, 2.0])), generator=_generator()).value == pytest.approx(3.0)
    one = torch.tensor([[2.5]], dtype=torch.float64)
    for estimate in (hutchinson, hutchpp):
        found = estimate(DenseOperator(one), generator=_generator())
        assert found.value == pytest.approx(2.5)
        assert found.standard_error == pytest.approx(0.0, abs=1e-12)
        assert estimate(DenseOperator(torch.zeros(30, 30).double()), generator=_generator()).value == 0.0


@pytest.mark.parametrize("estimate", [hutchinson, hutchpp])
def test_not_finite_is_a_word_without_a_value(estimate: Estimator) -> None:
    broken = torch.full((40, 40), torch.nan, dtype=torch.float64)
    found = estimate(DenseOperator(broken), generator=_generator())
    assert (found.value, found.interval, found.outcome) == (None, None, Outcome.NOT_FINITE)


def test_same_generator_same_bits() -> None:
    operator = DenseOperator(symmetric(torch.linspace(1.0, 2.0, 50)))
    assert hutchpp(operator, generator=_generator(4)).value == hutchpp(operator, generator=_generator(4)).value


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="hutchinson: expected at least 2 samples, got 1"):
        hutchinson(DenseOperator(torch.eye(3)), generator=_generator(), samples=1)
    with pytest.raises(InputError, match="hutchpp: expected at least 6 samples, got 5"):
        hutchpp(DenseOperator(torch.eye(3)), generator=_generator(), samples=5)
    with pytest.raises(InputError, match="hutchpp: expected a square operator"):
        hutchpp(DenseOperator(torch.ones(2, 3)), generator=_generator())

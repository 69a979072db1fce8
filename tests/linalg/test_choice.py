from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import gradleak.linalg
from gradleak.linalg import (
    LSMR,
    ConjugateGradient,
    DenseOperator,
    DenseSolver,
    Hutchinson,
    HutchPlusPlus,
    LanczosQuadrature,
    LeastSquaresDescent,
    NeumannSeries,
    ShiftedInverse,
    Solver,
    block_lanczos,
    choose_inverse_solver,
    choose_trace_solver,
    conjugate_gradient,
    lanczos_quadrature,
    least_squares_descent,
    lobpcg,
    lsmr,
    neumann_series,
)
from gradleak.results import InputError

SOLVERS = (
    DenseSolver, ConjugateGradient, LSMR, NeumannSeries, LeastSquaresDescent, Hutchinson, HutchPlusPlus,
    LanczosQuadrature,
)  # fmt: skip
MIB = 2**20


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_are_frozen_named_and_exported(solver: type[Solver]) -> None:
    built = solver()
    assert built == solver()
    assert built.label
    assert all(field.kw_only for field in dataclasses.fields(solver))
    assert solver.__name__ in gradleak.linalg.__all__
    assert "Cost:" in (solver.__doc__ or "")


@pytest.mark.parametrize(
    ("shape", "epsilon", "max_bytes", "solver", "reason"),
    [
        ((17_038, 784), 0.0, 1024 * MIB, DenseSolver, "d = 784 is at most 4096"),
        ((17_038, 784), 1.0, 1024 * MIB, DenseSolver, "fits 1073741824 bytes"),
        ((11_000_000, 3072), 1.0, 1024 * MIB, ConjugateGradient, "A needs 270336000000 bytes"),
        ((11_000_000, 3072), 0.0, 1024 * MIB, DenseSolver, "d = 3072 is at most 4096"),
        ((17_038, 784), 0.0, 8 * MIB, LSMR, "a whole spectrum needs 24586240 bytes of 8388608; epsilon = 0"),
        ((17_038, 784), 1.0, 8 * MIB, ConjugateGradient, "a whole spectrum needs 24586240 bytes"),
        ((17_038, 150_528), 1.0, 1024 * MIB, ConjugateGradient, "d = 150528 is above 4096"),
        ((17_038, 150_528), 0.0, 1024 * MIB, LSMR, "d = 150528 is above 4096"),
    ],
)
def test_the_inverse_is_picked_by_size_epsilon_and_budget(
    shape: tuple[int, int], epsilon: float, max_bytes: int, solver: type[Solver], reason: str
) -> None:
    choice = choose_inverse_solver(shape, epsilon, max_bytes=max_bytes, limit=4096)
    assert type(choice.solver) is solver
    assert reason in choice.reason


def test_what_is_at_hand_is_used() -> None:
    assert choose_inverse_solver((9, 9999), 1.0, max_bytes=1, limit=1, at_hand=True).solver == DenseSolver()
    assert choose_trace_solver((9, 9999), max_bytes=1, limit=1, at_hand=True).solver == DenseSolver()


@pytest.mark.parametrize(
    ("size", "max_bytes", "solver"),
    [(784, 1024 * MIB, DenseSolver), (784, MIB, LanczosQuadrature), (5000, 1024 * MIB, LanczosQuadrature)],
)
def test_traces_are_picked_by_size_and_budget(size: int, max_bytes: int, solver: type[Solver]) -> None:
    assert type(choose_trace_solver((17_038, size), max_bytes=max_bytes, limit=4096).solver) is solver


def test_bad_fields() -> None:
    with pytest.raises(InputError, match="tolerance: expected a number between 0 and 1, got 0"):
        ConjugateGradient(tolerance=0.0)
    with pytest.raises(InputError, match=r"(max_iterations|max_terms): expected a whole number of at least 1, got 0"):
        NeumannSeries(max_terms=0)
    with pytest.raises(InputError, match="samples: expected a whole number of at least 6, got 3"):
        HutchPlusPlus(samples=3)
    with pytest.raises(InputError, match="steps: expected a whole number of at least 2, got 1"):
        LanczosQuadrature(steps=1)


@pytest.mark.parametrize("value", ["1", math.nan, -1.0, math.inf, True, None])
@pytest.mark.parametrize("setting", ["shift", "tolerance"])
def test_a_shift_or_tolerance_that_is_no_number_is_refused_and_not_converged(setting: str, value: Any) -> None:
    """Compared with NaN, every residual would be small enough."""
    matrix, vector = DenseOperator(torch.eye(3)), torch.ones(3)
    generator = torch.Generator()
    calls: list[Callable[..., object]] = [
        partial(conjugate_gradient, matrix, vector),
        partial(lsmr, matrix, vector),
        partial(neumann_series, matrix, vector, generator=generator),
        partial(least_squares_descent, matrix, vector, generator=generator),
        partial(ShiftedInverse, matrix),
    ]
    if setting == "tolerance":
        calls += [partial(block_lanczos, matrix, generator=generator), partial(lobpcg, matrix, generator=generator)]
        calls.append(partial(lanczos_quadrature, matrix, torch.reciprocal, generator=generator))
    for call in calls:
        with pytest.raises(InputError, match=f"{setting}: expected a finite number of at least 0, got "):
            call(**{setting: value})


@pytest.mark.parametrize("value", ["1", None, math.nan, 1.5, True, 2**64])
def test_seeds_of_solvers_are_those_that_torch_takes(value: Any) -> None:
    for solver in (NeumannSeries, LeastSquaresDescent, Hutchinson, HutchPlusPlus, LanczosQuadrature):
        with pytest.raises(InputError, match="seed: expected a whole number of at most 64 bits, got "):
            solver(seed=value)

from __future__ import annotations

import dataclasses

import pytest

import gradleak.linalg
from gradleak.linalg import (
    LSMR,
    ConjugateGradient,
    DenseSolver,
    Hutchinson,
    HutchPlusPlus,
    LanczosQuadrature,
    LeastSquaresDescent,
    NeumannSeries,
    Solver,
    choose_inverse_solver,
    choose_trace_solver,
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
    with pytest.raises(InputError, match="budget of iterations: expected at least 1, got 0"):
        NeumannSeries(max_terms=0)
    with pytest.raises(InputError, match="samples: expected at least 6, got 3"):
        HutchPlusPlus(samples=3)
    with pytest.raises(InputError, match="steps: expected at least 2, got 1"):
        LanczosQuadrature(steps=1)

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal, signed

from gradleak.linalg import ConjugateGradient, Hutchinson, HutchPlusPlus, LanczosQuadrature, TraceSolver
from gradleak.operators import GradientJacobian
from gradleak.results import Evidence, InputError, Outcome
from gradleak.risk import GaussianReconstructionError, InversionInfluence


def test_reference_values(reference: tuple[Oracle, GradientJacobian]) -> None:
    oracle, operator = reference
    want = oracle.values["gaussian_expected_squared_error_per_unit_variance"]
    score = GaussianReconstructionError(std=1.0)(oracle.exposure, operator=operator)
    assert score.value == pytest.approx(want, rel=1e-6)
    assert score.evidence is Evidence.ESTIMATE
    small = GaussianReconstructionError(std=1e-3)(oracle.exposure, operator=operator)
    assert small.value == pytest.approx(1e-6 * want, rel=1e-6)


@pytest.mark.parametrize("unit", ["input", "pixel_rmse"])
def test_is_the_mean_of_squared_influence_over_the_noise(unit: str) -> None:
    exposure = color(torch.Generator().manual_seed(0))
    operator = GradientJacobian(exposure)
    generator = torch.Generator().manual_seed(1)
    measure = InversionInfluence(unit=unit)
    squares = []
    for _ in range(600):
        noise = 0.01 * torch.randn(exposure.objective.size, generator=generator, dtype=torch.float64)
        value = measure(exposure, delta=noise, operator=operator).value
        assert value is not None
        squares.append(value**2)
    predicted = GaussianReconstructionError(std=0.01, unit=unit)(exposure, operator=operator).value
    assert predicted is not None
    expected = predicted if unit == "input" else predicted**2
    error = np.std(squares) / np.sqrt(len(squares))
    assert abs(np.mean(squares) - expected) < 4 * error
    assert error < 0.1 * expected


def test_pixel_unit_weights_each_entry_by_its_scale() -> None:
    exposure = color(torch.Generator().manual_seed(0))
    matrix = GradientJacobian(exposure).dense().numpy()
    scale = np.tile(np.repeat([0.2, 0.7], 9), 2)
    variances = np.diag(np.linalg.inv(matrix.T @ matrix))
    score = GaussianReconstructionError(std=0.3, unit="pixel_rmse")(exposure)
    assert score.value == pytest.approx(0.3 * np.sqrt(np.mean(scale**2 * variances)), rel=1e-8)
    assert score.unit == "pixel_rmse"


def test_rank_deficient_sums_over_the_range() -> None:
    score = GaussianReconstructionError(std=2.0)(diagonal([1.0, 0.0, 1.0], [2.0, 5.0, 1.0]))
    assert score.unit == "input^2"
    assert score.value == pytest.approx(4 * ((3 / 8) ** 2 + (3 / 4) ** 2))
    assert score.outcome is Outcome.NOT_IDENTIFIABLE
    assert score.details["null_dimension"] == 1


def test_noise_that_is_not_gaussian_is_unsupported_with_the_reason(mlp: Oracle) -> None:
    score = GaussianReconstructionError(std=1.0)(signed(mlp.exposure))
    assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    assert "signs are flipped at random" in score.note


@pytest.mark.parametrize("unit", ["input", "pixel_rmse"])
@pytest.mark.parametrize(
    "solver",
    [
        LanczosQuadrature(samples=40),
        HutchPlusPlus(samples=60, tolerance=1e-10),
        Hutchinson(samples=40, tolerance=1e-10),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_estimators_agree_with_the_spectrum_within_their_interval(solver: TraceSolver, unit: str) -> None:
    exposure = color(torch.Generator().manual_seed(0))
    operator = GradientJacobian(exposure)
    exact = GaussianReconstructionError(std=0.1, unit=unit)(exposure, operator=operator).value
    score = GaussianReconstructionError(std=0.1, unit=unit, solver=solver)(exposure, operator=operator)
    assert score.value is not None
    assert score.interval is not None
    assert score.interval[0] <= exact <= score.interval[1]
    assert score.value == pytest.approx(exact, rel=0.3)
    assert (score.evidence, score.details["solver"]) == (Evidence.ESTIMATE, solver.label)
    assert score.outcome is Outcome.CONVERGED


def test_beyond_the_dense_limit_it_is_estimated(mlp: Oracle) -> None:
    score = GaussianReconstructionError(std=1.0, dense_limit=10)(mlp.exposure)
    want = mlp.values["gaussian_expected_squared_error_per_unit_variance"]
    assert score.details["solver"] == "stochastic Lanczos quadrature"
    assert score.details["picked"].startswith("d = 48 is above 10")
    assert score.interval is not None
    assert score.interval[0] <= want <= score.interval[1]


def test_estimators_leave_the_null_space_out_and_say_so() -> None:
    exposure = diagonal([1.0, 0.0, 1.0], [2.0, 5.0, 1.0])
    score = GaussianReconstructionError(std=2.0, solver=LanczosQuadrature())(exposure)
    assert score.value == pytest.approx(4 * ((3 / 8) ** 2 + (3 / 4) ** 2))
    assert score.outcome is Outcome.NOT_IDENTIFIABLE
    assert score.details["null_dimension"] == pytest.approx(1.0)


@pytest.mark.parametrize("solver", [LanczosQuadrature(), HutchPlusPlus()])
def test_estimators_have_no_value_on_a_zero_map(solver: TraceSolver) -> None:
    score = GaussianReconstructionError(std=1.0, solver=solver)(diagonal([0.0, 0.0], [1.0, 2.0]))
    assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)


def test_a_budget_that_does_not_reach_the_small_eigenvalues_is_named() -> None:
    exposure = diagonal([1.0] * 30, np.logspace(-3, 0, 30).tolist())
    exact = GaussianReconstructionError(std=1.0)(exposure).value
    score = GaussianReconstructionError(std=1.0, solver=LanczosQuadrature(steps=8))(exposure)
    assert score.outcome is Outcome.BUDGET_SPENT
    assert score.value is not None
    assert exact is not None
    assert score.value < exact
    assert "were not resolved: too small, or too large" in score.note
    assert score.interval is None


@pytest.mark.parametrize("solver", [Hutchinson(), HutchPlusPlus()])
def test_estimators_that_need_an_inverse_refuse_a_null_space(solver: TraceSolver) -> None:
    # 1e16 times the sum over the range came out, or a negative trace.
    for blind in (1, 6):
        score = GaussianReconstructionError(std=1.0, solver=solver)(
            diagonal([1.0] * (40 - blind) + [0.0] * blind, np.linspace(1, 2, 40).tolist())
        )
        assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
        assert "take LanczosQuadrature or DenseSolver" in score.note


def test_a_solver_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"solver: expected .*Solver.*, got ConjugateGradient; \w+, for instance"):
        GaussianReconstructionError(std=1.0, solver=ConjugateGradient())


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_std(std: float) -> None:
    with pytest.raises(InputError, match="std: expected a finite positive number"):
        GaussianReconstructionError(std=std)

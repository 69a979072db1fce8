from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal, signed

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
    assert score.value == pytest.approx(4 * ((3 / 8) ** 2 + (3 / 4) ** 2))
    assert score.outcome is Outcome.NOT_IDENTIFIABLE
    assert score.details["null_dimension"] == 1


def test_noise_that_is_not_gaussian_is_unsupported_with_the_reason(mlp: Oracle) -> None:
    score = GaussianReconstructionError(std=1.0)(signed(mlp.exposure))
    assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    assert "signs are flipped at random" in score.note


def test_too_large_for_a_spectrum(mlp: Oracle) -> None:
    score = GaussianReconstructionError(std=1.0, dense_limit=10)(mlp.exposure)
    assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    assert "d = 48 is above the limit of 10" in score.note


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_std(std: float) -> None:
    with pytest.raises(InputError, match="std: expected a finite positive number"):
        GaussianReconstructionError(std=std)

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal, signed

from gradleak.core import Exposure
from gradleak.operators import GradientJacobian
from gradleak.results import Evidence, InputError, Leakier, Outcome
from gradleak.risk import InversionInfluence, InversionInfluenceLowerBound, Unit


def test_reference_values(reference: tuple[Oracle, GradientJacobian]) -> None:
    oracle, operator = reference
    want = oracle.values

    def value(measure: InversionInfluence | InversionInfluenceLowerBound) -> float | None:
        return measure(oracle.exposure, delta=oracle.delta, operator=operator).value

    assert value(InversionInfluence()) == pytest.approx(want["i2f_exact"], rel=1e-6)
    assert value(InversionInfluence(epsilon=1.0)) == pytest.approx(want["i2f_epsilon_1"], rel=1e-6)
    assert value(InversionInfluence(epsilon=1e-3)) == pytest.approx(want["i2f_epsilon_0.001"], rel=1e-6)
    assert value(InversionInfluenceLowerBound()) == pytest.approx(want["i2f_lower_bound"], rel=1e-6)


def test_reference_values_without_a_spectrum(reference: tuple[Oracle, GradientJacobian]) -> None:
    oracle, _ = reference
    operator = GradientJacobian(oracle.exposure)
    bound = InversionInfluenceLowerBound()(oracle.exposure, delta=oracle.delta, operator=operator)
    assert bound.value == pytest.approx(oracle.values["i2f_lower_bound"], rel=1e-6)
    assert bound.details["solver"] == "block Lanczos"
    iterated = InversionInfluence(epsilon=1.0, dense_limit=1)(oracle.exposure, delta=oracle.delta, operator=operator)
    assert iterated.value == pytest.approx(oracle.values["i2f_epsilon_1"], rel=1e-6)
    assert not operator.has_spectrum


def test_lower_bound_with_epsilon(mlp: Oracle) -> None:
    score = InversionInfluenceLowerBound(epsilon=0.5)(mlp.exposure, delta=mlp.delta)
    want = mlp.values["J_delta_norm"] / (mlp.values["gram_eigenvalue_max"] + 0.5)
    assert score.value == pytest.approx(want, rel=1e-9)
    assert score.evidence is Evidence.LOWER_BOUND


def test_evidence_and_direction(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    score = InversionInfluence()(mlp.exposure, delta=mlp.delta, operator=mlp_operator)
    assert (score.name, score.unit, score.leakier) == ("inversion_influence", "input", Leakier.LOWER)
    assert (score.evidence, score.outcome, score.note) == (Evidence.EXACT, Outcome.CONVERGED, "")
    assert score.details["solver"] == "dense spectrum"
    assert score.details["null_dimension"] == 0


def test_delta_by_name_equals_the_flat_one(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    named = mlp.exposure.objective.unflatten(mlp.delta)
    shuffled = dict(sorted(named.items()))
    measure = InversionInfluence()
    assert (
        measure(mlp.exposure, delta=shuffled, operator=mlp_operator).value
        == measure(mlp.exposure, delta=mlp.delta, operator=mlp_operator).value
    )


def _color_case() -> tuple[Exposure, torch.Tensor, np.ndarray, np.ndarray]:
    exposure = color(torch.Generator().manual_seed(0), low=0.0, high=2.0)
    size = exposure.objective.size
    delta = 1e-4 * torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    matrix = GradientJacobian(exposure).dense().numpy()
    moved = np.linalg.lstsq(matrix, delta.numpy(), rcond=None)[0]
    return exposure, delta, matrix, moved


def test_pixel_unit_undoes_the_normalization_by_channel() -> None:
    exposure, delta, _, moved = _color_case()
    # Per example: nine pixels of channel 0 (std 0.2), nine of channel 1 (std 0.7), over a range of 2.
    scale = np.tile(np.repeat([0.1, 0.35], 9), 2)
    score = InversionInfluence(unit="pixel_rmse")(exposure, delta=delta)
    assert score.unit == "pixel_rmse"
    assert score.value == pytest.approx(np.sqrt(np.mean((scale * moved) ** 2)), rel=1e-8)
    assert InversionInfluence()(exposure, delta=delta).value == pytest.approx(np.linalg.norm(moved), rel=1e-8)


def test_pixel_lower_bound_stays_below_and_uses_the_smallest_scale() -> None:
    exposure, delta, matrix, _ = _color_case()
    bound = InversionInfluenceLowerBound(unit=Unit.PIXEL_RMSE)(exposure, delta=delta).value
    exact = InversionInfluence(unit=Unit.PIXEL_RMSE)(exposure, delta=delta).value
    raw = np.linalg.norm(matrix.T @ delta.numpy()) / np.linalg.norm(matrix, 2) ** 2
    assert bound == pytest.approx(0.1 * raw / 6, rel=1e-8)
    assert bound is not None
    assert exact is not None
    assert bound <= exact


def test_rank_deficient_keeps_the_value_over_the_range() -> None:
    # The second input meets weight 0: A = diag(4·1·2/3, 0, 4·1·1/3).
    exposure = diagonal([1.0, 0.0, 1.0], [2.0, 5.0, 1.0])
    delta = torch.tensor([8 / 3, 7.0, 4 / 3], dtype=torch.float64)
    score = InversionInfluence()(exposure, delta=delta)
    assert score.value == pytest.approx(np.sqrt(2.0))
    assert score.outcome is Outcome.NOT_IDENTIFIABLE
    assert score.details["null_dimension"] == 1
    assert "1 of 3 directions" in score.note
    shifted = InversionInfluence(epsilon=1.0)(exposure, delta=delta)
    first, third = (8 / 3) ** 2, (4 / 3) ** 2
    assert shifted.value == pytest.approx(np.hypot(first / (first + 1), third / (third + 1)))
    assert shifted.outcome is Outcome.CONVERGED
    assert shifted.details["null_dimension"] == 1


@pytest.mark.parametrize(
    "measure",
    [InversionInfluence(), InversionInfluence(epsilon=0.1), InversionInfluenceLowerBound()],
)
def test_a_zero_map_has_no_value(mlp: Oracle, measure: InversionInfluence) -> None:
    score = measure(signed(mlp.exposure), delta=mlp.delta)
    assert score.value is None
    assert score.outcome is Outcome.NOT_INFORMATIVE
    assert "no evidence of safety" in score.note


def test_one_unknown() -> None:
    score = InversionInfluence()(diagonal([3.0], [2.0]), delta=torch.tensor([2.4], dtype=torch.float64))
    assert score.value == pytest.approx(0.1)


def test_a_zero_perturbation_moves_nothing(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    delta = torch.zeros_like(mlp.delta)
    assert InversionInfluence()(mlp.exposure, delta=delta, operator=mlp_operator).value == 0.0


def test_beyond_the_dense_limit(mlp: Oracle) -> None:
    unshifted = InversionInfluence(dense_limit=10)(mlp.exposure, delta=mlp.delta)
    assert (unshifted.value, unshifted.outcome) == (None, Outcome.UNSUPPORTED)
    assert "use epsilon > 0" in unshifted.note
    shifted = InversionInfluence(epsilon=1e-3, dense_limit=10)(mlp.exposure, delta=mlp.delta)
    assert shifted.value == pytest.approx(mlp.values["i2f_epsilon_0.001"], rel=1e-6)
    assert shifted.details["solver"] == "conjugate gradients"
    assert shifted.evidence is Evidence.EXACT


def test_a_spent_budget_keeps_the_value_as_an_estimate(mlp: Oracle) -> None:
    score = InversionInfluence(epsilon=1e-3, dense_limit=10, max_iterations=2)(mlp.exposure, delta=mlp.delta)
    assert score.outcome is Outcome.BUDGET_SPENT
    assert score.evidence is Evidence.ESTIMATE
    assert score.value is not None
    assert score.details["residual"] > 1e-8


def test_float32_exposures_are_judged_in_float64(mlp: Oracle) -> None:
    score = InversionInfluence()(mlp.exposure.to(torch.float32), delta=mlp.delta)
    assert score.value == pytest.approx(mlp.values["i2f_exact"], rel=1e-4)


@pytest.mark.parametrize("measure", [InversionInfluence, InversionInfluenceLowerBound])
def test_bad_fields(measure: type[InversionInfluence]) -> None:
    with pytest.raises(InputError, match="epsilon: expected a finite number of at least 0, got -1"):
        measure(epsilon=-1.0)
    with pytest.raises(InputError, match="unit: expected one of input, pixel_rmse, got 'pixels'"):
        measure(unit="pixels")

from __future__ import annotations

import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal, signed

from gradleak.operators import GradientJacobian
from gradleak.results import Evidence, InputError, Leakier, Outcome
from gradleak.risk import InversionInfluenceLowerBound, LipschitzBound


def test_one_unknown_in_closed_form() -> None:
    # g = 2·3·x², A = 12 x: at x = 2 the Jacobian changes by 12 a unit, and the largest |A| is at the farthest sample.
    delta = torch.tensor([2.0], dtype=torch.float64)
    score = LipschitzBound(samples=40, radius=0.5)(diagonal([3.0], [2.0]), delta=delta)
    assert score.details["lipschitz_jacobian"] == pytest.approx(12.0)
    mu = score.details["lipschitz_release"]
    assert 12 * 2.4 < mu <= 12 * 2.5
    assert score.value == pytest.approx(24 * 2 / (mu * 24 + 2 * 12 * 26))
    assert score.details["weaker_form"] == pytest.approx(24 * 2 / (mu * 24 + 12 * (26 + 2 + 26)))
    # x* solves 6 x² = 26.
    assert score.value <= (26 / 6) ** 0.5 - 2.0
    assert (score.evidence, score.leakier) == (Evidence.ESTIMATE, Leakier.LOWER)
    assert "attainable" in score.note


def test_stays_below_the_error_of_an_attainable_perturbation(mlp: Oracle, mlp_operator: GradientJacobian) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (0.01, 0.1, 1.0):
        moved = mlp.exposure.inputs + size * torch.randn(48, generator=generator, dtype=torch.float64)
        delta = mlp.exposure.mean(moved) - mlp.exposure.released_mean()
        score = LipschitzBound(samples=4, radius=size)(mlp.exposure, delta=delta, operator=mlp_operator)
        assert score.value is not None
        assert 0 < score.value < float((moved - mlp.exposure.inputs).norm())


def test_the_weaker_form_holds_where_the_perturbed_release_is_not_attainable() -> None:
    # g = 2 w x²/2 with w = (1, 1) is (x₁², x₂²), never negative: δ = (-5, 0) from (1, 1) is fitted best at x₁ = 0.
    delta = torch.tensor([-5.0, 0.0], dtype=torch.float64)
    score = LipschitzBound(samples=200, radius=1.0)(diagonal([1.0, 1.0], [1.0, 1.0]), delta=delta)
    assert score.details["lipschitz_jacobian"] == pytest.approx(2.0, rel=1e-2)
    assert score.details["weaker_form"] <= 1.0
    mu = score.details["lipschitz_release"]
    assert score.details["weaker_form"] == pytest.approx(10 / (mu * 2 + 2 * (2 * 17**0.5 + 5)), rel=1e-2)


def test_is_below_the_bound_of_influence_for_the_same_seed_and_in_pixels(mlp: Oracle) -> None:
    exposure = color(torch.Generator().manual_seed(0))
    delta = 1e-3 * torch.randn(exposure.objective.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    score = LipschitzBound(samples=2)(exposure, delta=delta)
    assert score.value <= InversionInfluenceLowerBound()(exposure, delta=delta).value
    pixels = LipschitzBound(samples=2, unit="pixel_rmse")(exposure, delta=delta)
    assert pixels.value == pytest.approx(0.2 * score.value / 6)
    assert pixels.details["weaker_form"] == pytest.approx(0.2 * score.details["weaker_form"] / 6)
    other = LipschitzBound(samples=2, seed=1)(exposure, delta=delta)
    assert other.details["lipschitz_jacobian"] != score.details["lipschitz_jacobian"]


def test_a_zero_map_and_bad_fields(mlp: Oracle) -> None:
    score = LipschitzBound(samples=1)(signed(mlp.exposure), delta=mlp.delta)
    assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)
    with pytest.raises(InputError, match="samples: expected a whole number of at least 1, got 0"):
        LipschitzBound(samples=0)
    with pytest.raises(InputError, match="radius: expected a finite positive number"):
        LipschitzBound(radius=0.0)

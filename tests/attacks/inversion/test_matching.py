"""Matching losses against their formulas in double precision."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import CosineDistance, SquaredError


def _pair(dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(50, generator=generator, dtype=dtype), torch.randn(50, generator=generator, dtype=dtype)


def test_squared_error_is_the_relative_squared_residual() -> None:
    candidate, target = _pair()
    expected = float((candidate - target).norm() ** 2 / target.norm() ** 2)
    assert float(SquaredError()(candidate, target)) == pytest.approx(expected, rel=1e-12)
    assert float(SquaredError()(torch.zeros_like(target), target)) == pytest.approx(1.0)


def test_cosine_distance_is_one_minus_the_cosine() -> None:
    candidate, target = _pair()
    expected = 1 - float(torch.nn.functional.cosine_similarity(candidate, target, dim=0))
    assert float(CosineDistance()(candidate, target)) == pytest.approx(expected, rel=1e-12)
    assert float(CosineDistance()(-target, target)) == pytest.approx(2.0)


def test_cosine_distance_keeps_its_digits_in_single_precision() -> None:
    candidate, target = _pair()
    near = target + 1e-5 * candidate
    exact = 0.5 * float((near / near.norm() - target / target.norm()).norm() ** 2)
    assert float(CosineDistance()(near.float(), target.float())) == pytest.approx(exact, rel=0.05)


def test_cosine_gradient_is_that_of_the_formula() -> None:
    candidate, target = _pair()
    found = torch.func.grad(CosineDistance())(candidate, target)
    expected = torch.func.grad(lambda c: 1 - (c @ target) / (c.norm() * target.norm()))(candidate)
    torch.testing.assert_close(found, expected)


def test_a_zero_candidate_has_distance_one_and_no_gradient() -> None:
    _, target = _pair()
    gradient, value = torch.func.grad_and_value(CosineDistance())(torch.zeros_like(target), target)
    assert float(value) == 1.0
    assert not gradient.any()


@pytest.mark.parametrize("matching", [SquaredError(), CosineDistance()])
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8])
def test_the_scale_of_the_update_does_not_matter(matching, scale: float) -> None:
    candidate, target = _pair(torch.float32)
    assert float(matching(candidate * scale, target * scale)) == pytest.approx(
        float(matching(candidate, target)), rel=1e-5
    )

"""Matching losses against their formulas in double precision."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import (
    CosineDistance,
    Inversion,
    LayerWeights,
    LayerwiseError,
    Matching,
    SharedEntries,
    SquaredAndAbsoluteError,
    SquaredError,
)
from gradleak.core import Objective
from gradleak.results import InputError, Outcome
from tests.attacks.setting import rows, setting, small_net


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


def _objective() -> Objective:
    return Objective.from_module(small_net()).to(torch.float64)


class FourthPower(Matching):
    """A distance of a user's own, with nothing but its formula."""

    def __call__(self, candidate: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((candidate - target) / target.norm()).pow(4).sum()


MATCHINGS = {
    "layerwise": LayerwiseError(absolute=0.3),
    "squared": SquaredError(),
    "cosine": CosineDistance(),
    "tag": SquaredAndAbsoluteError(absolute=0.3),
    "own": FourthPower(),
    "shared": SharedEntries(matching=CosineDistance()),
    "shared squared": SharedEntries(matching=SquaredError()),
    "weights": LayerWeights(matching=SquaredError(), weights={"0": 0.5, "2.bias": 0.0}, default=2.0),
    "weights cosine": LayerWeights(matching=CosineDistance(), weights={"4.weight": 3.0}),
    "nested": LayerWeights(matching=SharedEntries(matching=CosineDistance()), weights={"0": 0.1}),
}
each_matching = pytest.mark.parametrize("matching", MATCHINGS.values(), ids=MATCHINGS)


def _updates(objective: Objective) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A candidate and a target, with zeros in some of the target's entries as pruning leaves them."""
    generator = torch.Generator().manual_seed(3)
    pair = [
        [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in objective.params.values()]
        for _ in range(2)
    ]
    pair[1][0][:, ::3] = 0.0
    return pair[0], pair[1]


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@each_matching
def test_the_derivative_against_a_target_is_that_of_the_formula(matching: Matching) -> None:
    objective = _objective()
    matching = matching.bind(objective)
    candidate, target = _updates(objective)
    flat = _flat(candidate).requires_grad_()
    value = matching(flat, _flat(target))
    (expected,) = torch.autograd.grad(value, flat)
    found, slope = matching.against(target)(candidate)
    assert [entry.shape for entry in slope] == [entry.shape for entry in candidate]
    torch.testing.assert_close(found, value.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(_flat(slope), expected, rtol=1e-10, atol=1e-14)


@each_matching
def test_the_update_itself_is_at_distance_zero_and_a_step_down_the_slope_comes_nearer(matching: Matching) -> None:
    objective = _objective()
    matching = matching.bind(objective)
    candidate, target = _updates(objective)
    measure = matching.against(target)
    assert float(measure(target)[0]) == pytest.approx(0.0, abs=1e-28)
    value, slope = measure(candidate)
    step = 1e-3 / float(_flat(slope).norm())
    assert float(measure([c - step * s for c, s in zip(candidate, slope, strict=True)])[0]) < float(value)


@each_matching
def test_lists_of_tensors_are_at_the_distance_of_flat_updates(matching: Matching) -> None:
    objective = _objective()
    matching = matching.bind(objective)
    candidate, target = _updates(objective)
    for guess in (candidate, target, [torch.zeros_like(entry) for entry in candidate]):
        leaves = [entry.clone().requires_grad_() for entry in guess]
        found, expected = matching.between(leaves, target), matching(_flat(leaves), _flat(target))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-28)
        slopes = (torch.autograd.grad(value, leaves, allow_unused=True) for value in (found, expected))
        for one, other in zip(*slopes, strict=True):
            assert torch.isfinite(one).all()
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-14)


@each_matching
def test_a_zero_candidate_has_a_finite_slope(matching: Matching) -> None:
    objective = _objective()
    matching = matching.bind(objective)
    candidate, target = _updates(objective)
    value, slope = matching.against(target)([torch.zeros_like(entry) for entry in candidate])
    assert torch.isfinite(value)
    assert torch.isfinite(_flat(slope)).all()


@each_matching
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_candidate_is_never_a_finite_distance(matching: Matching, bad: float) -> None:
    objective = _objective()
    matching = matching.bind(objective)
    candidate, target = _updates(objective)
    candidate[0][0, 1] = bad
    assert not torch.isfinite(matching.against(target)(candidate)[0])
    assert not torch.isfinite(matching(_flat(candidate), _flat(target)))


@pytest.mark.parametrize("matching", [m for m in MATCHINGS.values() if not isinstance(m, FourthPower)])
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_tiny_and_huge_updates_have_the_slope_of_ordinary_ones(matching: Matching, scale: float) -> None:
    objective = _objective().to(torch.float32)
    matching = matching.bind(objective)
    candidate, target = ([t.float() for t in tensors] for tensors in _updates(objective))
    value, slope = matching.against(target)(candidate)
    scaled, steep = matching.against([scale * t for t in target])([scale * t for t in candidate])
    torch.testing.assert_close(scaled, value, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(_flat(steep).double() * scale, _flat(slope).double(), rtol=1e-3, atol=1e-8)


def test_weights_multiply_layers_by_the_longest_name_that_fits() -> None:
    objective = _objective()
    candidate, target = _updates(objective)
    weights = {"0": 2.0, "0.bias": 0.0, "4": 3.0}
    factors = {"0.weight": 2.0, "0.bias": 0.0, "2.weight": 1.0, "2.bias": 1.0, "4.weight": 3.0, "4.bias": 3.0}
    gap = above = 0.0
    for name, c, t in zip(objective.params, candidate, target, strict=True):
        gap += float((factors[name] * (c - t)).square().sum())
        above += float((factors[name] * t).square().sum())
    bound = LayerWeights(matching=SquaredError(), weights=weights).bind(objective)
    assert float(bound(_flat(candidate), _flat(target))) == pytest.approx(gap / above, rel=1e-12)


def test_entries_that_were_not_shared_do_not_count() -> None:
    objective = _objective()
    candidate, target = _updates(objective)
    kept = _flat(target) != 0
    found = SharedEntries(matching=CosineDistance())(_flat(candidate), _flat(target))
    expected = 1 - torch.cosine_similarity(_flat(candidate)[kept], _flat(target)[kept], dim=0)
    torch.testing.assert_close(found, expected)


def test_a_broken_entry_that_was_not_shared_does_not_count_either() -> None:
    objective = _objective()
    candidate, target = _updates(objective)
    whole = SharedEntries(matching=SquaredError()).against(target)(candidate)
    candidate[0][0, 0] = torch.nan
    broken = SharedEntries(matching=SquaredError()).against(target)(candidate)
    assert torch.equal(whole[0], broken[0])
    assert torch.equal(_flat(whole[1]), _flat(broken[1]))


def test_names_and_weights_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(InputError, match="at least 0"):
        LayerWeights(matching=SquaredError(), weights={"0": -1.0})
    with pytest.raises(InputError, match="at least 0"):
        SquaredAndAbsoluteError(absolute=-0.1)
    with pytest.raises(InputError, match=r"got '2.weihgt'; did you mean '2.weight'"):
        LayerWeights(matching=SquaredError(), weights={"2.weihgt": 1.0}).bind(_objective())
    with pytest.raises(InputError, match="expected a bound distance"):
        LayerWeights(matching=SquaredError(), weights={})(torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("inner", [SquaredError(), CosineDistance()])
@pytest.mark.parametrize("starts", [1, 2])
def test_weights_that_leave_nothing_to_match_are_no_signal(inner: Matching, starts: int) -> None:
    case = setting(small_net(), rows(1))
    matching = LayerWeights(matching=inner, weights={}, default=0.0)
    found = Inversion(matching=matching, restarts=starts)(
        case.update, case.knowledge, generator=torch.Generator().manual_seed(0)
    )
    assert found.outcome is Outcome.NO_SIGNAL
    assert found.inputs is None
    assert "no evidence of safety" in found.note

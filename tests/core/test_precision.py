from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gradleak.core import (
    Batch,
    Objective,
    Release,
    Update,
    UpdateDefense,
    computed_in_half,
    precision_of,
    whole_precision,
)
from gradleak.defenses import Quantize, Sign
from gradleak.protocols import FedSGD
from gradleak.results import InputError


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_shares_in_every_format(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    values = [0.0, -0.0, tiny, tiny / 2, -tiny / 4, 1.0, float("inf"), float("nan")]
    found = precision_of(torch.tensor(values, dtype=torch.float64).to(dtype))
    assert (found.zero, found.subnormal, found.non_finite) == (0.25, 0.25, 0.25)
    assert found.flushed == 0.5
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert found.entries == 8


def test_agrees_with_numpy_on_a_cast() -> None:
    values = 10.0 ** torch.empty(5000, dtype=torch.float64).uniform_(-12, 1, generator=torch.Generator().manual_seed(0))
    half = values.half()
    found = precision_of(half)
    array = values.numpy().astype(np.float16)
    assert found.zero == np.mean(array == 0)
    assert found.subnormal == np.mean((array != 0) & (np.abs(array) < np.finfo(np.float16).smallest_normal))


def _gradient(scale: float, dtype: torch.dtype) -> Update:
    model = nn.Sequential(nn.utils.skip_init(nn.Linear, 20, 30), nn.Tanh(), nn.utils.skip_init(nn.Linear, 30, 4))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
        model[2].weight.mul_(scale)
    batch = Batch(torch.rand(1, 20, generator=generator), torch.tensor([1]))
    return Release(FedSGD())(Objective.from_module(model.to(dtype)), batch, torch.Generator())


def test_a_model_with_tiny_gradients_loses_its_first_layer_in_half_precision() -> None:
    """U40: the share that the format flushed, by layer."""
    lost, kept = _gradient(1e-6, torch.float16), _gradient(1e-6, torch.float32)
    first = lost.precision()["0.weight"]
    assert first.flushed > 0.95
    assert kept.precision()["0.weight"].flushed == 0.0
    assert lost.precision()["2.weight"].flushed < 0.1
    whole = whole_precision(lost.precision())
    sizes = {name: part.entries for name, part in lost.precision().items()}
    want = sum(lost.precision()[name].flushed * size for name, size in sizes.items()) / sum(sizes.values())
    assert whole.flushed == pytest.approx(want)
    assert whole.entries == 20 * 30 + 30 + 30 * 4 + 4


@pytest.mark.parametrize("scale", [1.0, 2.0**-16, 2.0**10])
def test_half_precision_shows_in_wider_numbers_behind_a_loss_scale(scale: float) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        update = _gradient(1.0, dtype)
        unscaled = [tensor.float() * scale for tensor in update.tensors.values()]
        assert computed_in_half(unscaled) is dtype
        assert computed_in_half(tensor.double() for tensor in unscaled) is dtype
    assert computed_in_half(_gradient(1.0, torch.float32).tensors.values()) is None


def test_what_says_nothing_about_its_format() -> None:
    assert computed_in_half([torch.ones(10)]) is None  # too few numbers
    assert computed_in_half([torch.zeros(1000), torch.full((1000,), float("nan"))]) is None
    assert computed_in_half([torch.ones(1000).half()]) is None  # half itself needs no guess
    assert computed_in_half([torch.linspace(0.1, 1.0, 1000).half().float() / 3.0]) is None  # no power of two


@pytest.mark.parametrize(
    "defense",
    [Sign(), Quantize(bits=8, stochastic=False, limit=1.0), Quantize(bits=8, stochastic=False, limit=127 / 64)],
    ids=["sign", "limit 1", "grid of 1/64"],
)
def test_signs_and_levels_are_no_half_precision(defense: UpdateDefense) -> None:
    plain = {name: 2.0 * tensor / tensor.abs().max() for name, tensor in _gradient(1.0, torch.float32).tensors.items()}
    assert computed_in_half(defense.mean(plain).values()) is None
    # Powers of two, which are on no even grid, take one leading digit.
    assert computed_in_half(tensor.sign() * 2.0 ** tensor.abs().log2().round() for tensor in plain.values()) is None


def test_alignment_lists_every_tensor_that_is_not_finite() -> None:
    objective = Objective.from_module(nn.utils.skip_init(nn.Linear, 2, 2))
    weight = torch.tensor([[1.0, float("inf")], [0.0, 1.0]])
    update = Update(tensors={"weight": weight.half(), "bias": torch.full((2,), float("nan")).half()})
    with pytest.raises(InputError, match=r"25.0% of weight, 100.0% of bias is NaN or infinite"):
        update.align(objective)

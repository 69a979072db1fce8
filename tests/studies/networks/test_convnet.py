from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradleak.models import Norm
from gradleak.results import InputError
from studies.networks import convnet, convnet9

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def test_the_parameters_are_those_of_the_paper() -> None:
    channels = [3, 64, 128, 128, 256, 256, 256, 256, 256]
    convolutions = sum(9 * a * b + b for a, b in itertools.pairwise(channels))
    norms = sum(2 * width for width in channels[1:])
    linear = 10 * (256 * 3 * 3 + 1)
    assert sum(p.numel() for p in convnet().parameters()) == convolutions + norms + linear == 2_904_970


@pytest.mark.parametrize(("size", "channels"), [(32, 3), (28, 1)])
def test_it_computes_what_torch_computes_layer_by_layer(size: int, channels: int) -> None:
    model = convnet(width=8, size=size, channels=channels, classes=7).eval()
    state = model.state_dict()
    x = torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    found = model(x)
    for number in range(1, 9):
        x = F.conv2d(x, state[f"conv{number}.weight"], state[f"conv{number}.bias"], padding=1)
        # A fresh network in eval mode divides by the root of 1 + 1e-5 and does nothing else.
        x = F.relu(x / (1 + 1e-5) ** 0.5)
        if number in (6, 8):
            x = F.max_pool2d(x, 3)
    assert x.shape == (2, 32, 3, 3)
    torch.testing.assert_close(found, F.linear(x.flatten(1), state["linear.weight"], state["linear.bias"]))


@pytest.mark.parametrize("norm", list(Norm))
def test_norms_and_activations(norm: Norm) -> None:
    model = convnet(width=8, norm=norm, activation="gelu", size=9).eval()
    assert model(torch.ones(3, 3, 9, 9)).shape == (3, 10)
    assert any(isinstance(part, nn.BatchNorm2d) for part in model) is (norm is Norm.BATCH)
    assert not any(isinstance(part, nn.ReLU) for part in model)


def test_the_same_generator_gives_the_same_weights() -> None:
    first, second = (convnet(width=2, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.linear.weight, convnet(width=2).linear.weight)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="width"):
        convnet(width=0)
    with pytest.raises(InputError, match="size of at least 9, got 8"):
        convnet(size=8)
    with pytest.raises(InputError, match="expected a width that 8 divides, for group normalization, got 12"):
        convnet(width=12, norm="group")
    with pytest.raises(InputError, match="activation: expected one of sigmoid, tanh"):
        convnet(activation="swish")


def test_nine_convolutions_are_those_of_the_table() -> None:
    model = convnet9()
    channels = [3, 8, 16, 16, 32, 32, 32, 32, 32, 32]
    kernels = [part for part in model if isinstance(part, nn.Conv2d)]
    assert [(part.in_channels, part.out_channels) for part in kernels] == list(itertools.pairwise(channels))
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = model(x)
    for number, part in enumerate(kernels, start=1):
        x = F.relu(F.conv2d(x, part.weight, part.bias, padding=1))
        if number in (6, 9):
            x = F.max_pool2d(x, 3)
    torch.testing.assert_close(found, F.linear(x.flatten(1), model.linear.weight, model.linear.bias))


def test_the_gradient_of_the_paper_has_the_length_of_eight_convolutions() -> None:
    assert sum(p.numel() for p in convnet(classes=2, width=8, norm="none").parameters()) == 45_922
    with pytest.raises(InputError, match="convnet9: expected size of at least 9, got 8"):
        convnet9(size=8)

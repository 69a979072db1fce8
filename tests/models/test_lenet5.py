"""LeNet-5 against its list of layers written out in functional torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.models import lenet5
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def by_hand(p: dict[str, Tensor], x: Tensor) -> Tensor:
    for number in (1, 2):
        x = F.max_pool2d(F.relu(F.conv2d(x, p[f"conv{number}.weight"], p[f"conv{number}.bias"])), 2)
    x = x.flatten(1)
    for number in (1, 2):
        x = F.relu(F.linear(x, p[f"fc{number}.weight"], p[f"fc{number}.bias"]))
    return F.linear(x, p["fc3.weight"], p["fc3.bias"])


@pytest.mark.parametrize(("channels", "size", "classes"), [(3, 32, 100), (1, 28, 10), (1, 19, 2)])
def test_logits_and_gradients_are_those_of_its_layers(channels: int, size: int, classes: int) -> None:
    model = lenet5(channels=channels, size=size, classes=classes).double()
    x = torch.rand(3, channels, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(3) % classes
    leaves = {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    expected = by_hand(leaves, x)
    assert expected.shape == (3, classes)
    torch.testing.assert_close(model(x), expected)
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    twin = torch.autograd.grad(F.cross_entropy(expected, y), list(leaves.values()))
    torch.testing.assert_close(found, twin)


def test_sizes_of_layers_follow_from_the_filters_of_the_paper() -> None:
    # filters · (inputs · kernel² + 1), then outputs · (inputs + 1)
    counts = [sum(p.numel() for p in layer.parameters()) for layer in lenet5().children() if list(layer.parameters())]
    assert counts == [6 * 26, 16 * 151, 120 * 401, 84 * 121, 10 * 85]


def test_weights_come_from_the_generator() -> None:
    def first(seed: int) -> Tensor:
        return lenet5(generator=torch.Generator().manual_seed(seed)).conv1.weight

    assert torch.equal(first(5), first(5))
    assert not torch.equal(first(5), first(6))
    assert torch.equal(lenet5().conv1.weight, first(0))


def test_unfit_settings_are_refused() -> None:
    assert lenet5(channels=1, size=16)(torch.zeros(1, 1, 16, 16)).shape == (1, 10)
    with pytest.raises(InputError, match="expected size of at least 16, got 15"):
        lenet5(size=15)
    with pytest.raises(InputError, match="activation: expected one of sigmoid, tanh"):
        lenet5(activation="step")
    with pytest.raises(InputError, match="classes"):
        lenet5(classes=0)

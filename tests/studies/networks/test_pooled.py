"""The networks of the localization paper, against its list of layers written out in functional torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.results import InputError
from studies.networks import alexnet_small, vgg9

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

Net = Callable[..., nn.Sequential]


def convolved(p: dict[str, Tensor], x: Tensor, number: int, padding: int) -> Tensor:
    return F.relu(F.conv2d(x, p[f"conv{number}.weight"], p[f"conv{number}.bias"], padding=padding))


def head(p: dict[str, Tensor], x: Tensor) -> Tensor:
    x = x.flatten(1)
    for number in (1, 2):
        x = F.relu(F.linear(x, p[f"fc{number}.weight"], p[f"fc{number}.bias"]))
    return F.linear(x, p["fc3.weight"], p["fc3.bias"])


def alexnet_by_hand(p: dict[str, Tensor], x: Tensor) -> Tensor:
    x = F.max_pool2d(convolved(p, convolved(p, x, 1, 2), 2, 1), 2)
    for number in (3, 4, 5):
        x = convolved(p, x, number, 1)
    return head(p, F.max_pool2d(x, 2))


def vgg9_by_hand(p: dict[str, Tensor], x: Tensor) -> Tensor:
    for number in range(1, 7):
        x = convolved(p, x, number, 1)
        if number in (3, 6):
            x = F.max_pool2d(x, 2)
    return head(p, x)


@pytest.mark.parametrize(("build", "by_hand"), [(alexnet_small, alexnet_by_hand), (vgg9, vgg9_by_hand)])
@pytest.mark.parametrize(("channels", "size", "classes"), [(3, 32, 100), (1, 28, 10), (1, 19, 2)])
def test_logits_and_gradients_are_those_of_the_layers_of_the_paper(
    build: Net, by_hand: Callable[..., Tensor], channels: int, size: int, classes: int
) -> None:
    model = build(channels=channels, size=size, classes=classes).double()
    x = torch.rand(3, channels, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(3) % classes
    leaves = {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    expected = by_hand(leaves, x)
    assert expected.shape == (3, classes)
    torch.testing.assert_close(model(x), expected)
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    twin = torch.autograd.grad(F.cross_entropy(expected, y), list(leaves.values()))
    torch.testing.assert_close(found, twin)


def counted(model: nn.Module) -> list[int]:
    """Parameters of each layer, weight and bias together."""
    return [sum(p.numel() for p in layer.parameters()) for layer in model.children() if list(layer.parameters())]


def test_sizes_of_layers_follow_from_the_filters_of_the_paper() -> None:
    # filters · (inputs · kernel² + 1), then outputs · (inputs + 1)
    assert counted(alexnet_small(classes=100)) == [
        8 * 76, 16 * 73, 32 * 145, 32 * 289, 32 * 289, 120 * 2049, 84 * 121, 100 * 85,
    ]  # fmt: skip
    assert counted(vgg9(classes=100)) == [
        8 * 28, 16 * 73, 16 * 145, 32 * 145, 32 * 289, 32 * 289, 256 * 2049, 128 * 257, 100 * 129,
    ]  # fmt: skip


@pytest.mark.parametrize("build", [alexnet_small, vgg9])
def test_weights_come_from_the_generator(build: Net) -> None:
    def first(seed: int) -> Tensor:
        return build(generator=torch.Generator().manual_seed(seed)).conv1.weight

    assert torch.equal(first(5), first(5))
    assert not torch.equal(first(5), first(6))
    assert torch.equal(build().conv1.weight, first(0))


@pytest.mark.parametrize(("build", "least"), [(alexnet_small, 4), (vgg9, 4)])
def test_images_that_the_pooling_uses_up_are_refused(build: Net, least: int) -> None:
    assert build(channels=1, size=least)(torch.zeros(1, 1, least, least)).shape == (1, 10)
    with pytest.raises(InputError, match=f"expected size of at least {least}, got {least - 1}"):
        build(size=least - 1)


@pytest.mark.parametrize("build", [alexnet_small, vgg9])
def test_unfit_settings_are_refused(build: Net) -> None:
    with pytest.raises(InputError, match="activation: expected one of sigmoid, tanh"):
        build(activation="step")
    with pytest.raises(InputError, match="classes"):
        build(classes=0)

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.models import BasicBlock, Norm, resnet8, resnet18
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def _shapes(model: nn.Sequential, size: int) -> list[tuple[int, ...]]:
    shapes, x = [], torch.zeros(1, 3, size, size)
    for name, part in model.named_children():
        x = part(x)
        if name.startswith("stage"):
            shapes.append(tuple(x.shape[1:]))
    return shapes


def test_the_architecture_is_that_of_the_paper() -> None:
    model = resnet18().eval()
    with torch.no_grad():
        assert _shapes(model, 32) == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
        assert _shapes(resnet8().eval(), 32) == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    weighted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    shortcuts = [m for m in weighted if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(weighted) - len(shortcuts) == 18
    assert len(shortcuts) == 3
    # 3x3 convolutions by hand: stem, then each stage; two numbers a channel of every norm.
    convolutions = 9 * 3 * 64 + 9 * (
        4 * 64**2 + 64 * 128 + 3 * 128**2 + 128 * 256 + 3 * 256**2 + 256 * 512 + 3 * 512**2
    )
    shortcut = 64 * 128 + 128 * 256 + 256 * 512
    norms = 2 * (5 * 64 + 5 * 128 + 5 * 256 + 5 * 512)
    assert sum(p.numel() for p in model.parameters()) == convolutions + shortcut + norms + 5130 == 11_173_962


@pytest.mark.parametrize("norm", list(Norm))
@pytest.mark.parametrize("channels", [1, 3])
def test_norms_channels_and_activations(norm: Norm, channels: int) -> None:
    model = resnet8(norm=norm, channels=channels, classes=4, activation="tanh").eval()
    assert model(torch.ones(2, channels, 8, 8)).shape == (2, 4)
    assert any(isinstance(part, nn.BatchNorm2d) for part in model.modules()) is (norm is Norm.BATCH)
    assert not any(isinstance(part, nn.ReLU) for part in model.modules())


def test_a_fresh_network_normalizes_by_zero_and_one_in_eval_mode() -> None:
    model = resnet8()
    assert all(bool((m.running_mean == 0).all()) for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert all(bool((m.running_var == 1).all()) for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def test_a_block_is_the_sum_of_its_branches() -> None:
    block = resnet8(norm="none").stage1[0].eval()
    assert isinstance(block, BasicBlock)
    x = torch.randn(1, 16, 5, 5, generator=torch.Generator().manual_seed(0))
    want = torch.relu(block.conv2(torch.relu(block.conv1(x))) + x)
    torch.testing.assert_close(block(x), want)


def test_the_same_generator_gives_the_same_weights() -> None:
    first, second = (resnet8(generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.linear.weight, resnet8().linear.weight)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="norm: expected one of batch, group, none, got 'layer'"):
        resnet8(norm="layer")
    with pytest.raises(InputError, match="activation: expected one of sigmoid"):
        resnet18(activation="swish")

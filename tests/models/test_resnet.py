from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.models import BasicBlock, Bottleneck, Norm, Stem, resnet, resnet8, resnet18
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


@pytest.mark.parametrize(
    ("depth", "parameters"),
    # As He et al.'s networks are published: 11.7, 21.8, 25.6, 44.5 and 60.2 million.
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)],
)
def test_networks_of_the_paper_s_size(depth: int, parameters: int) -> None:
    model = resnet(depth=depth, classes=1000, stem="large").eval()
    assert sum(p.numel() for p in model.parameters()) == parameters
    weighted = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    shortcuts = [b.shortcut for b in model.modules() if isinstance(b, BasicBlock | Bottleneck)]
    assert len(weighted) - sum(isinstance(one, nn.Sequential) for one in shortcuts) == depth
    with torch.no_grad():
        assert model(torch.ones(1, 3, 64, 64)).shape == (1, 1000)


def test_a_depth_of_18_is_resnet18_and_stems_differ_by_a_factor_of_four() -> None:
    first, second = resnet(depth=18), resnet18()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    with torch.no_grad():
        small, large = (_shapes(resnet(depth=34, stem=stem).eval(), 64) for stem in Stem)
    assert small == [(64, 64, 64), (128, 32, 32), (256, 16, 16), (512, 8, 8)]
    assert large == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]


def test_a_bottleneck_is_the_sum_of_its_branches() -> None:
    block = resnet(depth=50, activation="tanh", norm="none").stage2[0].eval()
    assert isinstance(block, Bottleneck)
    x = torch.randn(1, 256, 6, 6, generator=torch.Generator().manual_seed(0))
    inner = block.conv3(torch.tanh(block.conv2(torch.tanh(block.conv1(x)))))
    assert block.conv2.weight.shape == (128, 128, 3, 3)
    torch.testing.assert_close(block(x), torch.tanh(inner + block.shortcut(x)))


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
    with pytest.raises(InputError, match="stem: expected one of small, large, got 'wide'"):
        resnet(depth=34, stem="wide")
    with pytest.raises(InputError, match="depth: expected one of 18, 34, 50, 101, 152 layers, got 20"):
        resnet(depth=20)

"""Residual networks: 18 to 152 layers, for small images or as for ImageNet, and the 8-layer network of CIFAR."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from gradleak.models.initialize import Activation, check_sizes, construct
from gradleak.results import InputError, member


class Norm(StrEnum):
    """The normalization after each convolution; its value is the name that a plan file writes.

    GROUP is GroupNorm with 8 groups: it works on one example, in eval and train mode alike, and has no running
    statistics that an attacker could use. NONE leaves the convolutions bare (they get a bias instead).

    Examples:
        >>> Norm.named("group")
        <Norm.GROUP: 'group'>
    """

    BATCH = "batch"
    GROUP = "group"
    NONE = "none"

    @classmethod
    def named(cls, name: Norm | str) -> Norm:
        """The normalization of that name.

        Raises:
            InputError: No normalization has that name.
        """
        return member("norm", cls, name)

    def module(self, channels: int) -> nn.Module:
        """A new layer that normalizes maps (b, channels, h, w)."""
        match self:
            case Norm.BATCH:
                return nn.BatchNorm2d(channels)
            case Norm.GROUP:
                return nn.GroupNorm(8, channels)
            case Norm.NONE:
                return nn.Identity()


class Stem(StrEnum):
    """The layers before the first stage; its value is the name that a plan file writes.

    SMALL is a 3x3 convolution of stride 1 without pooling, usual for 32x32 images. LARGE is that of the paper, for 224x224
    images: a 7x7 convolution of stride 2, then 3x3 max pooling of stride 2.

    Examples:
        >>> Stem.named("large")
        <Stem.LARGE: 'large'>
    """

    SMALL = "small"
    LARGE = "large"

    @classmethod
    def named(cls, name: Stem | str) -> Stem:
        """The stem of that name.

        Raises:
            InputError: No stem has that name.
        """
        return member("stem", cls, name)

    def convolution(self, channels: int, width: int, *, bias: bool) -> nn.Conv2d:
        """The convolution from `channels` to `width` maps."""
        if self is Stem.SMALL:
            return nn.Conv2d(channels, width, 3, padding=1, bias=bias)
        return nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=bias)

    def pooling(self) -> Mapping[str, nn.Module]:
        """The pooling after the activation, under its name; nothing for small images."""
        return {} if self is Stem.SMALL else {"maxpool": nn.MaxPool2d(3, stride=2, padding=1)}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: x -> a(n(conv(a(n(conv(x))))) + s(x)).

    The shortcut s is the identity, or a 1x1 convolution with its normalization where the shape changes. Nothing is
    computed in place.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the result.
        stride: Of the first convolution and of the shortcut.
        activation: The activation a.
        norm: The normalization n.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation | str, norm: Norm | str) -> None:
        super().__init__()
        activation, norm = Activation.named(activation), Norm.named(norm)
        bias = norm is Norm.NONE
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)
        self.norm1 = norm.module(outputs)
        self.act1 = activation.module()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias)
        self.norm2 = norm.module(outputs)
        self.act2 = activation.module()
        self.shortcut = _shortcut(inputs, outputs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result, (b, outputs, h / stride, w / stride)."""
        inner = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        result: Tensor = self.act2(inner + self.shortcut(x))
        return result


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut, x -> a(n(1x1(a(n(3x3(a(n(1x1(x)))))))) + s(x)): the middle one is narrow.

    The 3x3 convolution works on a quarter of the block's channels and has the stride. The shortcut s is as in
    `BasicBlock`.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the result, a multiple of 4.
        stride: Of the 3x3 convolution and of the shortcut.
        activation: The activation a.
        norm: The normalization n.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Activation | str, norm: Norm | str) -> None:
        super().__init__()
        activation, norm = Activation.named(activation), Norm.named(norm)
        bias, width = norm is Norm.NONE, outputs // 4
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=bias)
        self.norm1 = norm.module(width)
        self.act1 = activation.module()
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=bias)
        self.norm2 = norm.module(width)
        self.act2 = activation.module()
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=bias)
        self.norm3 = norm.module(outputs)
        self.act3 = activation.module()
        self.shortcut = _shortcut(inputs, outputs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result, (b, outputs, h / stride, w / stride)."""
        inner = self.act1(self.norm1(self.conv1(x)))
        inner = self.norm3(self.conv3(self.act2(self.norm2(self.conv2(inner)))))
        result: Tensor = self.act3(inner + self.shortcut(x))
        return result


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=norm is Norm.NONE)
    return nn.Sequential(convolution, norm.module(outputs))


def resnet18(
    *,
    classes: int = 10,
    channels: int = 3,
    activation: Activation | str = Activation.RELU,
    norm: Norm | str = Norm.BATCH,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A ResNet-18 for 32x32 images; 11,173,962 parameters with 3 channels and 10 classes.

    A 3x3 stem of stride 1 without pooling, four stages of two `BasicBlock`s with 64, 128, 256 and 512 channels (the
    first block of stages 2 to 4 with stride 2), global mean, one linear layer. Inputs are (b, channels, h, w) with h
    and w divisible by 8, outputs logits (b, classes). Audit it in eval mode, where BatchNorm uses its running statistics
    (0 and 1 in a fresh network), unless the client really trained on this batch.

    Args:
        classes: Number of logits.
        channels: Channels of the input.
        activation: The activation everywhere.
        norm: The normalization after each convolution: "batch", "group" or "none".
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode as torch builds it.

    Raises:
        InputError: No activation or normalization has that name, or a size is not a whole number of at least 1.

    Source:
        He et al. 2016, "Deep Residual Learning for Image Recognition", table 1 (18 layers), shortcut option B.
        Deviation, usual for 32x32: the 3x3 stem without pooling in place of the 7x7 one.

    Examples:
        >>> sum(p.numel() for p in resnet18().parameters())
        11173962
    """
    return _resnet(_DEPTHS[18], classes, channels, activation, norm, Stem.SMALL, generator)


@dataclass(frozen=True)
class _Depth:
    block: type[BasicBlock] | type[Bottleneck]
    first: int
    widths: Sequence[int]
    blocks: Sequence[int]


_NARROW, _WIDE = (64, 128, 256, 512), (256, 512, 1024, 2048)
_DEPTHS: Mapping[int, _Depth] = {
    18: _Depth(BasicBlock, 64, _NARROW, (2, 2, 2, 2)),
    34: _Depth(BasicBlock, 64, _NARROW, (3, 4, 6, 3)),
    50: _Depth(Bottleneck, 64, _WIDE, (3, 4, 6, 3)),
    101: _Depth(Bottleneck, 64, _WIDE, (3, 4, 23, 3)),
    152: _Depth(Bottleneck, 64, _WIDE, (3, 8, 36, 3)),
}


def resnet(
    *,
    depth: int,
    classes: int = 10,
    channels: int = 3,
    activation: Activation | str = Activation.RELU,
    norm: Norm | str = Norm.BATCH,
    stem: Stem | str = Stem.SMALL,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A ResNet of 18, 34, 50, 101 or 152 layers; 25,557,032 parameters with 50, 1,000 classes and the large stem.

    Four stages of `BasicBlock`s (18 and 34 layers) or `Bottleneck`s, the first block of stages 2 to 4 with stride 2, global
    mean, one linear layer. Inputs are (b, channels, h, w) with h and w divisible by 8 (small stem) or 32 (large stem).
    Audit it in eval mode, as `resnet18`, which is this with 18 layers.

    Args:
        depth: Number of layers.
        classes: Number of logits.
        channels: Channels of the input.
        activation: The activation everywhere.
        norm: The normalization after each convolution: "batch", "group" or "none".
        stem: "small" for images of about 32x32, "large" for those of ImageNet.
        generator: Source of the weights, as for `resnet18`.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode as torch builds it.

    Raises:
        InputError: There is no such depth, no activation, normalization or stem has that name, or a size is not a whole
            number of at least 1.

    Source:
        He et al. 2016, "Deep Residual Learning for Image Recognition", table 1, shortcut option B. Deviation, as usual:
        a bottleneck has its stride in the 3x3 convolution.

    Examples:
        >>> sum(p.numel() for p in resnet(depth=34, classes=1000, stem="large").parameters())
        21797672
    """
    if depth not in _DEPTHS:
        raise InputError(f"depth: expected one of {', '.join(map(str, _DEPTHS))} layers, got {depth!r}")
    return _resnet(_DEPTHS[depth], classes, channels, activation, norm, Stem.named(stem), generator)


def resnet8(
    *,
    classes: int = 10,
    channels: int = 3,
    activation: Activation | str = Activation.RELU,
    norm: Norm | str = Norm.BATCH,
    width: int = 16,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A ResNet of 8 layers for small images; 78,042 parameters with 3 channels and 10 classes.

    As `resnet18`, with three stages of one block and w, 2w and 4w channels: small enough for attacks on dozens of
    images. Inputs are (b, channels, h, w) with h and w divisible by 4.

    Args:
        classes: Number of logits.
        channels: Channels of the input.
        activation: The activation everywhere.
        norm: The normalization after each convolution: "batch", "group" or "none".
        width: Channels of the first stage, w; a multiple of 8 for group normalization.
        generator: Source of the weights, as for `resnet18`.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode as torch builds it.

    Raises:
        InputError: No activation or normalization has that name, or a size is not a whole number of at least 1.

    Source:
        He et al. 2016, section 4.2, 6n + 2 layers with n = 1. Deviation: 1x1 convolutions (option B) in place of
        zero padding (option A) where the shape changes.

    Examples:
        >>> sum(p.numel() for p in resnet8().parameters())
        78042
    """
    depth = _Depth(BasicBlock, width, (width, 2 * width, 4 * width), (1, 1, 1))
    return _resnet(depth, classes, channels, activation, norm, Stem.SMALL, generator)


def _resnet(
    depth: _Depth,
    classes: int,
    channels: int,
    activation: Activation | str,
    norm: Norm | str,
    stem: Stem,
    generator: torch.Generator | None,
) -> nn.Sequential:
    act, normalize = Activation.named(activation), Norm.named(norm)
    check_sizes({"channels": channels, "classes": classes})

    def layers() -> nn.Sequential:
        inputs = depth.first
        first = stem.convolution(channels, inputs, bias=normalize is Norm.NONE)
        parts: OrderedDict[str, nn.Module] = OrderedDict(conv=first, norm=normalize.module(inputs), act=act.module())
        parts |= stem.pooling()
        for stage, (width, blocks) in enumerate(zip(depth.widths, depth.blocks, strict=True)):
            members = []
            for place in range(blocks):
                stride = 2 if stage > 0 and place == 0 else 1
                members.append(depth.block(inputs, width, stride, act, normalize))
                inputs = width
            parts[f"stage{stage + 1}"] = nn.Sequential(*members)
        parts |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(inputs, classes))
        return nn.Sequential(parts)

    return construct(layers, generator)

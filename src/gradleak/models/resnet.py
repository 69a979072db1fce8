"""Residual networks for small images: ResNet-18 in its CIFAR form and the 8-layer network of the CIFAR experiments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor, nn

from gradleak.models.initialize import Activation, check_sizes, construct
from gradleak.results import member


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
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=bias), norm.module(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's result, (b, outputs, h / stride, w / stride)."""
        inner = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        result: Tensor = self.act2(inner + self.shortcut(x))
        return result


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
    return _resnet((64, 128, 256, 512), 2, classes, channels, activation, norm, generator)


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
    return _resnet((width, 2 * width, 4 * width), 1, classes, channels, activation, norm, generator)


def _resnet(
    widths: Sequence[int],
    blocks: int,
    classes: int,
    channels: int,
    activation: Activation | str,
    norm: Norm | str,
    generator: torch.Generator | None,
) -> nn.Sequential:
    act, normalize = Activation.named(activation), Norm.named(norm)
    check_sizes({"channels": channels, "classes": classes})

    def layers() -> nn.Sequential:
        stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=normalize is Norm.NONE)
        parts: OrderedDict[str, nn.Module] = OrderedDict(conv=stem, norm=normalize.module(widths[0]), act=act.module())
        inputs = widths[0]
        for stage, width in enumerate(widths):
            members = []
            for place in range(blocks):
                stride = 2 if stage > 0 and place == 0 else 1
                members.append(BasicBlock(inputs, width, stride, act, normalize))
                inputs = width
            parts[f"stage{stage + 1}"] = nn.Sequential(*members)
        parts |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(inputs, classes))
        return nn.Sequential(parts)

    return construct(layers, generator)

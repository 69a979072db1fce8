"""Convolutions with pooling, then three linear layers: the networks on which leakage was localized layer by layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradleak.models.activation import Activation
from gradleak.models.initialize import check_sizes, construct
from gradleak.results import InputError

_POOL = 2


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A network: filters of each convolution, its kernel and padding, after which to pool, and widths of hidden layers."""

    name: str
    filters: Sequence[int]
    kernels: Sequence[int]
    paddings: Sequence[int]
    pooled_after: Sequence[int]
    hidden: Sequence[int]

    def side(self, size: int) -> int:
        """Height and width behind the last pooling; 0 or less where nothing is left."""
        for number, (kernel, padding) in enumerate(zip(self.kernels, self.paddings, strict=True), start=1):
            size += 2 * padding - kernel + 1
            if number in self.pooled_after:
                size //= _POOL
        return size


_LENET5 = _Plan(name="lenet5", filters=(6, 16), kernels=(5, 5), paddings=(0, 0), pooled_after=(1, 2), hidden=(120, 84))
_ALEXNET = _Plan(
    name="alexnet_small",
    filters=(8, 16, 32, 32, 32),
    kernels=(5, 3, 3, 3, 3),
    paddings=(2, 1, 1, 1, 1),
    pooled_after=(2, 5),
    hidden=(120, 84),
)
_VGG9 = _Plan(
    name="vgg9",
    filters=(8, 16, 16, 32, 32, 32),
    kernels=(3,) * 6,
    paddings=(1,) * 6,
    pooled_after=(3, 6),
    hidden=(256, 128),
)


def lenet5(
    *,
    classes: int = 10,
    channels: int = 1,
    size: int = 32,
    activation: Activation | str = Activation.RELU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A network of two convolutions and three linear layers; 61,706 parameters at 32x32, 1 channel, 10 classes.

    The convolutions `conv1`, `conv2` have 6 and 16 filters of 5x5 without padding; the activation and a 2x2 max pooling
    follow each. `fc1`, `fc2`, `fc3` have 120, 84 and `classes` outputs, with the activation between them. Inputs are
    (b, channels, size, size), outputs logits (b, classes).

    Args:
        classes: Number of logits.
        channels: Channels of the input.
        size: Height and width of the input in pixels, at least 16.
        activation: The activation everywhere.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU.

    Raises:
        InputError: No activation has that name, or a number is out of range.

    Source:
        Mo et al. 2021, "Quantifying and Localizing Private Information Leakage from Neural Network Gradients", section
        6.1. The paper gives no padding; without any it is LeNet-5 of LeCun et al. 1998 with max pooling, ReLU, a
        dense second convolution and a linear output.

    Examples:
        >>> sum(p.numel() for p in lenet5().parameters())
        61706
        >>> [name for name, _ in lenet5().named_parameters()][:4]
        ['conv1.weight', 'conv1.bias', 'conv2.weight', 'conv2.bias']
    """
    return _built(_LENET5, classes, channels, size, activation, generator)


def alexnet_small(
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    activation: Activation | str = Activation.RELU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A network of five convolutions and three linear layers; 281,806 parameters at 32x32, 3 channels, 10 classes.

    The convolutions `conv1` to `conv5` have 8, 16, 32, 32, 32 filters, the first of 5x5 and the others of 3x3, padded to
    the size of their input; the activation follows each, and a 2x2 max pooling the second and the fifth. `fc1`, `fc2`,
    `fc3` have 120, 84 and `classes` outputs, with the activation between them. Inputs are (b, channels, size, size),
    outputs logits (b, classes).

    Args:
        classes: Number of logits.
        channels: Channels of the input.
        size: Height and width of the input in pixels, at least 4.
        activation: The activation everywhere.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU.

    Raises:
        InputError: No activation has that name, or a number is out of range.

    Source:
        Mo et al. 2021, "Quantifying and Localizing Private Information Leakage from Neural Network Gradients", section
        6.1, the network it calls AlexNet. The paper gives no padding.

    Examples:
        >>> sum(p.numel() for p in alexnet_small().parameters())
        281806
    """
    return _built(_ALEXNET, classes, channels, size, activation, generator)


def vgg9(
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    activation: Activation | str = Activation.RELU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A network of six convolutions and three linear layers; 585,578 parameters at 32x32, 3 channels, 10 classes.

    The convolutions `conv1` to `conv6` have 8, 16, 16, 32, 32, 32 filters of 3x3, padded to the size of their input; the
    activation follows each, and a 2x2 max pooling the third and the sixth. `fc1`, `fc2`, `fc3` have 256, 128 and
    `classes` outputs, with the activation between them. Inputs are (b, channels, size, size), outputs logits
    (b, classes).

    Args:
        classes: Number of logits.
        channels: Channels of the input.
        size: Height and width of the input in pixels, at least 4.
        activation: The activation everywhere.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU.

    Raises:
        InputError: No activation has that name, or a number is out of range.

    Source:
        Mo et al. 2021, "Quantifying and Localizing Private Information Leakage from Neural Network Gradients", section
        6.1. The paper says five convolutions and lists six; with three linear layers, six make nine. It gives no
        padding.

    Examples:
        >>> sum(p.numel() for p in vgg9().parameters())
        585578
    """
    return _built(_VGG9, classes, channels, size, activation, generator)


def _built(
    plan: _Plan,
    classes: int,
    channels: int,
    size: int,
    activation: Activation | str,
    generator: torch.Generator | None,
) -> nn.Sequential:
    act = Activation.named(activation)
    check_sizes({"classes": classes, "channels": channels, "size": size})
    if plan.side(size) < 1:
        least = next(enough for enough in range(size, 64) if plan.side(enough) >= 1)
        raise InputError(
            f"{plan.name}: expected size of at least {least}, got {size}: nothing is left behind the pooling"
        )

    def layers() -> nn.Sequential:
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = channels
        for number, (outputs, kernel, padding) in enumerate(
            zip(plan.filters, plan.kernels, plan.paddings, strict=True), start=1
        ):
            parts[f"conv{number}"] = nn.Conv2d(inputs, outputs, kernel, padding=padding)
            parts[f"act{number}"] = act.module()
            if number in plan.pooled_after:
                parts[f"pool{number}"] = nn.MaxPool2d(_POOL)
            inputs = outputs
        parts["flatten"] = nn.Flatten()
        inputs *= plan.side(size) ** 2
        convolutions = len(plan.filters)
        for number, outputs in enumerate(plan.hidden, start=1):
            parts[f"fc{number}"] = nn.Linear(inputs, outputs)
            parts[f"act{convolutions + number}"] = act.module()
            inputs = outputs
        parts[f"fc{len(plan.hidden) + 1}"] = nn.Linear(inputs, classes)
        return nn.Sequential(parts)

    return construct(layers, generator)


__all__ = ["alexnet_small", "lenet5", "vgg9"]

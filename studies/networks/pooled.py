"""Convolutions with pooling, then three linear layers: two networks on which leakage was localized layer by layer."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.models import Activation
from gradleak.models.pooled_convnets import PooledPlan, pooled

_ALEXNET = PooledPlan(
    name="alexnet_small",
    filters=(8, 16, 32, 32, 32),
    kernels=(5, 3, 3, 3, 3),
    paddings=(2, 1, 1, 1, 1),
    pooled_after=(2, 5),
    hidden=(120, 84),
)
_VGG9 = PooledPlan(
    name="vgg9",
    filters=(8, 16, 16, 32, 32, 32),
    kernels=(3,) * 6,
    paddings=(1,) * 6,
    pooled_after=(3, 6),
    hidden=(256, 128),
)


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
    return pooled(_ALEXNET, classes, channels, size, activation, generator)


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
    return pooled(_VGG9, classes, channels, size, activation, generator)


__all__ = ["alexnet_small", "vgg9"]

"""Plain convolutional networks: eight convolutions (Inverting Gradients) and nine (the inference game)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from gradleak.models.initialize import Activation, check_sizes, construct
from gradleak.models.resnet import Norm
from gradleak.results.errors import InputError

_FACTORS = (1, 2, 2, 4, 4, 4, 4, 4, 4)
_POOLED_AFTER = 6
_POOL = 3


def convnet(
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    width: int = 64,
    activation: Activation | str = Activation.RELU,
    norm: Norm | str = Norm.BATCH,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A plain network of 8 convolutions and one linear layer; 2,904,970 parameters at 32x32, 3 channels, 10 classes.

    Each convolution is 3x3 with padding 1 and a bias, followed by its normalization and the activation; their channels
    are w, 2w, 2w, 4w, 4w, 4w, 4w, 4w for the width w. A 3x3 max pooling of stride 3 follows the sixth and the eighth.
    Inputs are (b, channels, size, size), outputs logits (b, classes). Audit it in eval mode, where BatchNorm uses its
    running statistics (0 and 1 in a fresh network), unless the client really trained on this batch.

    Work grows with the square of the width: at 16 a gradient costs a sixteenth of the paper's network.

    Args:
        classes: Number of logits.
        channels: Channels of the input.
        size: Height and width of the input in pixels, at least 9.
        width: w, at least 1, and a multiple of 8 with group normalization.
        activation: The activation everywhere.
        norm: The normalization after each convolution: "batch", "group" or "none".
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode as torch builds it.

    Raises:
        InputError: No activation or normalization has that name, or a number is out of range.

    Source:
        Geiping et al. 2020, "Inverting Gradients", the ConvNet of its experiments (64 channels), as its published
        code builds it; the paper gives no table of layers.

    Examples:
        >>> sum(p.numel() for p in convnet().parameters())
        2904970
        >>> sum(p.numel() for p in convnet(width=16).parameters())
        187114
    """
    act, normalize = Activation.named(activation), Norm.named(norm)
    return _convnet("convnet", 8, classes, channels, size, width, act, normalize, generator)


def convnet9(
    *,
    classes: int = 2,
    channels: int = 3,
    size: int = 32,
    width: int = 8,
    activation: Activation | str = Activation.RELU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A plain network of 9 convolutions and one linear layer; 55,170 parameters at 32x32, 3 channels, 2 classes.

    Each convolution is 3x3 with padding 1 and a bias, followed by the activation, without normalization; their channels are
    w, 2w, 2w, 4w, 4w, 4w, 4w, 4w, 4w for the width w. A 3x3 max pooling of stride 3 follows the sixth and the ninth. Inputs
    are (b, channels, size, size), outputs logits (b, classes).

    Args:
        classes: Number of logits.
        channels: Channels of the input.
        size: Height and width of the input in pixels, at least 9.
        width: w, at least 1.
        activation: The activation everywhere.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU.

    Raises:
        InputError: No activation has that name, or a number is out of range.

    Source:
        Li et al. 2024, "Analyzing Inference Privacy Risks Through Gradients in Machine Learning", appendix A.1, table 3,
        for CelebA and UTKFace. The table gives no padding. Nor does it fit the 45,922 entries that section 5.1.3 gives for
        the gradient on CelebA: nine convolutions have 55,170, eight have exactly that number, as
        `convnet(classes=2, width=8, norm="none")` does.

    Examples:
        >>> sum(p.numel() for p in convnet9().parameters())
        55170
        >>> sum(p.numel() for p in convnet(classes=2, width=8, norm="none").parameters())
        45922
    """
    act = Activation.named(activation)
    return _convnet("convnet9", 9, classes, channels, size, width, act, Norm.NONE, generator)


def _convnet(
    name: str,
    depth: int,
    classes: int,
    channels: int,
    size: int,
    width: int,
    act: Activation,
    normalize: Norm,
    generator: torch.Generator | None,
) -> nn.Sequential:
    check_sizes({"classes": classes, "channels": channels, "width": width, "size": size})
    if size < _POOL**2:
        raise InputError(f"{name}: expected size of at least 9, got {size}: two 3x3 poolings need it")
    if normalize is Norm.GROUP and width % 8:
        raise InputError(f"{name}: expected a width that 8 divides, for group normalization, got {width}")

    def layers() -> nn.Sequential:
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        inputs, side = channels, size
        for number, factor in enumerate(_FACTORS[:depth], start=1):
            outputs = factor * width
            parts[f"conv{number}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
            parts[f"norm{number}"] = normalize.module(outputs)
            parts[f"act{number}"] = act.module()
            if number in (_POOLED_AFTER, depth):
                parts[f"pool{number}"] = nn.MaxPool2d(_POOL)
                side //= _POOL
            inputs = outputs
        parts |= OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(inputs * side * side, classes))
        return nn.Sequential(parts)

    return construct(layers, generator)

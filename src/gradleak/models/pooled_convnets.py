"""Convolutions with pooling, then linear layers: LeNet-5, and the builder of its kind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradleak.models.initialize import Activation, check_sizes, construct
from gradleak.results import InputError

_POOL = 2


@dataclass(frozen=True, kw_only=True)
class PooledPlan:
    """A network of convolutions with pooling and then linear layers, to be built by `pooled`.

    Attributes:
        name: of the function that builds it, for messages.
        filters: of each convolution.
        kernels: likewise, height and width.
        paddings: likewise.
        pooled_after: numbers of the convolutions, from 1, that a pooling follows.
        hidden: widths of the linear layers before the last.
    """

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


_LENET5 = PooledPlan(
    name="lenet5", filters=(6, 16), kernels=(5, 5), paddings=(0, 0), pooled_after=(1, 2), hidden=(120, 84)
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
    return pooled(_LENET5, classes, channels, size, activation, generator)


def pooled(
    plan: PooledPlan,
    classes: int,
    channels: int,
    size: int,
    activation: Activation | str,
    generator: torch.Generator | None,
) -> nn.Sequential:
    """The network of a plan: `conv1`, `act1`, `pool1` and so on, then `fc1` and so on.

    Args:
        plan: its layers.
        classes: number of logits.
        channels: of the input.
        size: height and width of the input.
        activation: everywhere.
        generator: of the weights, or None for one with seed 0.

    Raises:
        InputError: where nothing is left behind the pooling, or a number is out of range.
    """
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

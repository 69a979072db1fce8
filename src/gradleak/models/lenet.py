"""The two LeNets of the gradient inversion papers: four convolutions (I²F) and three (DLG)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gradleak.models.activation import Activation
from gradleak.models.initialize import check_sizes, construct

_FILTERS = 12
_KERNEL = 5


def lenet_i2f(
    *,
    activation: Activation | str = Activation.SIGMOID,
    channels: int = 1,
    size: int = 28,
    classes: int = 10,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A network with four convolutions and one linear layer; 17,038 parameters at 28x28, 1 channel, 10 classes.

    Each convolution has 12 filters, kernel 5 and padding 2; the strides are 2, 2, 1, 1. The activation follows
    each, then `Flatten` and `Linear`. In the `nn.Sequential` the convolutions are 0, 2, 4, 6 and the linear layer
    is 9. Inputs are (b, channels, size, size), outputs logits (b, classes).

    Args:
        activation: The activation after each convolution.
        channels: Channels of the input.
        size: Height and width of the input in pixels.
        classes: Number of logits.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode as torch builds it.

    Raises:
        InputError: No activation has that name, or a size is not a whole number of at least 1.

    Source:
        Zhang et al. 2023, "Understanding Deep Gradient Leakage via Inversion Influence Functions", appendix
        C.1, table 1. The table gives neither strides, padding nor the activation; they are those of the LeNet
        of Zhu et al. 2019 with a fourth convolution of stride 1. The paper's own weights:
        `initialize_uniform`.

    Examples:
        >>> sum(p.numel() for p in lenet_i2f().parameters())
        17038
    """
    return _lenet((2, 2, 1, 1), Activation.named(activation), channels, size, classes, generator)


def lenet_dlg(
    *,
    classes: int = 10,
    activation: Activation | str = Activation.SIGMOID,
    channels: int = 3,
    size: int = 32,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A network with three convolutions and one linear layer; 15,826 parameters at 32x32, 3 channels, 10 classes.

    Each convolution has 12 filters, kernel 5 and padding 2; the strides are 2, 2, 1. The activation follows each,
    then `Flatten` and `Linear` (768 inputs at 32x32). In the `nn.Sequential` the convolutions are 0, 2, 4 and
    the linear layer is 7. Inputs are (b, channels, size, size), outputs logits (b, classes).

    Args:
        classes: Number of logits.
        activation: The activation after each convolution.
        channels: Channels of the input.
        size: Height and width of the input in pixels.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode as torch builds it.

    Raises:
        InputError: No activation has that name, or a size is not a whole number of at least 1.

    Source:
        Zhu et al. 2019, "Deep Leakage from Gradients" (DLG), the LeNet of its experiments, with sigmoids in
        place of ReLU and strides in place of pooling. That paper also draws the weights from
        U(-0.5, 0.5): `initialize_uniform`.

    Examples:
        >>> sum(p.numel() for p in lenet_dlg().parameters())
        15826
    """
    return _lenet((2, 2, 1), Activation.named(activation), channels, size, classes, generator)


def _lenet(
    strides: Sequence[int],
    activation: Activation,
    channels: int,
    size: int,
    classes: int,
    generator: torch.Generator | None,
) -> nn.Sequential:
    check_sizes({"channels": channels, "size": size, "classes": classes})

    def layers() -> nn.Sequential:
        stack: list[nn.Module] = []
        inputs, side = channels, size
        for stride in strides:
            stack += [nn.Conv2d(inputs, _FILTERS, _KERNEL, stride=stride, padding=2), activation.module()]
            inputs, side = _FILTERS, (side - 1) // stride + 1
        return nn.Sequential(*stack, nn.Flatten(), nn.Linear(_FILTERS * side * side, classes))

    return construct(layers, generator)

"""Small networks: linear, multilayer perceptron, LeNet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from gradleak.models.initialize import Activation, check_sizes, construct


def linear_model(*, features: int, classes: int, generator: torch.Generator | None = None) -> nn.Sequential:
    """A linear map with bias, flattening its input first; classes * (features + 1) parameters.

    For one example with output gradient v, the weight gradient is v x^T and the bias gradient v, so that x is
    their quotient in any row where v is not zero.

    Args:
        features: Numbers in one input, whatever its shape: inputs are (b, *) with `features` numbers each.
        classes: Number of logits; outputs are (b, classes).
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        `nn.Sequential(Flatten, Linear)`, on the CPU.

    Raises:
        InputError: A size is not a whole number of at least 1.

    Source:
        Zhang et al. 2023, "Understanding Deep Gradient Leakage via Inversion Influence Functions", appendix
        C.1: "a matrix that maps the input data into a vector". The bias is ours: PyTorch users have one.

    Examples:
        >>> sum(p.numel() for p in linear_model(features=784, classes=10).parameters())
        7850
    """
    check_sizes({"features": features, "classes": classes})
    return construct(lambda: nn.Sequential(nn.Flatten(), nn.Linear(features, classes)), generator)


def mlp(
    *,
    features: int,
    classes: int,
    hidden: Sequence[int] = (1024, 1024),
    activation: Activation | str = Activation.RELU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A fully connected network: linear layers of the given widths, the activation between them.

    With n_0 = features and n_L = classes it has the sum of (n_i + 1) * n_{i+1} parameters. In the
    `nn.Sequential` the linear layers are 0, 2, 4, ...

    Args:
        features: Width of the input. Inputs are (b, features): flatten images first, this network does not.
        classes: Number of logits; outputs are (b, classes).
        hidden: Widths of the hidden layers; empty for a linear map.
        activation: The activation after each hidden layer.
        generator: Source of the weights, drawn by `initialize_default`. None stands for a new generator with
            seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU.

    Raises:
        InputError: No activation has that name, or a size is not a whole number of at least 1.

    Examples:
        >>> sum(p.numel() for p in mlp(features=12, hidden=(32, 16), classes=3).parameters())
        995
    """
    chosen = Activation.named(activation)
    check_sizes({"features": features, "classes": classes})
    check_sizes({f"hidden[{place}]": width for place, width in enumerate(hidden)})

    def layers() -> nn.Sequential:
        *inner, last = pairwise((features, *hidden, classes))
        stack: list[nn.Module] = []
        for inputs, outputs in inner:
            stack += [nn.Linear(inputs, outputs), chosen.module()]
        return nn.Sequential(*stack, nn.Linear(*last))

    return construct(layers, generator)


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

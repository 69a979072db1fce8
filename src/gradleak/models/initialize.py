"""Activations by name, and initial weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

import torch
from torch import Tensor, nn

from gradleak.results import member
from gradleak.results.errors import InputError, UnsupportedError
from gradleak.results.fields import check_count, check_fits


class Activation(StrEnum):
    """An elementwise activation; its value is the name that a plan file writes.

    SIGMOID, TANH and GELU are smooth. RELU is not: its second derivative is zero wherever it exists,
    so that gradient matching sees the input only through the pattern of active units.

    Examples:
        >>> Activation.TANH.module()
        Tanh()
        >>> Activation.named("gelu")
        <Activation.GELU: 'gelu'>
    """

    SIGMOID = "sigmoid"
    TANH = "tanh"
    RELU = "relu"
    GELU = "gelu"

    @classmethod
    def named(cls, name: Activation | str) -> Activation:
        """The activation of that name.

        Args:
            name: A member, or the value of one.

        Returns:
            The member.

        Raises:
            InputError: No activation has that name.
        """
        return member("activation", cls, name)

    def module(self) -> nn.Module:
        """A new module that computes the activation, out of place.

        Returns:
            The module, without parameters.
        """
        match self:
            case Activation.SIGMOID:
                return nn.Sigmoid()
            case Activation.TANH:
                return nn.Tanh()
            case Activation.RELU:
                return nn.ReLU()
            case Activation.GELU:
                return nn.GELU()


_Module = TypeVar("_Module", bound=nn.Module)

_DRAWS_NOTHING = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
)
_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def initialize_uniform(model: _Module, *, low: float = -0.5, high: float = 0.5, generator: torch.Generator) -> _Module:
    """The model with every parameter, biases too, drawn anew from U(low, high).

    The I²F paper draws its LeNet so with the default range: weights this large keep the sigmoids away from
    their linear range and make the network easier to invert than torch's own initialization does.

    Args:
        model: Changed in place. Buffers stay as they are; a tied parameter is drawn once.
        low: Lower end of the range.
        high: Upper end of the range, above `low`.
        generator: Source of the numbers, on the device of the parameters. It moves on by one draw a
            parameter, in the order of `model.named_parameters()`.

    Returns:
        The same model.

    Raises:
        InputError: The range is empty or not finite.

    Source:
        Zhang et al. 2023, "Understanding Deep Gradient Leakage via Inversion Influence Functions",
        appendix C.1: "uniformly initialize the model parameters in the range of [-0.5, 0.5]".

    Examples:
        >>> model = initialize_uniform(nn.Linear(2, 2), generator=torch.Generator().manual_seed(0))
        >>> bool((model.weight.abs() <= 0.5).all())
        True
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"expected finite low < high, got low={low} and high={high}")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(low, high, generator=generator)
    return model


def initialize_default(model: _Module, *, generator: torch.Generator) -> _Module:
    """The model with every layer drawn anew as torch draws it on construction, but from `generator`.

    Linear and convolutional layers: weights and biases from U(-1/sqrt(f), 1/sqrt(f)), f the fan-in.
    Embeddings: N(0, 1), the padding row zero. Normalization layers: ones and zeros, running statistics reset.
    With the global RNG in the state of `generator`, constructing the layers in the order of
    `model.modules()` gives the same bits.

    Args:
        model: Changed in place.
        generator: Source of the numbers, on the device of the parameters.

    Returns:
        The same model.

    Raises:
        UnsupportedError: A module holds parameters of its own and is of none of these kinds; nothing is
            changed then.

    Source:
        He et al. 2015 (`nn.init.kaiming_uniform_` with a = sqrt(5)), as `torch.nn` applies it.

    Examples:
        >>> model = initialize_default(nn.Linear(4, 2), generator=torch.Generator().manual_seed(0))
        >>> bool((model.weight.abs() <= 0.5).all())
        True
    """
    for name, module in model.named_modules():
        holds = any(True for _ in module.parameters(recurse=False))
        if holds and not isinstance(module, (nn.Linear, nn.Embedding, *_CONVOLUTIONS, *_DRAWS_NOTHING)):
            raise UnsupportedError(
                f"expected linear, convolutional, embedding and normalization layers, got "
                f"{type(module).__name__} at {name or 'the top'!r}: draw that module's parameters yourself, "
                f"or use initialize_uniform"
            )
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, *_CONVOLUTIONS)):
                _draw_affine(module.weight, module.bias, generator)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, generator=generator)
                if module.padding_idx is not None:
                    module.weight[module.padding_idx].zero_()
            elif isinstance(module, _DRAWS_NOTHING):
                module.reset_parameters()
    return model


def _draw_affine(weight: Tensor, bias: Tensor | None, generator: torch.Generator) -> None:
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    if bias is not None:
        bound = 1 / math.sqrt(weight[0].numel())
        nn.init.uniform_(bias, -bound, bound, generator=generator)


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Refuse channels, classes and other sizes that are not whole numbers of at least 1.

    Raises:
        InputError: Naming the first of them.
    """
    for name, value in sizes.items():
        check_count(name, value)


def construct(layers: Callable[[], _Module], generator: torch.Generator | None) -> _Module:
    """The network that `layers` builds, on the CPU, drawn by `initialize_default`.

    Args:
        layers: Builds the network. It runs on the meta device, where construction draws nothing.
        generator: Source of the weights. None stands for a new generator with seed 0.

    Returns:
        The network, in train mode as torch builds it.

    Raises:
        InputError: The generator is not a `torch.Generator`, or the network takes more than 1 GiB.
    """
    if not isinstance(generator, torch.Generator | None):
        raise InputError(f"generator: expected a torch.Generator or None, got {type(generator).__name__}")
    with torch.device("meta"):
        model = layers()
    check_fits("network", sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers())))
    model.to_empty(device="cpu")
    return initialize_default(model, generator=generator or torch.Generator().manual_seed(0))

"""Fully connected networks for tabular data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from gradleak.models.activation import Activation
from gradleak.models.initialize import check_sizes, construct


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

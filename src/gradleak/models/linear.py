"""The linear model: its gradient gives the input away in closed form."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.models.initialize import check_sizes, construct


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

"""Tensors by name that hold NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def non_finite(tensors: Mapping[str, Tensor]) -> str:
    """A clause that names the first tensor with entries that are not finite, and how many; "" where all are finite.

    Examples:
        >>> non_finite({"weight": torch.ones(2), "norm.running_var": torch.tensor([1.0, float("inf")])})
        'norm.running_var holds NaN or infinity in 1 of 2 entries'
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            return f"{name} holds NaN or infinity in {count} of {tensor.numel()} entries"
    return ""

"""The adjoint derivative of a vector function on a kept graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.operators.kernels import differentiable_kernels

Function = Callable[[Tensor], Tensor]


def pullback(function: Function, point: Tensor) -> tuple[Tensor, Function]:
    """The value (P,) of a function at a point, and the map u -> Aᵀu from (P,) to (n,) on its kept graph.

    Args:
        function: maps (n,) to (P,), pure.
        point: (n,).

    Cost: about two plain gradients where f is a gradient, then one a product.

    Examples:
        >>> value, pull = pullback(lambda x: x**2, torch.tensor([1.0, 3.0]))
        >>> value.tolist(), pull(torch.tensor([1.0, 1.0])).tolist()
        ([1.0, 9.0], [2.0, 6.0])
    """
    with differentiable_kernels():
        value, pull = torch.func.vjp(function, point)[:2]

    def apply(cotangent: Tensor) -> Tensor:
        with differentiable_kernels():
            out: Tensor = pull(cotangent)[0]
            return out

    return value.detach(), apply

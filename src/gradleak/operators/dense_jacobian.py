"""The whole derivative of a vector function at a point."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.operators.linearization import Linearization
from gradleak.operators.pullback import Function


def dense_jacobian(
    function: Function, point: Tensor, *, max_bytes: int = 2**30, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """The value (P,) and the whole Jacobian A = ∂f/∂x (P, n) of a function at a point.

    A is filled by blocks of JVPs under vmap (or the first slower route that the function allows). It is the transpose
    of a contiguous (n, P) tensor, so `A.T` and `A.T @ v` cost no copy. Values are not checked for NaN.

    Args:
        function: maps (n,) to (P,), pure.
        point: (n,).
        max_bytes: memory that one block may take besides A itself, roughly.
        chunk: columns a block, or None to derive it from `max_bytes`.

    Returns:
        f(x) of shape (P,) and A of shape (P, n), both detached.

    Raises:
        UnsupportedError: if the function cannot be differentiated by any route.

    Cost: n JVPs in blocks, about half an evaluation of f each where f is a gradient; 8·P·n bytes in float64.

    Examples:
        >>> value, A = dense_jacobian(lambda x: x**2, torch.tensor([1.0, 3.0]))
        >>> value.tolist(), A.tolist()
        ([1.0, 9.0], [[2.0, 0.0], [0.0, 6.0]])
    """
    at = Linearization(function, point, max_bytes=max_bytes, chunk=chunk)
    return at.value, at.push(torch.eye(point.numel(), dtype=point.dtype, device=point.device)).T

"""A model computed in float64, whatever precision its own code asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LOWER = frozenset({torch.float16, torch.bfloat16, torch.float32})
_CASTS = (Tensor.half, Tensor.bfloat16, Tensor.float)


@contextmanager
def in_float64() -> Iterator[None]:
    """While active, floating point tensors that code makes or casts have float64; the default dtype is put back.

    A model whose parameters were cast to float64 still holds lower precisions in its code: a first hidden state
    `torch.zeros(...)`, a mask `.float()`, a softmax with `dtype=torch.float32`, layers in half precision. Those fail on
    the mixture, or round what is to be differentiated.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64():
            yield
    finally:
        torch.set_default_dtype(before)


class _Float64(TorchFunctionMode):
    """Replaces lower precisions in the arguments of every call."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function with float64 in the places of lower precisions."""
        kwargs = kwargs or {}
        if func in _CASTS:
            return args[0].double()
        return func(*(_higher(value) for value in args), **{key: _higher(value) for key, value in kwargs.items()})


def _higher(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _LOWER else value

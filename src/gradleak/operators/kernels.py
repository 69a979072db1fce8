"""Kernels without second derivatives, exchanged for the length of a computation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from gradleak.core.process import ONE_CALL, WhileUsed

_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


@contextmanager
def differentiable_kernels() -> Iterator[None]:
    """Attention written out, and recurrent layers outside of cuDNN; the flags are as before afterwards.

    Fused attention and the fast path of `nn.MultiheadAttention` have neither a forward derivative nor a double
    backward, and cuDNN's recurrent layers have no double backward. cuDNN itself stays on: convolutions need it.
    """
    _load_forward_rules()
    with _ATTENTION_WRITTEN_OUT(), _without_cudnn_recurrence():
        yield


@contextmanager
def _attention_written_out() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


_ATTENTION_WRITTEN_OUT = WhileUsed(_attention_written_out)
_CUDNN_OFF = WhileUsed(lambda: torch.backends.cudnn.flags(enabled=False))


@cache
def _load_forward_rules() -> None:
    """Let torch script its rules of forward derivatives, which it does with a warning at the first one of a process."""
    with ONE_CALL, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
        import_module("torch._decomp.decompositions_for_jvp")


class KernelWatch(TorchFunctionMode):
    """Notes, while active, which layers were called whose kernels `differentiable_kernels` exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self._called: set[str] = set()
        self._on_cuda = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the name of the function and call it."""
        self._called.add(getattr(func, "__name__", ""))
        self._on_cuda = self._on_cuda or any(isinstance(a, Tensor) and a.is_cuda for a in args)
        return func(*args, **(kwargs or {}))

    @property
    def exchanged(self) -> tuple[str, ...]:
        """Kernels that were exchanged, for the record: "math attention", "recurrence without cuDNN", or nothing."""
        notes = []
        if self._called & _ATTENTION:
            notes.append("math attention")
        if self._called & _RECURRENT and self._on_cuda:
            notes.append("recurrence without cuDNN")
        return tuple(notes)


class AffineBatchNorm(TorchFunctionMode):
    """While active, BatchNorm by running statistics is x·scale + shift: the same values, cheaper second derivatives.

    On ResNet-18 a product with ∂²L/∂θ∂x takes 1.7 plain gradients so, and 2.3 through torch's own rule.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or compute the affine map in its place."""
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else weight * scale
    shift = -running_mean * scale
    shift = shift if bias is None else bias + shift
    tail = (1,) * (x.dim() - 2)
    return x * scale.reshape(-1, *tail) + shift.reshape(-1, *tail)


class _RecurrenceWithoutCudnn(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _RECURRENT:
            with _CUDNN_OFF():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_cudnn_recurrence() -> Iterator[None]:
    if not torch.backends.cudnn.is_available():
        yield
        return
    with _RecurrenceWithoutCudnn():
        yield

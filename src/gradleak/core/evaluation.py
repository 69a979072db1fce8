"""Evaluation of a model for derivatives: right second derivatives, float64, no checkpoints, and its last linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode

Form = Callable[..., Any]


class Exchange:
    """Exchange of functions in what an owner computes, left out where the owner was seen not to call any of them.

    Args:
        forms: by the function of torch, what is called in its place.
    """

    def __init__(self, forms: Mapping[Form, Form]) -> None:
        self._forms = forms
        self._needed: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    @contextmanager
    def within(self, owner: object) -> Iterator[None]:
        """Exchange for the length of a computation of the owner, which calls the same functions every time."""
        # First, since a compiler would compile anew wherever what it has read of the table changes.
        if torch.compiler.is_compiling() or self._needed.get(owner) is False:
            yield
            return
        with _Exchanging(self._forms) as mode:
            yield
        self._needed[owner] = mode.met or self._needed.get(owner, False)


class _Exchanging(TorchFunctionMode):
    def __init__(self, forms: Mapping[Form, Form]) -> None:
        super().__init__()
        self._forms = forms
        self.met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or what stands in its place."""
        form = self._forms.get(func)
        self.met |= form is not None
        return (form or func)(*args, **(kwargs or {}))


def _apart(normalize: Form, place: int, *, by_channel: bool) -> Form:
    """A normalization without its scale and shift, and these as operations of their own.

    Args:
        normalize: the function of torch.
        place: of `weight` among its arguments; `bias` comes next.
        by_channel: whether they belong to the second axis in place of the last ones.
    """

    def form(*args: Any, **kwargs: Any) -> Any:
        affine = {"weight": args[place : place + 1], "bias": args[place + 1 : place + 2]}
        weight, bias = (given[0] if given else kwargs.get(name) for name, given in affine.items())
        bare = [None if place <= at <= place + 1 else value for at, value in enumerate(args)]
        absent = dict.fromkeys(name for name, given in affine.items() if not given)
        found = normalize(*bare, **{**kwargs, **absent})
        out, *rest = found if isinstance(found, tuple) else (found,)
        tail = (1,) * (out.dim() - 2) if by_channel else ()
        out = out if weight is None else out * weight.reshape(*weight.shape, *tail)
        out = out if bias is None else out + bias.reshape(*bias.shape, *tail)
        return (out, *rest) if rest else out

    return form


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))


BY_EXAMPLE = Exchange(
    {
        F.layer_norm: _apart(F.layer_norm, 2, by_channel=False),
        torch.layer_norm: _apart(torch.layer_norm, 2, by_channel=False),
        torch.native_layer_norm: _apart(torch.native_layer_norm, 2, by_channel=False),
        F.instance_norm: _apart(F.instance_norm, 3, by_channel=True),
        torch.instance_norm: _apart(torch.instance_norm, 1, by_channel=True),
        F.batch_norm: _apart(F.batch_norm, 3, by_channel=True),
        torch.batch_norm: _apart(torch.batch_norm, 1, by_channel=True),
    }
)
"""For gradients under vmap that are differentiated outside of it: torch's batching rule for the gradient of the scale takes
the saved mean and deviation for constants."""

ALWAYS = Exchange({torch._weight_norm: _weight_norm})
"""For every gradient that is differentiated by the parameters, as local steps do: the second derivative of the fused weight
normalization by its direction is wrong in plain autograd."""


_NAMES = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")


class _CallAtOnce:
    """In place of the reentrant form: the checkpointed function, called."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _do_nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """In place of the non-reentrant form: nothing before the checkpointed function and nothing after it."""
    yield


@contextmanager
def without_checkpointing() -> Iterator[None]:
    """`torch.utils.checkpoint.checkpoint` computes the same values and keeps its activations.

    Neither of its forms works inside `torch.func` transforms, and the reentrant one refuses `autograd.grad`. Models
    call it by whatever name they imported it under, so its two implementations are exchanged, and put back afterwards.
    """
    before = {name: getattr(torch_checkpoint, name) for name in _NAMES if hasattr(torch_checkpoint, name)}
    for name, substitute in zip(_NAMES, (_CallAtOnce, _do_nothing_around), strict=True):
        if name in before:
            setattr(torch_checkpoint, name, substitute)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(torch_checkpoint, name, original)


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


@dataclass(frozen=True, eq=False)
class LinearCall:
    """One call of `linear`.

    Attributes:
        inputs: what went in.
        weight: the weight that was used, the very tensor.
        bias: the bias that was used, or None.
        result: what came out.
        version: of the result when it came out, which shows later changes in place.
    """

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    result: Tensor
    version: int

    def made(self, outputs: Any) -> bool:
        """True if `outputs` is the result of this call, not changed in place since."""
        return self.result is outputs and self.result._version == self.version


class LinearCalls(TorchFunctionMode):
    """While active, records every call of `linear` and of `log_softmax` along the last axis.

    Attributes:
        calls: of `linear`, in order.
        log_softmaxes: (argument, its version, result) of `log_softmax`, in order.
    """

    def __init__(self) -> None:
        """Nothing recorded yet."""
        super().__init__()
        self.calls: list[LinearCall] = []
        self.log_softmaxes: list[tuple[Tensor, int, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call through, and note what is of interest."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.linear:
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            self.calls.append(LinearCall(given["input"], given["weight"], given.get("bias"), result, result._version))
        elif getattr(func, "__name__", "") == "log_softmax":
            source = args[0] if args else kwargs["input"]
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if axis in (-1, source.dim() - 1):
                self.log_softmaxes.append((source, source._version, result))
        return result

    def maker(self, outputs: Any) -> LinearCall | None:
        """The call whose result `outputs` is, or None; a result that was changed in place since is not it."""
        return next((call for call in reversed(self.calls) if call.made(outputs)), None)

    def before_log_softmax(self, outputs: Any) -> Any:
        """Input of the log-softmax that made `outputs`; `outputs` itself where none did."""
        for source, version, result in reversed(self.log_softmaxes):
            if result is outputs and source._version == version:
                return source
        return outputs


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """The last linear layer, found from the computation, not from its position in a list.

    Attributes:
        weight: name of its weight in `Objective.params`, or None if it is frozen or computed (a parametrization).
        bias: name of its bias there, or None if it has none or it is frozen or computed.
        classes: the number of outputs.
    """

    weight: str | None
    bias: str | None
    classes: int

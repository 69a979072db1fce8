"""Functions of torch whose rules give wrong second derivatives, exchanged for equal ones with right rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
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
        if self._needed.get(owner) is False or torch.compiler.is_compiling():
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

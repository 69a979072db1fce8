"""Layers that declare that they have no second derivative."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gradleak.core import Exposure
from gradleak.operators.kernels import differentiable_kernels
from gradleak.results import UnsupportedError

_KNOWN: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()
_MARK = once_differentiable(lambda ctx: None).__code__

_REFUSALS = (RuntimeError, NotImplementedError, ValueError, TypeError)


def once_differentiable_functions(exposure: Exposure) -> tuple[str, ...]:
    """The names of the custom autograd functions behind a loss whose backward is marked `once_differentiable`.

    Torch raises where such a backward is differentiated towards its own arguments, but a derivative by the inputs of
    the model never comes there: what runs through the function is left out in silence, and A is wrong.

    Cost: one evaluation of the loss, once a model.
    """
    objective, batch = exposure.objective, exposure.batch
    owner = objective.parts(nn.Module)[0]
    if owner not in _KNOWN:
        params = {name: tensor.detach().requires_grad_() for name, tensor in objective.params.items()}
        try:
            with torch.enable_grad(), differentiable_kernels():
                loss = objective.loss(params, batch.with_inputs(batch.inputs.detach().clone().requires_grad_()))
        except torch.OutOfMemoryError:
            raise
        except _REFUSALS:
            return ()  # whoever takes the gradient meets the error
        _KNOWN[owner] = _marked(loss)
    return _KNOWN[owner]


def refuse_once_differentiable(exposure: Exposure) -> None:
    """Refuse a model with a function that says of itself that it can be differentiated once only.

    Raises:
        UnsupportedError: naming the functions.
    """
    names = once_differentiable_functions(exposure)
    if names:
        raise UnsupportedError(
            f"expected a release that can be differentiated with respect to its input, got {', '.join(names)}, whose "
            "backward is marked once_differentiable: what runs through it would be left out; write a backward that "
            "autograd can differentiate"
        )


def _marked(loss: Tensor) -> tuple[str, ...]:
    names: dict[str, None] = {}
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = getattr(node, "_forward_cls", None)
        if getattr(getattr(kind, "backward", None), "__code__", None) is _MARK:
            names[kind.__name__] = None  # type: ignore[union-attr]
        waiting += [earlier for earlier, _ in node.next_functions]
    return tuple(names)

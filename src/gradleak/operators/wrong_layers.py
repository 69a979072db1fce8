"""Layers of a model whose own second derivative is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from gradleak.core import Batch, Exposure, Objective, Release

# What a model may raise at inputs that it was not made for.
RAISED = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError)


def wrong_layers(exposure: Exposure, is_wrong: Callable[[Exposure], bool]) -> tuple[str, ...]:
    """The layers that have a wrong derivative by themselves, for instance "layer 1.act (Quantizer)".

    Each layer is tried behind a scale for every entry, at the inputs of its first call and before a fixed function of
    its outputs; children before the layers that they are in, of which none is to blame for a child. Empty where none
    is found: the fault is in the loss, or a layer cannot be called by itself.

    Args:
        exposure: its release is left out.
        is_wrong: whether an exposure has a wrong derivative.

    Cost: one evaluation of the loss, and a copy and a check of every layer.
    """
    objective = exposure.objective
    calls = _first_calls(exposure)
    found: list[str] = []
    for name in sorted(calls, key=lambda name: name.count(".") + 1 if name else 0, reverse=True):
        if any(other.startswith(f"{name}." if name else "") for other in found):
            continue
        try:
            alone = Objective.from_module(
                _Alone(calls[name]), loss=_fixed_function, mode=objective.mode, mask_seed=objective.mask_seed
            )
            entered = calls[name].args[0]
            batch = Batch(entered, torch.zeros(len(entered), device=entered.device))
            if is_wrong(Exposure(alone, batch, Release(exposure.release.protocol))):
                found.append(name)
        except RAISED:  # one that cannot be copied or called so
            continue
    return tuple(
        f"layer {name} ({type(calls[name].layer).__name__})" if name else type(calls[name].layer).__name__
        for name in calls
        if name in found
    )


@dataclass(frozen=True, eq=False)
class _Call:
    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state: Mapping[str, Tensor]


class _Alone(nn.Module):
    def __init__(self, call: _Call) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones_like(call.args[0][0]))
        self.layer = copy.deepcopy(call.layer)
        for name, parameter in self.layer.named_parameters():
            parameter.data = call.state[name]
        self.layer.requires_grad_()
        self._rest, self._kwargs = call.args[1:], dict(call.kwargs)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.scale * x, *self._rest, **self._kwargs)


def _fixed_function(outputs: Any, targets: Tensor) -> Tensor:
    """Σ cos(i) sin(yᵢ) over all entries of what a layer returns: straight-through gradients fit every linear function."""
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    flat = torch.cat([leaf.reshape(-1) for leaf in leaves])
    return flat.sin() @ torch.arange(len(flat), dtype=flat.dtype, device=flat.device).cos()


def _first_calls(exposure: Exposure) -> dict[str, _Call]:
    """The first call of every layer that takes a batch, in the order of the model."""
    objective = exposure.objective
    calls: dict[str, _Call] = {}

    def note(name: str) -> Callable[..., None]:
        def before(layer: nn.Module, args: Any, kwargs: Any) -> None:
            if name in calls or not args or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
                return
            if args[0].dim() > 1:
                args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), (args, kwargs))
                state = {key: parameter.detach().clone() for key, parameter in layer.named_parameters()}
                calls[name] = _Call(layer, args, kwargs, state)

        return before

    layers = dict(objective._module.named_modules())
    hooks = [layer.register_forward_pre_hook(note(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        with torch.no_grad():
            objective.loss(objective.params, exposure.batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: calls[name] for name in layers if name in calls}

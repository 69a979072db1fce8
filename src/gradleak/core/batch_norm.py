"""Mean and variance of what enters BatchNorm layers: what a batch leaves there, and what a model remembers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.core.objective import Objective


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStatistics:
    """Moments of the input of one BatchNorm layer, by channel.

    Attributes:
        mean: over examples and positions, (channels,).
        variance: biased, as the layer normalizes with it, (channels,).
    """

    mean: Tensor
    variance: Tensor


@contextmanager
def watch_batch_norm(objective: Objective) -> Iterator[dict[str, LayerStatistics]]:
    """While active, every evaluation of `objective` leaves the moments of its BatchNorm inputs in the dict, by layer.

    They are differentiable in the inputs. A layer that is called twice keeps the last call.
    """
    seen: dict[str, LayerStatistics] = {}
    handles = []

    def watch(name: str) -> Any:
        def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen[name] = _moments(args[0])

        return note

    for name, part in objective._module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            handles.append(part.register_forward_pre_hook(watch(name)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def running_statistics(objective: Objective) -> dict[str, LayerStatistics]:
    """Running statistics of the model's BatchNorm layers (buffers), by layer; empty without such layers."""
    found: dict[str, LayerStatistics] = {}
    for name, mean in objective.buffers.items():
        layer, _, kind = name.rpartition(".")
        variance = objective.buffers.get(f"{layer}.running_var" if layer else "running_var")
        if kind == "running_mean" and variance is not None:
            found[layer] = LayerStatistics(mean=mean, variance=variance)
    return found


def batch_norm_statistics(objective: Objective, inputs: Tensor) -> Mapping[str, LayerStatistics]:
    """Statistics that a batch of inputs (b, *shape) leaves in the model's BatchNorm layers, by layer; one pass."""
    with watch_batch_norm(objective) as seen, torch.no_grad():
        objective.outputs(objective.params, inputs.to(objective.device, objective.dtype))
    return seen


def _moments(values: Tensor) -> LayerStatistics:
    axes = [axis for axis in range(values.dim()) if axis != 1]
    variance, mean = torch.var_mean(values, dim=axes, correction=0)
    return LayerStatistics(mean=mean, variance=variance)

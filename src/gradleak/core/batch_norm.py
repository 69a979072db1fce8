"""BatchNorm: means and variances that a batch leaves and a model remembers, and statistics that are out of scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.core.objective import Mode, Objective
from gradleak.core.trainable import non_finite


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
        given = inputs.to(objective.dtype) if inputs.is_floating_point() else inputs
        objective.outputs(objective.params, given.to(objective.device))
    return seen


def _moments(values: Tensor) -> LayerStatistics:
    axes = [axis for axis in range(values.dim()) if axis != 1]
    variance, mean = torch.var_mean(values, dim=axes, correction=0)
    return LayerStatistics(mean=mean, variance=variance)


# In float32 a layer that moves or shrinks its input by more leaves it three digits at best.
_TOO_FAR = 1e4


def out_of_scale(objective: Objective, inputs: Tensor) -> str:
    """Name, buffer and magnitude of what is wrong with the numbers of a model, as a clause; "" where nothing is.

    Parameters and buffers that are not finite come first. Then, in eval mode, the first BatchNorm layer whose running
    statistics have nothing to do with what enters it: a mean more than 10⁴ standard deviations or a standard deviation
    more than 10⁴ times the size of its input. What follows such a layer is constant to within round-off, so that
    gradients vanish and differences of values drown. No value of the inputs is in the text.

    Args:
        objective: the client's loss.
        inputs: (b, *shape) in model-input units.

    Cost: one forward pass, for models with BatchNorm.
    """
    bad = non_finite({**objective.params, **objective.frozen, **objective.buffers})
    known = running_statistics(objective)
    if bad or not known or objective.mode is Mode.TRAIN:
        return bad
    for layer, seen in batch_norm_statistics(objective, inputs).items():
        if layer not in known:
            continue
        where = f"BatchNorm layer {layer or 'of the model'}"
        mean, variance = known[layer].mean, known[layer].variance
        if bool((variance < 0).any()):
            return f"running_var of {where} is negative, down to {float(variance.min()):.2g}"
        size = float((seen.mean.square() + seen.variance).mean().sqrt())
        spread = variance.sqrt()
        shift = mean.abs() / torch.maximum(spread, torch.full_like(spread, size))
        found: Mapping[str, tuple[float, float]] = {
            "running_var": (float(variance.max()), float(spread.max()) / size if size else 0.0),
            "running_mean": (float(mean[mean.abs().argmax()]), float(shift.max()) if size else 0.0),
        }
        for name, (value, times) in found.items():
            if times > _TOO_FAR:
                return (
                    f"{name} of {where} is up to {value:.2g}, far out of proportion to what enters the layer, "
                    "so that little but round-off comes through"
                )
    return ""

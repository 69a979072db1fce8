"""Numbers of a model that keep anything from coming through: not finite, or statistics that are not of these data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.core.batch_norm import batch_norm_statistics, running_statistics
from gradleak.core.non_finite import non_finite
from gradleak.core.objective import Mode, Objective

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

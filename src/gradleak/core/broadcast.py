"""Losses that compare outputs with the targets of other examples, because torch broadcasts the two shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core.losses import LANGUAGE
from gradleak.results import InputError

# Losses by name that refuse shapes which do not belong together.
_NEVER = ("cross_entropy", "nll", "bce_with_logits", *LANGUAGE)
# Torch's own of one output and one target an entry: other shapes are no use of theirs, and torch only warns.
_BY_ENTRY = (nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss)
_FUNCTIONS = (F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.huber_loss)
# Sums of the same numbers in another order; where pairs matter, the probe changes the loss by a tenth and more.
_ROUND_OFF = 1e-4
_JITTER = 0.01
# What a loss raises on numbers that it cannot take.
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)


def may_broadcast(name: str) -> bool:
    """True for a loss, by its name, that does not refuse shapes which do not belong together by itself."""
    return name not in _NEVER


def check_paired(
    name: str, loss: Any, of_outputs: Callable[[Any, Tensor], Tensor], outputs: Any, targets: Tensor
) -> None:
    """Refuse targets whose shape makes a loss compare outputs with the targets of other examples.

    Args:
        name: of the loss.
        loss: itself, as it was given.
        of_outputs: the loss as the model evaluates it.
        outputs: of the model.
        targets: of the batch.

    Raises:
        InputError: naming both shapes.
    """
    if not may_broadcast(name):
        return
    if isinstance(outputs, Tensor) and (name == "mse" or _compares_by_entry(loss)):
        mixed = outputs if outputs.shape != targets.shape else None
    else:
        mixed = broadcast_output(of_outputs, outputs, targets)
    if mixed is not None:
        raise InputError(
            f"targets: expected shape {tuple(mixed.shape)} like the outputs of the model, got "
            f"{tuple(targets.shape)}; {name} would broadcast the two and compare outputs with the "
            "targets of other examples, so reshape the targets"
        )


def _compares_by_entry(loss: Any) -> bool:
    """True for torch's losses of one output and one target an entry, so that their shapes have to be equal."""
    while isinstance(loss, partial):
        loss = loss.func
    return isinstance(loss, _BY_ENTRY) or any(loss is function for function in _FUNCTIONS)


def broadcast_output(loss: Callable[[Any, Tensor], Tensor], outputs: Any, targets: Tensor) -> Tensor | None:
    """The output whose shape broadcasts so that the loss loses sight of which target belongs to it, or None.

    Looks at numbers, not at code: outputs like the targets are tried, and the same in another order. (N, 1) against
    (N,) becomes (N, N), every output against every target, and any order gives the same loss; so does (N, N) against
    (N,), where the targets run along the wrong axis. A loss that reshapes for itself, or that reads no targets, passes.

    Args:
        loss: of outputs and targets, both as they are after the model.
        outputs: of the model: a tensor, or tensors in tuples and dicts.
        targets: of the batch.

    Cost: four losses of one batch, where shapes are in question; none elsewhere.
    """
    doubtful = next((part for part in _tensors(outputs) if _broadcasts(part, targets)), None)
    if doubtful is None:
        return None
    paired = _targets_like(targets)
    like = _changed(outputs, lambda part: _outputs_like(part, paired))
    orders: list[Callable[[Tensor], Tensor]] = [lambda part: part.roll(1, 0)] if targets.shape[0] > 1 else []
    if _as_many(doubtful, targets):
        orders.append(lambda part: part.reshape(-1).roll(1).reshape(part.shape))
    with torch.no_grad():
        try:
            plain, without = float(loss(like, paired)), float(loss(like, torch.zeros_like(paired)))
            if _same(plain, without):
                return None  # no target is read
            values = [float(loss(_changed(like, order), paired)) for order in orders]
        except _REFUSALS:
            return None  # a loss that cannot take the probe says nothing
    return doubtful if any(_same(plain, value) for value in values) else None


def _broadcasts(output: Tensor, targets: Tensor) -> bool:
    """True if the two shapes differ and still fit, and there is more than one number to mix up."""
    if output.shape == targets.shape or output.numel() < 2 or output.dim() == 0:
        return False
    try:
        torch.broadcast_shapes(output.shape, targets.shape)
    except RuntimeError:
        return False
    return output.shape[0] == targets.shape[0]


def _as_many(output: Tensor, targets: Tensor) -> bool:
    return output.numel() == targets.numel()


def _targets_like(targets: Tensor) -> Tensor:
    """Targets of the same shape, all of them different, or 0 and 1 in turns where they are integers."""
    count = torch.arange(targets.numel(), device=targets.device)
    values = 0.1 + 0.8 * count / max(targets.numel() - 1, 1) if targets.is_floating_point() else count % 2
    return values.to(targets.dtype).reshape(targets.shape)


def _outputs_like(output: Tensor, targets: Tensor) -> Tensor:
    """Outputs of the same shape in [0, 1], entry by entry almost the targets where there are as many of both."""
    noise = torch.rand(output.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = noise.to(output.device, torch.promote_types(output.dtype, torch.float32))
    return targets.to(noise.dtype).reshape(output.shape) + _JITTER * noise if _as_many(output, targets) else noise


def _tensors(outputs: Any) -> list[Tensor]:
    """The floating point tensors among what a model returned."""
    if isinstance(outputs, Tensor):
        return [outputs] if outputs.is_floating_point() else []
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _changed(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The outputs with other floating point tensors in them; containers stay of their kind."""
    if isinstance(outputs, Tensor):
        return change(outputs) if outputs.is_floating_point() and outputs.dim() else outputs
    if isinstance(outputs, Mapping):
        found: Any = copy.copy(outputs)
        for key, part in outputs.items():
            found[key] = _changed(part, change)
        return found
    if isinstance(outputs, tuple | list):
        parts = [_changed(part, change) for part in outputs]
        return type(outputs)._make(parts) if hasattr(outputs, "_make") else type(outputs)(parts)
    return outputs


def _same(first: float, second: float) -> bool:
    return abs(first - second) <= _ROUND_OFF * max(abs(first), abs(second))

"""The gradient of each example of a batch by itself, for defenses that act before the mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gradleak.core.batch import Batch
from gradleak.core.evaluation import BY_EXAMPLE
from gradleak.core.objective import Objective, Tensors
from gradleak.results import UnsupportedError

# Number of calls by module, which the objectives of a training have in common, and shape of an example.
_CALLS: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], int]] = WeakKeyDictionary()


def example_gradients(objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> Tensors:
    """The gradients of the loss of every one-example batch, by name, each (b, *shape of the parameter).

    Pure and safe under torch.func transforms. Random layers draw the same masks for every example (those of a batch of
    one). A model without a batching rule (recurrent layers, data-dependent control flow) takes one gradient at a time.

    Args:
        objective: the client's loss.
        params: by name, where the gradients are taken.
        batch: b examples.

    Raises:
        UnsupportedError: if the model mixes examples, so that none has a gradient of its own.

    Cost: one gradient under vmap and b·P numbers; b gradients where vmap does not work. At the first call of a model and shape,
    and at the second, fourth, eighth and so on, two forward passes of two examples that test whether examples mix.
    """
    _refuse_mixing(objective, tuple(batch.inputs.shape[1:]), ids=not batch.inputs.is_floating_point())
    places = torch.arange(batch.size, device=batch.inputs.device)

    def one(inputs: Tensor, targets: Tensor, place: Tensor) -> Tensors:
        return objective.of_example(place).gradient(params, Batch(inputs[None], targets[None]))

    if batch.size > 1:
        try:
            with BY_EXAMPLE.within(objective):
                rows: Tensors = torch.func.vmap(one, randomness="same")(batch.inputs, batch.targets, places)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, ValueError, AssertionError, UserWarning):
            pass  # no batching rule (a warning where they are errors); another cause comes again below
        else:
            return rows
    singles = [one(*row) for row in zip(batch.inputs, batch.targets, places, strict=True)]
    return {name: torch.stack([single[name] for single in singles]) for name in singles[0]}


def _refuse_mixing(objective: Objective, shape: tuple[int, ...], *, ids: bool) -> None:
    """Refuse a model in which the output of one example depends on another one."""
    calls = _CALLS.setdefault(objective._module, {})
    before = calls.get(shape, 0)
    # At calls 1, 2, 4, 8 and so on: a gate that is shut at the first parameters opens in a training. Inside of a transform
    # nobody knows the values.
    if before & (before + 1) or (before and torch._C._functorch.peek_interpreter_stack() is not None):
        calls[shape] = before + 1
        return
    layers = objective.batch_statistics
    if layers or _mixes(objective, shape, ids=ids):
        what = f"it normalizes by the batch in {', '.join(layers)}" if layers else "examples mix in its forward pass"
        raise UnsupportedError(
            "expected a model in which every example has a gradient of its own, as a per-example defense needs, got "
            f"one where {what}; use mode='eval' or another normalization (GroupNorm), or a defense of the whole update"
        )
    calls[shape] = before + 1


def _mixes(objective: Objective, shape: tuple[int, ...], *, ids: bool) -> bool:
    """True if another first example changes what the model returns for the second one."""
    # Irregular values in [0, 1] without a draw, which vmap around this call would refuse.
    count = 3 * math.prod(shape)
    values = (0.5 + 0.5 * (12.9898 * torch.arange(1, count + 1, dtype=torch.float64)).sin()).reshape(3, *shape)
    # Three ids are in every vocabulary worth the name.
    first, second, third = (
        (3 * values).long().clamp(max=2).to(objective.device) if ids else values.to(objective.device, objective.dtype)
    )
    pair, other = torch.stack([first, second]), torch.stack([third, second])
    objective = objective.of_example(None)
    with torch.no_grad():
        one, two = (tree_leaves(objective.outputs(objective.params, inputs)) for inputs in (pair, other))
    tolerance = torch.finfo(objective.dtype).eps ** 0.5
    return any(
        not torch.allclose(left[1], right[1], rtol=tolerance, atol=tolerance, equal_nan=True)
        for left, right in zip(one, two, strict=True)
        if isinstance(left, Tensor) and left.is_floating_point() and left.dim() > 0 and left.shape[0] == 2
    )

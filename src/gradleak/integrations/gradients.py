"""Gradients of a training loop as the update that a client shares, and its micro-batches as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradleak.core import Batch, Domain, Update
from gradleak.core.module_copy import unwrap
from gradleak.results import InputError


def gradient_update(module: nn.Module, *, front: str = "", scale: float = 1.0) -> Update:
    """The gradients that the parameters of a module hold, copied; zero for a trained parameter that holds none.

    Args:
        module: after a backward pass; wrappers are taken off.
        front: of all names, where the gate looks at the module through another one.
        scale: by which the loss was multiplied (mixed precision); the gradients are divided by it.

    Raises:
        InputError: if nothing is trained.
    """
    inner = unwrap(module)
    trained = {name: parameter for name, parameter in inner.named_parameters() if parameter.requires_grad}
    if not trained:
        raise InputError("gradients: expected a module with trained parameters, got none with requires_grad=True")
    return Update(
        tensors={
            f"{front}{name}": torch.zeros_like(one) if one.grad is None else one.grad.detach().clone() / scale
            for name, one in trained.items()
        }
    )


def joined(parts: Sequence[tuple[Tensor, Tensor]], domain: Domain | None) -> Batch:
    """The micro-batches of a step as one batch, cut from their graphs.

    Args:
        parts: inputs and targets.
        domain: of the inputs, or None to have it guessed.

    Raises:
        InputError: if there are none, or of unequal sizes, whose mean of means no batch has.
    """
    sizes = {inputs.shape[0] for inputs, _ in parts}
    if len(sizes) != 1:
        raise InputError(
            f"step: expected micro-batches of one size, whose mean is that of one batch, got sizes {sorted(sizes)}"
        )
    inputs = torch.cat([inputs.detach().clone() for inputs, _ in parts])
    return Batch(inputs, torch.cat([targets.detach().clone() for _, targets in parts]), domain)

"""Parameters of a module that a client can share a gradient of, or the reason why there is none."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.results import InputError

_FEW = 3


def check_trainable(module: nn.Module) -> tuple[str, ...]:
    """Refuse a module of which nothing is trained, and say what holds its weights; else notes on what is left out.

    Quantized layers hold integers in packed form, which are no parameters: `parameters()` does not list them.

    Raises:
        InputError: naming quantized layers, integer weights or frozen parameters.
    """
    packed = [name or type(module).__name__ for name, part in module.named_modules() if _is_packed(part)]
    if any(parameter.requires_grad for parameter in module.parameters()):
        return (f"quantized, neither trained nor shared: {_some(packed)}",) if packed else ()
    whole = [*module.named_parameters(), *module.named_buffers()]
    integers = [name for name, tensor in whole if tensor.dtype in (torch.int8, torch.uint8) and tensor.numel() > 1]
    frozen = [name for name, parameter in module.named_parameters() if parameter.is_floating_point()]
    if packed or integers:
        got = f"a quantized model, whose weights are integers without a gradient ({_some(packed or integers)}); audit the "
        got += "floating point model that the client trains, before it is converted"
    elif frozen:
        got = (
            f"{len(frozen)} that are all frozen ({_some(frozen)}); call requires_grad_(True) on what the client trains"
        )
    else:
        got = "none"
    raise InputError(f"model: expected at least one parameter with requires_grad=True, got {got}")


def _is_packed(part: nn.Module) -> bool:
    """True for the layers of `torch.ao.nn.quantized` and its like that hold weights."""
    return ".quantized" in type(part).__module__ and callable(getattr(part, "weight", None))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")

"""Activations with an inverse: what goes into them is known from what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[..., Tensor]
_EDGE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Activation:
    """A pointwise function that is monotone where it is not flat.

    Attributes:
        value: output for an input.
        inverse: input that has a given output, where there is one alone.
        slope: derivative at the input with that output.
        flat_below: output at and below which the input is not known, and the slope is zero; None where there is none.
    """

    value: Map
    inverse: Map
    slope: Map
    flat_below: float | None = None

    def above(self, outputs: Tensor, stds: Tensor, sigmas: float) -> Tensor:
        """Mask of outputs that exceed the flat part by so many standard deviations; all where there is none."""
        if self.flat_below is None:
            return torch.ones_like(outputs, dtype=torch.bool)
        return outputs > self.flat_below + sigmas * stds


def _relu() -> Activation:
    return Activation(value=torch.relu, inverse=lambda h: h, slope=torch.ones_like, flat_below=0.0)


def _leaky(slope: float) -> Activation:
    return Activation(
        value=lambda a: F.leaky_relu(a, slope),
        inverse=lambda h: torch.where(h > 0, h, h / slope),
        slope=lambda h: torch.where(h > 0, torch.ones_like(h), slope),
    )


def _elu(alpha: float) -> Activation:
    def inverse(h: Tensor) -> Tensor:
        return torch.where(h > 0, h, torch.log1p((h / alpha).clamp(min=_EDGE - 1)))

    return Activation(
        value=lambda a: F.elu(a, alpha),
        inverse=inverse,
        slope=lambda h: torch.where(h > 0, 1.0, (h + alpha).clamp(min=0)),
    )


def _sigmoid() -> Activation:
    return Activation(
        value=torch.sigmoid,
        inverse=lambda h: torch.logit(h.clamp(_EDGE, 1 - _EDGE)),
        slope=lambda h: (h * (1 - h)).clamp(min=0),
    )


def _tanh() -> Activation:
    return Activation(
        value=torch.tanh,
        inverse=lambda h: torch.atanh(h.clamp(_EDGE - 1, 1 - _EDGE)),
        slope=lambda h: (1 - h.square()).clamp(min=0),
    )


def _softplus() -> Activation:
    return Activation(
        value=F.softplus,
        inverse=lambda h: h + torch.log(-torch.expm1(-h.clamp(min=_EDGE))),
        slope=lambda h: -torch.expm1(-h.clamp(min=0)),
    )


def activation_of(module: nn.Module) -> Activation | None:
    """The activation that a module computes, or None."""
    match module:
        case nn.ReLU():
            return _relu()
        case nn.LeakyReLU() if module.negative_slope > 0:
            return _leaky(module.negative_slope)
        case nn.ELU() if module.alpha > 0:
            return _elu(module.alpha)
        case nn.Sigmoid():
            return _sigmoid()
        case nn.Tanh():
            return _tanh()
        case nn.Softplus() if module.beta == 1:
            return _softplus()
        case _:
            return None


FUNCTIONS: Mapping[Any, Callable[[], Activation]] = {
    torch.relu: _relu,
    F.relu: _relu,
    "relu": _relu,
    torch.sigmoid: _sigmoid,
    F.sigmoid: _sigmoid,
    "sigmoid": _sigmoid,
    torch.tanh: _tanh,
    F.tanh: _tanh,
    "tanh": _tanh,
}

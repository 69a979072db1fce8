"""Clipping of the whole update to a norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Guarantee, Noise, UpdateDefense
from gradleak.results import ABADI_2016, Citation, InputError


@dataclass(frozen=True)
class Clip(UpdateDefense):
    """The update scaled down so that the L2 norm over all its tensors is at most `max_norm`.

    g -> g · min(1, C / ‖g‖). Where it bites, the derivative is (C/‖g‖)(I − ĝĝᵀ): the direction survives, so a
    scale-free attack loses nothing. Alone it gives no formal guarantee; with noise it bounds the sensitivity of the
    whole update (not of one example: that is per-example clipping).

    Attributes:
        max_norm: C, positive.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016,)

    max_norm: float

    def __post_init__(self) -> None:
        """Check the norm."""
        check_max_norm("Clip", self.max_norm)

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The clipped update; its norm is taken in float32 at least, where the squares of half precision overflow."""
        return scaled_to(self.max_norm, update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: clipping is deterministic."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The clipped update."""
        return self.mean(update)

    def bound(self, shapes: Mapping[str, Tensor]) -> float:
        """C."""
        return float(self.max_norm)


def scaled_to(max_norm: float, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors scaled down together so that their joint L2 norm is at most `max_norm`; differentiable, also at zero."""
    squared = sum((_at_least_float32(tensor) ** 2).sum() for tensor in tensors.values())
    assert isinstance(squared, Tensor)
    bites = squared > max_norm**2
    # The inner where keeps the derivative of rsqrt finite at a zero update.
    scale = torch.where(bites, max_norm * torch.rsqrt(torch.where(bites, squared, 1.0)), 1.0)
    return {name: (tensor * scale).to(tensor.dtype) for name, tensor in tensors.items()}


def check_max_norm(defense: str, value: float) -> None:
    """Refuse a `max_norm` that is no positive number.

    Raises:
        InputError: naming the defense.
    """
    if not isinstance(value, Real) or not (math.isfinite(value) and value > 0):
        raise InputError(f"{defense}.max_norm: expected a positive number, got {value!r}")


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

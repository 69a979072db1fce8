"""Clipping of the whole update to a norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Guarantee, Noise, Scaled, UpdateDefense
from gradleak.results import ABADI_2016, Citation, Positive


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

    max_norm: Positive

    def effect(self, names: Iterable[str]) -> Scaled:
        """All tensors times one factor."""
        return Scaled(groups=[list(names)], max_norm=self.max_norm)

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The clipped update; squares neither overflow nor vanish, whatever the format and the size of the entries."""
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
    """Tensors scaled down together so that their joint L2 norm is at most `max_norm`; differentiable, also at zero.

    Squares are taken of x/s, with s the power of two below the largest magnitude, so that they neither overflow nor
    vanish. Dividing by it rounds nothing, and no derivative runs through s, on which the norm s‖x/s‖ does not depend.
    """
    inverse = 1 / power_of_two(tensors.values())
    squared = sum((_at_least_float32(tensor) * inverse).square().sum() for tensor in tensors.values())
    assert isinstance(squared, Tensor)
    bites = squared > (max_norm * inverse) ** 2
    # The inner where keeps the derivative of rsqrt finite at a zero update.
    scale = torch.where(bites, max_norm * torch.rsqrt(torch.where(bites, squared, 1.0)) * inverse, 1.0)
    return {name: (tensor * scale).to(tensor.dtype) for name, tensor in tensors.items()}


def power_of_two(tensors: Iterable[Tensor]) -> Tensor:
    """The power of two at most as large as the largest magnitude, a constant whose inverse is a number, too.

    1 where all entries are zero, or there is none.
    """
    wide = [_at_least_float32(tensor.detach()) for tensor in tensors if tensor.numel()]
    if not wide:
        return torch.ones(())
    largest = reduce(torch.maximum, [torch.maximum(tensor.amax(), -tensor.amin()) for tensor in wide])
    tiny = torch.finfo(largest.dtype).tiny
    return torch.where(largest > 0, largest.clamp(tiny, 1 / tiny), 1.0).log2().floor().exp2()


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))

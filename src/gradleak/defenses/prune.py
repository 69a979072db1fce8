"""Magnitude pruning of the update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Bounds, Guarantee, Noise, Thinned, UpdateDefense
from gradleak.defenses.layers import layers
from gradleak.results import LIN_2018, ZHU_2019, BelowOne, Citation


class PruneBy(StrEnum):
    """Among which entries the smallest are looked for."""

    GLOBAL = "global"
    LAYER = "layer"


@dataclass(frozen=True)
class Prune(UpdateDefense):
    """The update with the share `ratio` of its entries that are smallest in magnitude set to zero.

    ⌊ratio · n⌋ of n entries become zero, of the whole update or of each layer (weight and bias of a module together);
    among equal magnitudes the earlier ones go. The set that is kept is a constant almost everywhere, so A loses the
    rows of what is pruned and keeps the others as they are. Which entries are kept tells something as well; the
    closed-form measures do not count it. It gives no formal guarantee.

    Gaussian noise from before it is no longer Gaussian; noise after it reaches the pruned entries too.

    Attributes:
        ratio: the share that is removed, from 0 to below 1.
        by: "global" or "layer".
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (LIN_2018, ZHU_2019)

    ratio: BelowOne
    by: PruneBy | str = PruneBy.GLOBAL

    @property
    def kept_share(self) -> float:
        """1 − ratio; ⌊ratio · n⌋ entries of each group go, so that a little more may stay."""
        return 1 - self.ratio

    def effect(self, names: Iterable[str]) -> Thinned:
        """Zeros in place of the smallest entries of each group."""
        return Thinned(groups=self._groups(names))

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update with the pruned entries at zero."""
        kept: dict[str, Tensor] = {}
        for names in self._groups(update):
            kept |= self._kept({name: update[name] for name in names})
        return {name: torch.where(kept[name], tensor, 0.0) for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: pruning is deterministic."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The pruned update."""
        return self.mean(update)

    def before(self, after: Bounds) -> Bounds:
        """Bounds that keep what is not zero; what is zero was no larger than the smallest of its group that is not."""
        groups = self._groups(after.lower)
        return after.filled({name: limit for names in groups for name, limit in smallest_kept(after, names).items()})

    def _groups(self, names: Iterable[str]) -> list[list[str]]:
        return list(layers(names).values()) if self.by == PruneBy.LAYER else [list(names)]

    def _kept(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Masks of the entries that stay."""
        entries = sum(tensor.numel() for tensor in tensors.values())
        # A hair above, so that 0.9 of 10 entries are 9 and not 8.999...
        return without_smallest(tensors, math.floor(self.ratio * entries * (1 + 1e-12)))


def without_smallest(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Masks of all entries but the `count` smallest in magnitude over all tensors; of equal ones the earlier go."""
    magnitude = torch.cat([tensor.detach().reshape(-1).abs() for tensor in tensors.values()])
    order = magnitude.argsort(stable=True)
    mask = torch.ones_like(magnitude, dtype=torch.bool).scatter(0, order[:count], False)
    pieces = mask.split([tensor.numel() for tensor in tensors.values()])
    return {name: piece.reshape(tensor.shape) for (name, tensor), piece in zip(tensors.items(), pieces, strict=True)}


def smallest_kept(after: Bounds, names: Sequence[str]) -> dict[str, Tensor]:
    """The smallest magnitude, over tensors that were thinned out together, of what is not zero, for each of them.

    What was set to zero was no larger. Infinite where everything is zero.
    """
    least = [torch.where(after.hold_zero(name), torch.inf, after.most(name)).min() for name in names]
    return dict.fromkeys(names, torch.stack(least).min())

"""Sparsification by magnitude, as compressing systems send it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Bounds, Guarantee, Noise, Thinned, UpdateDefense
from gradleak.defenses.layers import layers
from gradleak.defenses.prune import smallest_kept, without_smallest
from gradleak.results import LIN_2018, STICH_2018, Citation, ShareOrAll


class TopKBy(StrEnum):
    """Among which entries the largest are looked for."""

    GLOBAL = "global"
    LAYER = "layer"
    TENSOR = "tensor"


@dataclass(frozen=True)
class TopK(UpdateDefense):
    """The update with the share `share` of its entries that are largest in magnitude, with their values; zeros elsewhere.

    k = ⌈share · n⌉ of n entries are kept, at least one: of the whole update, of each layer, or of each tensor as most
    systems do. Among equal magnitudes the later ones stay. It says how much is kept where `Prune` says how much goes,
    and rounds in favor of keeping; with `by="global"` both do the same.

    Without error feedback: what is cut off is lost, where real systems often add it to the next round (Lin et al.,
    Stich et al.), which then carries what earlier batches left behind. The set that is kept is visible and constant
    almost everywhere, so that A keeps the rows of what is sent and loses the others. It gives no formal guarantee.

    **Source**: Stich et al. 2018, definition 2.1 (top-k); Lin et al. 2018, by tensor. Deviation: no memory.

    Attributes:
        share: how much is kept, above 0 and at most 1.
        by: "global", "layer" or "tensor".

    Raises:
        InputError: for a share out of range, or an unknown `by`.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (LIN_2018, STICH_2018)

    share: ShareOrAll
    by: TopKBy | str = TopKBy.GLOBAL

    @property
    def kept_share(self) -> float:
        """The share; the number of entries is rounded up in every group."""
        return self.share

    def effect(self, names: Iterable[str]) -> Thinned:
        """Zeros in place of the smallest entries of each group."""
        return Thinned(groups=self._groups(names))

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update with zeros in place of what is not kept."""
        kept: dict[str, Tensor] = {}
        for names in self._groups(update):
            tensors = {name: update[name] for name in names}
            entries = sum(tensor.numel() for tensor in tensors.values())
            kept |= without_smallest(tensors, entries - kept_count(self.share, entries))
        return {name: torch.where(kept[name], tensor, 0.0) for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: what is kept is determined by the update."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The sparse update."""
        return self.mean(update)

    def before(self, after: Bounds) -> Bounds:
        """Bounds that keep what is not zero; what is zero was no larger than the smallest of its group that is not."""
        groups = self._groups(after.lower)
        return after.filled({name: limit for names in groups for name, limit in smallest_kept(after, names).items()})

    def _groups(self, names: Iterable[str]) -> list[list[str]]:
        if self.by is TopKBy.TENSOR:
            return [[name] for name in names]
        return list(layers(names).values()) if self.by is TopKBy.LAYER else [list(names)]


def kept_count(share: float, entries: int) -> int:
    """Number of entries that are kept: ⌈share · n⌉, at least one."""
    # A hair below, so that 0.1 of 10 entries are 1 and not 1.000...1
    return min(entries, max(1, math.ceil(share * entries * (1 - 1e-12))))

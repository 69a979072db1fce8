"""Sparsification by chance: a random set of entries is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Bounds, Guarantee, Noise, NotGaussian, UpdateDefense
from gradleak.defenses.draws import uniform
from gradleak.defenses.top_k import kept_count
from gradleak.results import KONECNY_2016, STICH_2018, Citation, ShareOrAll


@dataclass(frozen=True)
class RandomSparsify(UpdateDefense):
    """A random set of ⌈share · n⌉ of the n entries of the update, scaled by n/⌈share · n⌉ or not; zeros elsewhere.

    Every set of that size is equally likely, over all tensors together. With `unbiased` the mean over the draws is the
    update itself, so that training still converges; without, it is share times it. The mask is visible: the zeros of
    the update show it, and who knows the scaling reads the other entries as they are.

    The mean map is linear, and closed-form measures of A see only it: they hold for an attacker who averages over many
    masks of one batch, not for one update, which shows those rows of A that the mask keeps. Its law is not Gaussian, so
    that measures of Gaussian noise are unsupported. It gives no formal guarantee.

    **Source**: Konečný et al. 2016, section 3, subsampling (scaled); Stich et al. 2018, definition 2.1, random-k (not
    scaled). Without error feedback.

    Attributes:
        share: how much is kept, above 0 and at most 1.
        unbiased: whether kept entries are scaled up.

    Raises:
        InputError: for a share out of range, or an `unbiased` that is no truth value.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (KONECNY_2016, STICH_2018)

    share: ShareOrAll
    unbiased: bool = True

    @property
    def kept_share(self) -> float:
        """The share."""
        return self.share

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean over the masks: the update, or the update times the share that is kept."""
        if self.unbiased:
            return dict(update)
        share = self._exact_share(update)
        return {name: share * tensor for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Not Gaussian; None where everything is kept."""
        share = self._exact_share(shapes)
        if share == 1:
            return None
        return NotGaussian(
            reason=f"RandomSparsify sends {share:.3g} of the entries, drawn anew for every update; the mask is visible"
        )

    def variance(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """g²(1/p − 1) of an entry g kept with probability p, or g²p(1 − p) without the scaling."""
        share = self._exact_share(update)
        factor = 1 / share - 1 if self.unbiased else share * (1 - share)
        return {name: factor * tensor.square() for name, tensor in update.items()}

    def mask(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """One draw of the entries that are sent, as booleans by name."""
        places = torch.cat([uniform(tensor, generator).reshape(-1).double() for tensor in update.values()])
        chosen = places.argsort(stable=True)[: kept_count(self.share, places.numel())]
        flat = torch.zeros_like(places, dtype=torch.bool).scatter(0, chosen, True)
        pieces = flat.split([tensor.numel() for tensor in update.values()])
        return {name: piece.reshape(tensor.shape) for (name, tensor), piece in zip(update.items(), pieces, strict=True)}

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], RandomSparsify]:
        """Every entry that any of them holds, without the scaling: R draws leave (1 − share)^R of the entries open."""
        scale = self._exact_share(updates[0]) if self.unbiased else 1.0
        union: dict[str, Tensor] = {}
        for name in updates[0]:
            draws = torch.stack([update[name] for update in updates])
            held = (draws != 0).sum(dim=0)
            union[name] = scale * draws.sum(dim=0) / held.clamp(min=1)
        return union, RandomSparsify(share=self.share, unbiased=False)

    def before(self, after: Bounds) -> Bounds:
        """Bounds that undo the scaling of what is not zero; what is zero may have been anything."""
        sent = after.scaled(self._exact_share(after.lower)) if self.unbiased else after
        return sent.filled(dict.fromkeys(after.lower, math.inf))

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The update through a fresh mask."""
        mask = self.mask(update, generator)
        scale = 1 / self._exact_share(update) if self.unbiased else 1.0
        return {name: torch.where(mask[name], scale * tensor, 0.0) for name, tensor in update.items()}

    def _exact_share(self, update: Mapping[str, Tensor]) -> float:
        entries = sum(tensor.numel() for tensor in update.values())
        return kept_count(self.share, entries) / entries

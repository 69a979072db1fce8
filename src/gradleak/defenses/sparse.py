"""Sparse updates: pruning, top-k, random entries, and signs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Bounds, Guarantee, Noise, NotGaussian, Thinned, UpdateDefense
from gradleak.defenses.draws import layers, uniform
from gradleak.results import (
    BERNSTEIN_2018,
    KONECNY_2016,
    LIN_2018,
    STICH_2018,
    ZHU_2019,
    BelowOne,
    Citation,
    ShareOrAll,
)


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


@dataclass(frozen=True)
class Sign(UpdateDefense):
    """The sign of every entry of the update, −1, 0 or 1: signSGD.

    It is constant almost everywhere, so A = 0 and the closed-form measures are `not_informative`: they say nothing,
    which is no evidence of safety. Attacks that know it look for an update with these signs (`before`); one that does
    not matches the plain gradient with the signs. The signs of a classifier's bias gradient
    name the label of a single example, and those of a first linear layer give the signs of its inputs, up to one for
    all of a unit. It gives no formal guarantee.

    Gaussian noise from before it is no longer Gaussian (it flips signs).
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (BERNSTEIN_2018,)

    @property
    def flat(self) -> bool:
        """True: a sign is constant almost everywhere."""
        return True

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The signs, in the dtype of the update."""
        return {name: tensor.sign() for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: the sign is deterministic."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The signs."""
        return self.mean(update)

    def bound(self, shapes: Mapping[str, Tensor]) -> float:
        """√P for P entries."""
        bound: float = sum(tensor.numel() for tensor in shapes.values()) ** 0.5
        return bound

    @property
    def keeps_scale(self) -> bool:
        """False: a positive multiple of the update has the same signs."""
        return False

    def before(self, after: Bounds) -> Bounds:
        """An entry with the sign that came out: from 0 up, from 0 down, or 0; all open where the sign is not known."""
        lower, upper = {}, {}
        for name, low in after.lower.items():
            high = after.upper[name]
            lower[name] = torch.where((low > 0) | ((low == 0) & (high == 0)), 0.0, -torch.inf).to(low)
            upper[name] = torch.where((high < 0) | ((low == 0) & (high == 0)), 0.0, torch.inf).to(low)
        return Bounds(lower=lower, upper=upper)

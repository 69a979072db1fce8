"""Outpost: pruning and noise by the spread of weights and the size of gradients, ever more rarely in a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Batch, BatchDefense, Bounds, Guarantee, Noise, NotGaussian, Objective, Release
from gradleak.defenses.draws import normal, uniform
from gradleak.defenses.sparse import without_smallest
from gradleak.results import WANG_2023, BelowOne, Citation, Natural, NonNegative


@dataclass(frozen=True, kw_only=True)
class Outpost(BatchDefense):
    """The update pruned by tensor, with Gaussian noise on the columns that tell most, or, ever more often, as it is.

    In iteration t of a training it is perturbed with probability 1/(1 + decay · t), else released as it is. A perturbation
    sets the ⌊pruned · n⌋ smallest magnitudes of each tensor to zero and then adds N(0, (scale · min(var(w), 1))²) to whole
    columns of tensors, w the weights of the tensor: those of the ⌈noised · C⌉ columns, over all tensors, whose mean square
    over the first axis (an empirical Fisher information) is largest before the pruning.

    What an adversary reads who knows it (`before`): a column that holds a zero has no noise, so that its other entries are
    as they were and its zeros were no larger than the smallest of them; too few zeros in all say that nothing was
    perturbed. Late in a training most updates are plain ones, and one is enough. The spread of weights is public: networks with
    small weights get next to no noise. It gives no formal guarantee, and no epsilon.

    Its mean, the mixture of pruned and plain, is what closed-form measures see; its law is not Gaussian.

    **Source**: Wang et al. 2023, by their code and its configuration. Deviations: it acts once on
    the update, where they act in every local step; the iteration is a setting, since a release is of one round; of equal
    magnitudes the earlier go.

    Attributes:
        iteration: t, of the training.
        decay: of the probability over iterations.
        noised: share of columns that get noise, from 0 to below 1.
        pruned: share of the entries of a tensor that are set to zero, from 0 to below 1.
        scale: of the noise.

    Raises:
        InputError: for a number out of range.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (WANG_2023,)

    iteration: Natural = 0
    decay: NonNegative = 0.125
    noised: BelowOne = 0.4
    pruned: BelowOne = 0.8
    scale: NonNegative = 0.8

    @property
    def probability(self) -> float:
        """Probability that an update of this iteration is perturbed."""
        return 1 / (1 + self.decay * self.iteration)

    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The update with its smallest entries shrunk by the probability that they are set to zero."""
        chance = self.probability
        return {name: torch.where(kept, update[name], (1 - chance) * update[name]) for name, kept in self._kept(update)}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Not Gaussian: which entries get noise, and whether any do, is drawn or depends on the update."""
        return NotGaussian(
            reason=f"Outpost perturbs an update with probability {self.probability:.3g}, in columns that depend on it"
        )

    def draw(
        self,
        update: Mapping[str, Tensor],
        *,
        objective: Objective,
        batch: Batch,
        before: Release,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """The update, perturbed or as it is."""
        if float(uniform(torch.zeros(()), generator)) >= self.probability:
            return dict(update)
        chosen = self._noised(update)
        made = {}
        for name, kept in self._kept(update):
            tensor = torch.where(kept, update[name], 0.0)
            weights = objective.params[name].detach()
            spread = float(weights.double().var()) if weights.numel() > 1 else 0.0
            noise = self.scale * min(spread, 1.0) * normal(tensor, generator)
            made[name] = torch.where(chosen[name], tensor + noise, tensor)
        return made

    def before(self, after: Bounds) -> Bounds:
        """Bounds by column: open where noise may be, and next to zeros those that pruning leaves."""
        zeros = {name: after.hold_zero(name) for name in after.lower}
        columns = sum(_columns(mask) for mask in zeros.values())
        # Of the zeros in columns without noise at least so many, in columns, are there after a perturbation.
        seen = torch.stack([mask.sum() / _height(mask) for mask in zeros.values()]).sum()
        least = sum(math.floor(self.pruned * mask.numel()) / _height(mask) for mask in zeros.values())
        plain = seen < least - math.ceil(self.noised * columns) - 1e-6
        lower, upper = {}, {}
        for name, mask in zeros.items():
            low, high = after.lower[name], after.upper[name]
            quiet = mask.any(dim=0, keepdim=True).expand_as(mask) if mask.dim() else mask
            limit = torch.where(quiet & ~mask, after.most(name), torch.inf).min()
            reach = torch.where(mask, limit, torch.where(quiet, 0.0, torch.inf))
            open_ = (mask | ~quiet) & ~plain
            lower[name] = torch.where(open_, torch.minimum(low, -reach.to(low)), low)
            upper[name] = torch.where(open_, torch.maximum(high, reach.to(high)), high)
        return Bounds(lower=lower, upper=upper)

    def _kept(self, update: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        """Masks of the entries of each tensor that pruning leaves."""
        return [
            (name, without_smallest({name: tensor}, math.floor(self.pruned * tensor.numel()))[name])
            for name, tensor in update.items()
        ]

    def _noised(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Masks of the entries in columns that get noise."""
        sizes = {
            name: tensor.square().mean(dim=0) if tensor.dim() else tensor.square() for name, tensor in update.items()
        }
        every = torch.cat([size.reshape(-1).double() for size in sizes.values()])
        count = math.ceil(self.noised * len(every))
        flat = torch.zeros_like(every, dtype=torch.bool).scatter(
            0, every.argsort(descending=True, stable=True)[:count], True
        )
        pieces = flat.split([size.numel() for size in sizes.values()])
        return {
            name: piece.reshape(sizes[name].shape).expand_as(update[name])
            for name, piece in zip(update, pieces, strict=True)
        }


def _height(mask: Tensor) -> int:
    """Entries of a column: the first axis."""
    return mask.shape[0] if mask.dim() else 1


def _columns(mask: Tensor) -> int:
    return mask.numel() // _height(mask)

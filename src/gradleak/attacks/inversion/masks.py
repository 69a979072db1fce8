"""Masks of a model that draws (dropout, a bottleneck): the adversary takes the mean over draws of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.core import Batch, Knowledge, Objective, Release, derive_seed
from gradleak.core.objective import Tensors

DRAWS = 8
"""Draws of a model's own noise over which an adversary who does not know the client's averages."""


def draws_of(knowledge: Knowledge, objective: Objective, targets: Tensor | None = None) -> Sequence[Objective]:
    """The objectives whose mean gradient a guess is put through.

    The objective alone where the model draws nothing, or where the client's own draw is disclosed. Else several draws: the
    client's is one of many, and the mean gradient is nearest to all of them on average.

    Args:
        knowledge: without a domain only layers that are known to draw are seen.
        objective: as disclosed, in the dtype of the search.
        targets: labels (b, ...) where they are known, so that a loss that draws is seen, too.

    **Cost**: one forward pass.
    """
    if knowledge.masks is not None or not _draws(knowledge, objective, targets):
        return [objective]
    seeds = [derive_seed(objective.mask_seed, "draw", str(number)) for number in range(DRAWS)]
    return [replace(objective, mask_seed=seed) for seed in seeds]


def mean_release(release: Release, draws: Sequence[Objective], batch: Batch) -> Tensors:
    """The released mean of a guess over the draws, by parameter name; pure and safe under torch.func transforms."""
    made = [release.mean(objective, objective.params, batch) for objective in draws]
    if len(made) == 1:
        return made[0]
    return {name: torch.stack([one[name] for one in made]).mean(dim=0) for name in made[0]}


def _draws(knowledge: Knowledge, objective: Objective, targets: Tensor | None) -> bool:
    if knowledge.domain is None:
        return bool(objective.random_layers)
    low, high = knowledge.domain.bounds(next(iter(objective.params.values())))
    middle = ((low + high) / 2).expand(knowledge.batch_size or 1, *knowledge.domain.shape)
    return objective.draws(middle.clone(), targets)

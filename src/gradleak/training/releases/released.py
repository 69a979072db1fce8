"""The released updates of many batches: as fast as they can be made, with masks of their own where layers draw."""

from __future__ import annotations

import torch

from gradleak.core import Batch, ModelDefense, Objective, Release, UpdateDefense
from gradleak.core.objective import Tensors
from gradleak.results import InputError
from gradleak.training.releases.batch_releases import BatchReleases


def releases_of(objective: Objective, release: Release, rows: Batch) -> BatchReleases:
    """Maker of releases of batches of these rows.

    Where the model draws (dropout, a variational bottleneck) every batch draws for itself: what one batch drew is no
    other's, and an adversary does not know it either.
    """
    return BatchReleases(objective, release, rows, own_masks=True)


def updated(release: Release, objective: Objective, batch: Batch, generator: torch.Generator) -> Tensors | None:
    """Update that one batch releases; None where it is not finite.

    The numbers are those of `release(objective, batch, generator)`. Where its defenses act on the finished gradient they
    come at a third of the time: nothing is checked again, and plain autograd makes the gradient.
    """
    stages = [defense for defense in release.defenses if not isinstance(defense, ModelDefense)]
    batch = batch.to(objective.dtype)
    if not release.protocol.shares_gradient or not all(isinstance(defense, UpdateDefense) for defense in stages):
        try:
            return dict(release(objective, batch, generator).tensors)
        except InputError:
            if _gradient(objective, batch) is not None:
                raise
            return None
    update = _gradient(objective, batch)
    if update is not None:
        for defense in stages:
            assert isinstance(defense, UpdateDefense)
            update = defense.draw(update, generator)
    return update


def _gradient(objective: Objective, batch: Batch) -> Tensors | None:
    """The gradient of the loss; None where it is not finite."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in objective.params.items()}
    loss = objective.loss(leaves, batch)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in found):
        return None
    return dict(zip(leaves, found, strict=True))

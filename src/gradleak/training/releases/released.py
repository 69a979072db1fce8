"""The released updates of many batches: as fast as they can be made, with masks of their own where layers draw."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import torch
from torch import Tensor

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

    The numbers are those of `release(objective, batch, generator)`, and nothing is checked again. Where its defenses act on
    the finished gradient, plain autograd makes that, and they come at a third of the time.
    """
    stages = [defense for defense in release.defenses if not isinstance(defense, ModelDefense)]
    batch = batch.to(objective.dtype)
    if not release.protocol.shares_gradient or not all(isinstance(defense, UpdateDefense) for defense in stages):
        return _drawn(release, objective, batch, generator)
    update = _gradient(objective, batch)
    if update is not None:
        for defense in stages:
            assert isinstance(defense, UpdateDefense)
            update = defense.draw(update, generator)
    return update


def _drawn(release: Release, objective: Objective, batch: Batch, generator: torch.Generator) -> Tensors | None:
    """One release without its checks; with them where it comes to no number, so that its refusal says why."""
    before = generator.get_state()
    with suppress(InputError):
        update = release.drawn(objective, batch, generator)
        if _finite(update.values()):
            return {name: tensor.detach() for name, tensor in update.items()}
    generator.set_state(before)
    try:
        return dict(release(objective, batch, generator).tensors)
    except InputError:
        if _gradient(objective, batch) is not None:
            raise
        return None


def _gradient(objective: Objective, batch: Batch) -> Tensors | None:
    """The gradient of the loss; None where it is not finite."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in objective.params.items()}
    loss = objective.loss(leaves, batch)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True)) if _finite(found) else None


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

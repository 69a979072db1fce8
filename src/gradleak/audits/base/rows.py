"""Rows of an audit: its own, public ones beside private ones, and the error that blind luck reaches on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from gradleak.audits.base.site import Site, domain_of
from gradleak.core import Batch, HonestButCurious, derive_generator
from gradleak.data import Population
from gradleak.results import Score
from gradleak.scoring import luck_of

PROBED = 4


def held(rows: Any) -> dict[str, Any]:
    """All that a data set holds, without the code of its class: what private data are recognized by.

    Args:
        rows: a dataclass: a population, a table, a split, a batch.
    """
    return {one.name: getattr(rows, one.name) for one in fields(rows)}


def few(rows: Batch | Population) -> Batch:
    """The first rows, at which the behavior of a model is compared."""
    return Batch(rows.inputs, rows.targets, rows.domain, rows.sensitive).rows(slice(PROBED))


def held_privately(public: Tensor, private: Iterable[Batch]) -> Tensor:
    """Mask of the public examples (n, ...) that a private batch holds too, entry by entry: (n,), boolean."""
    found = torch.zeros(public.shape[0], dtype=torch.bool, device=public.device)
    for batch in private:
        if batch.inputs.shape[1:] != public.shape[1:]:
            continue
        for example in batch.inputs.detach().to(public):
            found |= (public.detach() == example).flatten(1).all(dim=1)
    return found


def without_private(public: Batch, private: Iterable[Batch]) -> Batch:
    """Public data without the examples that a private batch holds.

    Data sets of this package are drawn from one pool, so that a draw of public examples may hit private ones.
    """
    kept = ~held_privately(public.inputs, private)
    if bool(kept.all()) or not bool(kept.any()):
        return public
    return Batch(public.inputs[kept], public.targets[kept.to(public.targets.device)], public.domain)


def luck(site: Site, batch: Batch, name: str) -> Score | None:
    """Error that guesses without the update reach by luck on a batch of few entries, None where that is nothing.

    Args:
        site: its public rows are among the guesses.
        batch: the truth.
        name: of the batch in seeds.
    """
    public = site.threat.public if isinstance(site.threat, HonestButCurious) else None
    rows = None if public is None else public.inputs
    generator = derive_generator(site.seed, "chance", name)
    domain = domain_of(batch)
    limits = site.thresholds.for_data(domain.kind)
    return luck_of(batch, domain, rows, generator=generator, within=limits.pixel_rmse, share=limits.baseline_ratio)

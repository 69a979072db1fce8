"""Poisson sampling: every row takes part by a coin of its own, and sometimes none does."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradleak.core import Batch, Objective, Release, Update
from gradleak.data.rows import rows_of
from gradleak.results import InputError, is_number


@dataclass(frozen=True, kw_only=True, eq=False)
class PoissonDraw:
    """A release of a Poisson sample.

    Attributes:
        update: what the server sees; it does not tell how many took part.
        examples: how many did, which may be 0: known to the client alone.
    """

    update: Update
    examples: int


def poisson_sample(data: Batch, *, rate: float, generator: torch.Generator) -> Batch | None:
    """The rows that a coin each picks, with their sensitive variable; None where no row is picked.

    Args:
        data: all rows that the client holds.
        rate: q, above 0 and at most 1: the probability of every row, independently.
        generator: the only source of randomness.

    Raises:
        InputError: for a rate out of range.
    """
    if not is_number(rate) or not 0 < rate <= 1:
        raise InputError(f"poisson_release: expected a rate above 0 and at most 1, got {rate!r}")
    coins = torch.rand(data.size, generator=generator, dtype=torch.float64, device=generator.device)
    places = (coins < rate).nonzero().flatten()
    return rows_of(data, places) if len(places) else None


def poisson_release(
    release: Release, objective: Objective, data: Batch, *, rate: float, generator: torch.Generator
) -> PoissonDraw:
    """One release of rows that each take part with the same probability, independently, as the accounting assumes.

    Where no row is drawn, the noise is released alone.

    Args:
        release: protocol and defenses; it has to divide by a public number (`expected_batch_size`) for an empty sample.
        objective: the client's loss.
        data: all rows that the client holds.
        rate: q, above 0 and at most 1.
        generator: the only source of randomness, of the sample first.

    Raises:
        InputError: for a rate out of range.
        UnsupportedError: if no row is drawn and the release cannot be made of none.
    """
    sample = poisson_sample(data, rate=rate, generator=generator)
    if sample is None:
        return PoissonDraw(update=release.of_nothing(objective, generator), examples=0)
    return PoissonDraw(update=release(objective, sample, generator), examples=sample.size)

"""Populations of rows, and batches drawn from them by a Poisson process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradleak.core import Batch, Domain, Objective, Release, Update
from gradleak.results import InputError, is_number


def rows_of(data: Batch, places: Tensor) -> Batch:
    """The rows of a batch at these places (k,), with their sensitive variable."""
    places = places.to(data.inputs.device)
    sensitive = None if data.sensitive is None else data.sensitive[places.to(data.sensitive.device)]
    return replace(data, inputs=data.inputs[places], targets=data.targets[places], sensitive=sensitive)


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """Rows from which a game draws its private, test and public data.

    Attributes:
        name: for tables and records.
        inputs: what the model sees, (n, *shape), floating point. A property is no part of it; an attribute is.
        targets: what it is trained for, (n,) class indices or (n, ...) numbers.
        sensitive: the sensitive variable of every row, (n,) int64, from 0 to m − 1.
        values: names of its m values, at least two.
        users: who every row belongs to, (n,) int64, or None where rows have no owner.
        side: what an adversary may know of every row besides its gradient, φ(x), (n, s), or None for nothing.
        domain: shape and range of an example, or None.
        holds_sensitive: whether the inputs hold the sensitive variable (or what it was made from), so that it is an attribute;
            false for a property, which is outside of them; None for not known. Games about the other kind are refused.

    Raises:
        InputError: for sizes that disagree, fewer than two values, a sensitive variable out of range, or numbers that are
            not finite.
    """

    name: str
    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    sensitive: Tensor = field(repr=False)
    values: Sequence[str]
    users: Tensor | None = field(default=None, repr=False)
    side: Tensor | None = field(default=None, repr=False)
    domain: Domain | None = None
    holds_sensitive: bool | None = None

    def __post_init__(self) -> None:
        """Check the sizes, the range of the sensitive variable, and that all numbers are finite."""
        Batch(self.inputs, self.targets, self.domain, self.sensitive)
        if len(self.values) < 2:
            raise InputError(
                f"Population.values: expected at least two values of the sensitive variable, got {list(self.values)}"
            )
        if self.sensitive.dim() != 1 or self.sensitive.dtype != torch.int64:
            raise InputError(
                f"Population.sensitive: expected (n,) int64, got {tuple(self.sensitive.shape)} {self.sensitive.dtype}"
            )
        low, high = int(self.sensitive.min()), int(self.sensitive.max())
        if low < 0 or high >= len(self.values):
            raise InputError(
                f"Population.sensitive: expected 0 to {len(self.values) - 1}, the places of its {len(self.values)} values, "
                f"got {low} to {high}"
            )
        for name, rows in (("users", self.users), ("side", self.side)):
            if rows is not None and rows.shape[:1] != self.inputs.shape[:1]:
                raise InputError(f"Population.{name}: expected {self.size} rows, got {tuple(rows.shape)}")
        for name, rows in (("inputs", self.inputs), ("targets", self.targets), ("side", self.side)):
            if rows is not None and rows.is_floating_point():
                _check_finite(name, rows)

    @property
    def size(self) -> int:
        """The number of rows, n."""
        return int(self.inputs.shape[0])

    def rows(self, places: Tensor) -> Batch:
        """The rows at these places, with their sensitive variable."""
        return Batch(self.inputs[places], self.targets[places], self.domain, self.sensitive[places])


def _check_finite(name: str, rows: Tensor) -> None:
    """Refuse NaN and infinity, which a training would carry into every parameter."""
    if bool(torch.isfinite(rows).all()):
        return
    odd = ~torch.isfinite(rows.reshape(len(rows), -1))
    touched = odd.any(dim=1)
    raise InputError(
        f"Population.{name}: expected finite numbers, got {int(odd.sum())} that are NaN or infinite in {int(touched.sum())} "
        f"of {len(rows)} rows, the first in row {int(touched.nonzero()[0])} (from 0); fill these cells or leave the rows out"
    )


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

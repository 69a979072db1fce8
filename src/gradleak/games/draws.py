"""Draws of a trial: the sensitive variable, and the rows of its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.results import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """Batches of rows with the value of the sensitive variable that each was drawn for.

    Attributes:
        labels: a of every batch, (T,) int64.
        rows: places of its rows, (T, k) int64.
        references: in user inference, places of the reference batch of every candidate, (T, m, k); else None.
        note: what a reader has to know of the draw, or "".
    """

    labels: Tensor = field(repr=False)
    rows: Tensor = field(repr=False)
    references: Tensor | None = field(default=None, repr=False)
    note: str = ""


def labels_by_law(count: int, law: Tensor, generator: torch.Generator) -> Tensor:
    """Labels (count,) drawn independently by a law (m,)."""
    return torch.multinomial(law.double(), count, replacement=True, generator=generator)


def law_of(values: Tensor, count: int) -> Tensor:
    """The shares (m,) of the values 0 to count − 1 among these, float64."""
    return torch.bincount(values, minlength=count).double() / len(values)


def rows_without_replacement(held: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Some of the places `held` (n,), each at most once; with repetition where there are fewer than asked for."""
    if len(held) < count:
        return held[torch.randint(len(held), (count,), generator=generator)]
    return held[torch.randperm(len(held), generator=generator)[:count]]


def digits(places: Tensor, count: int, entries: int) -> Tensor:
    """Numbers 0 to count − 1 (n,) as digits (n, c) between 0 and 1, c at most `entries`: binary ones where they suffice.

    Args:
        places: the numbers.
        count: how many there are.
        entries: how many digits there is room for, at least 1.
    """
    base = 2
    while base**entries < count:
        base += 1
    width = 1
    while base**width < count:
        width += 1
    powers = base ** torch.arange(width, device=places.device)
    return (places[:, None] // powers % base).double() / (base - 1)


def draw_of_one_value(
    labels: Tensor,
    values: Tensor,
    names: Sequence[str],
    *,
    batch_size: int,
    replacement: bool,
    generator: torch.Generator,
    whose: str,
) -> Draw:
    """A batch for every label, all of whose rows have that value, uniformly among those that have it.

    Args:
        labels: (T,).
        values: the sensitive variable of the rows, (n,).
        names: of its values.
        batch_size: k.
        replacement: whether a row may stand twice in a batch; where a value has fewer than k rows it may anyway.
        generator: of the draw.
        whose: "private" or "public", for messages.

    Raises:
        InputError: for a label that no row has.
    """
    held = [(values == value).nonzero().flatten() for value in range(len(names))]
    rows = torch.empty(len(labels), batch_size, dtype=torch.int64)
    few = []
    for value, places in enumerate(held):
        asked = (labels == value).nonzero().flatten()
        if not len(asked):
            continue
        if not len(places):
            raise InputError(f"game: expected {whose} rows with {names[value]}, got none of {len(values)}")
        if replacement:
            rows[asked] = places[torch.randint(len(places), (len(asked), batch_size), generator=generator)]
            continue
        if len(places) < batch_size:
            few.append(f"{len(places)} with {names[value]}")
        for trial in asked.tolist():
            rows[trial] = rows_without_replacement(places, batch_size, generator)
    note = f"batches of {batch_size} hold rows twice: {whose} rows are {', '.join(few)}" if few else ""
    return Draw(labels=labels, rows=rows, note=note)

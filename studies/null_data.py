"""Examples for null controls: images, table rows and signals, and rows that are nearly alike."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor

from gradleak.core import Batch, Domain, DomainKind
from gradleak.datasets import adult_census, scikit_digits


class Data(StrEnum):
    """Population that examples are drawn from."""

    DIGITS = "digits of 8 by 8 pixels"
    CENSUS = "census rows of 65 entries"
    ROWS = "table rows of 8 entries"
    SIGNALS = "signals of 24 samples"
    ALIKE = "rows of 8 entries that are nearly alike"

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Different examples, with labels from 0 to 9.

        Args:
            count: how many.
            generator: of the draw.
        """
        seed = int(torch.randint(2**31, (), generator=generator))
        if self is Data.DIGITS:
            return scikit_digits(count=count, seed=seed)
        if self is Data.CENSUS:
            rows = adult_census(count=count, seed=seed)
            return Batch(rows.inputs, rows.targets, rows.domain)
        make, domain = _MADE[self]
        labels = torch.randint(10, (count,), generator=generator)
        return Batch(make(count, generator), labels, domain)


def part(rows: Batch, first: int, last: int) -> Batch:
    """Some of the examples.

    Args:
        rows: all of them.
        first: place of the first one.
        last: place behind the last one.
    """
    return Batch(rows.inputs[first:last], rows.targets[first:last], rows.domain)


def unlike(rows: Batch, private: Batch) -> Batch:
    """The rows that are not copies of private ones, as an adversary may have them.

    Args:
        rows: of the same population.
        private: examples of the client.
    """
    same = (rows.inputs[:, None] == private.inputs[None]).flatten(start_dim=2).all(dim=2).any(dim=1)
    return Batch(rows.inputs[~same], rows.targets[~same], rows.domain)


def _rows(count: int, generator: torch.Generator) -> Tensor:
    """Rows of two numbers over the whole range, three that lie close together, and three answers of yes or no."""
    wide = torch.rand(count, 2, generator=generator)
    close = (0.4 + 0.12 * torch.randn(count, 3, generator=generator)).clamp(0.0, 1.0)
    answers = (torch.rand(count, 3, generator=generator) < torch.tensor([0.5, 0.3, 0.1])).float()
    return torch.cat([wide, close, answers], dim=1)


def _signals(count: int, generator: torch.Generator) -> Tensor:
    """Sums of two waves of different lengths, heights and phases."""
    time = torch.linspace(0.0, 1.0, 24)
    height, phase = torch.rand(2, count, 2, 1, generator=generator)
    length = 1.0 + 4.0 * torch.rand(count, 2, 1, generator=generator)
    waves: Tensor = 0.5 * height * torch.sin(2.0 * torch.pi * (length * time + phase))
    return waves.sum(dim=1, keepdim=True)


def _alike(count: int, generator: torch.Generator) -> Tensor:
    """Rows that differ by a twentieth of the declared range, around means of their own in every column."""
    means = torch.linspace(0.1, 0.9, 8)
    return (means + 0.05 * torch.randn(count, 8, generator=generator)).clamp(0.0, 1.0)


_TABLE = Domain(shape=(8,), kind=DomainKind.TABULAR)
_SIGNAL = Domain(shape=(1, 24), low=-1.0, high=1.0, kind=DomainKind.SIGNAL)
_MADE: dict[Data, tuple[Callable[[int, torch.Generator], Tensor], Domain]] = {
    Data.ROWS: (_rows, _TABLE),
    Data.SIGNALS: (_signals, _SIGNAL),
    Data.ALIKE: (_alike, _TABLE),
}

__all__ = ["Data", "part", "unlike"]

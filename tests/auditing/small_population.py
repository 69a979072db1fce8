"""A population that plan files of the tests name by import path."""

from __future__ import annotations

import torch

from gradleak.core import Batch
from gradleak.data import Population


def two_groups(
    *, rows: int = 600, gap: float = 4.0, holds_sensitive: bool | None = None, generator: torch.Generator
) -> Population:
    """Rows of two groups whose six features differ by `gap`; the target depends on other features."""
    sensitive = torch.arange(rows) % 2
    inputs = torch.randn(rows, 6, generator=generator)
    inputs[:, 0] += gap * sensitive
    targets = (inputs[:, 1] + 0.5 * torch.randn(rows, generator=generator) > 0).long()
    return Population(
        name="two groups",
        inputs=inputs,
        targets=targets,
        sensitive=sensitive,
        values=("a", "b"),
        holds_sensitive=holds_sensitive,
    )


def rows(*, count: int = 3, generator: torch.Generator) -> Batch:
    """Examples to release, which nobody attacks."""
    return Batch(torch.rand(count, 6, generator=generator), torch.arange(count) % 2)

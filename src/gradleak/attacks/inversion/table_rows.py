"""Unknowns that are rows of a table: a category by the weights of its values, a number within its range."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.inversion.variables import Space, Variables
from gradleak.core import Domain

_SMALLEST = 1e-6


@dataclass(frozen=True, kw_only=True)
class TableRows(Variables):
    """Rows of a table as any numbers z: a category is the softmax of its entries, a number the sigmoid in its range.

    Every guess is a row in range whose categories have weights that sum to 1. What the columns are is a public fact of the
    domain (`Domain.columns`); where it is not stated, every entry is a number. Values on the border of a range, and one
    value of a category alone, are reached in the limit only. z starts uniform in [−1, 1].

    **Source**: Vero et al. 2023 (softmax at temperature 1), and their code, which bounds numbers by a sigmoid.
    """

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Uniform numbers from −1 to 1, (s, b · d)."""
        shape = (starts, space.inputs)
        drawn = torch.rand(shape, generator=generator, dtype=space.dtype, device=generator.device)
        return (2 * drawn - 1).to(space.device)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """The rows, and the labels that were given."""
        assert labels is not None
        return self.inputs(space, flat, labels), labels

    def inputs(self, space: Space, flat: Tensor, labels: Tensor | None) -> Tensor:
        """The rows in model-input units."""
        rows = flat.reshape(space.batch_size, *space.domain.shape)
        parts = [
            part.sigmoid() if numbers else part.softmax(dim=-1) for numbers, part in _stretches(space.domain, rows)
        ]
        return space.domain.from_pixels(torch.cat(parts, dim=-1))

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """The logits of rows, 1e-6 away from their borders."""
        pixels = space.domain.to_pixels(inputs.to(space.device, space.dtype)).clamp(_SMALLEST, 1 - _SMALLEST)
        parts = [part.logit() if numbers else part.log() for numbers, part in _stretches(space.domain, pixels)]
        return torch.cat(parts, dim=-1).reshape(-1)

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """None: every z is a row in range."""
        infinite = torch.full((space.inputs,), torch.inf, dtype=space.dtype, device=space.device)
        return -infinite, infinite


def _stretches(domain: Domain, rows: Tensor) -> list[tuple[bool, Tensor]]:
    """Entries (b, ·) of rows (b, d), numbers side by side together, each category by itself; and whether they are numbers."""
    widths: list[tuple[bool, int]] = []
    for width in domain.columns or (1,) * domain.size:
        if width == 1 and widths and widths[-1][0]:
            widths[-1] = (True, widths[-1][1] + 1)
        else:
            widths.append((width == 1, width))
    parts = rows.split([width for _, width in widths], dim=-1)
    return [(numbers, part) for (numbers, _), part in zip(widths, parts, strict=True)]

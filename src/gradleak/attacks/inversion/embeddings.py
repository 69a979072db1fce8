"""Embeddings of words as the variables of a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.inversion.sentences import Sentences
from gradleak.attacks.inversion.variables import Space, Variables


@dataclass(frozen=True, kw_only=True)
class Embeddings(Variables):
    """The embeddings of the words that are not known, in units of the table: std · z + mean.

    Starts are N(0, 1), which is how the table's rows lie, so that a step of some length means the same for any scale of the
    weights. At the end each place claims the word of the table that it points at (`Sentences.words`).

    Attributes:
        from_table: whether only words whose rows of a shared table moved are claimed ("from-embedding" in breaching).
        box: whether the search stays in the range of the table's entries.
        scaled: whether z is in units of the table; else in those of the model, as published attacks have it.
    """

    from_table: bool = True
    box: bool = False
    scaled: bool = True

    @property
    def reads_tokens(self) -> bool:
        """True: sentences."""
        return True

    def initialize(self, space: Space, starts: int, generator: torch.Generator) -> Tensor:
        """Numbers from N(0, 1), (s, n)."""
        shape = (starts, self.size(space))
        return torch.randn(shape, generator=generator, dtype=space.dtype, device=generator.device).to(space.device)

    def decode(self, space: Space, flat: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Embeddings (b, T, d), and the labels that were given."""
        assert labels is not None
        return self.inputs(space, flat, labels), labels

    def inputs(self, space: Space, flat: Tensor, labels: Tensor | None) -> Tensor:
        """Embeddings (b, T, d)."""
        sentences = _of(space)
        rows = flat.reshape(len(sentences.open), space.domain.shape[-1])
        center, scale = self._units(space)
        return sentences.filled(rows * scale + center)

    def encode(self, space: Space, inputs: Tensor, targets: Tensor) -> Tensor:
        """The open places of embeddings (b, T, d), flat."""
        center, scale = self._units(space)
        rows = inputs.to(space.device, space.dtype).flatten(0, 1)[_of(space).open]
        return ((rows - center) / scale).reshape(-1)

    def bounds(self, space: Space) -> tuple[Tensor, Tensor]:
        """The range of the table's entries, or none."""
        sentences = _of(space)
        if not self.box:
            infinite = torch.full((self.size(space),), torch.inf, dtype=space.dtype, device=space.device)
            return -infinite, infinite
        center, scale = self._units(space)
        ends = [(bound.reshape(-1)[0] - center) / scale for bound in space.domain.bounds(center)]
        low, high = (end.repeat(len(sentences.open)) for end in ends)
        return low, high

    def size(self, space: Space) -> int:
        """The number of open places times d."""
        sentences = _of(space)
        return len(sentences.open) * sentences.table.shape[1]

    def _units(self, space: Space) -> tuple[Tensor, Tensor]:
        """Mean (d,) and std of the table's entries, or 0 and 1."""
        spread = _of(space).spread.to(space.device, space.dtype)
        center, scale = spread[:-1], spread[-1]
        return (center, scale) if self.scaled else (torch.zeros_like(center), torch.ones_like(scale))


def _of(space: Space) -> Sentences:
    assert space.sentences is not None
    return space.sentences

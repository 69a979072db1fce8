"""Features that an adversary model reads of a flat update: fewer numbers, found on shadow updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, final

import torch
from torch import Tensor

from gradleak.attacks.inference.layout import Layout
from gradleak.results import Citation, InputError, Settings

Chunks = Callable[[], Iterator[Tensor]]


class Reduction(ABC):
    """Features of flat updates; what was learned from shadow updates is fixed in it.

    Attributes:
        size: entries of a flat update, P.
        width: features of an update, f.
        notes: what the reader of a result should know, for instance that fewer components were found than asked for.
    """

    def __init__(self, *, size: int, width: int, notes: tuple[str, ...] = ()) -> None:
        """Sizes and notes."""
        self.size = size
        self.width = width
        self.notes = notes

    @final
    def __call__(self, rows: Tensor) -> Tensor:
        """Features (n, f) of flat updates (n, P), float32 on the CPU.

        Entries that are not finite stay so (classifiers refuse them by name), and every row is reduced by itself.

        Raises:
            InputError: for rows of another size.
        """
        if rows.dim() != 2 or rows.shape[1] != self.size or not rows.is_floating_point():
            raise InputError(
                f"{type(self).__name__}: expected flat updates (n, {self.size}) of floating point numbers, got "
                f"{tuple(rows.shape)} {rows.dtype}"
            )
        if rows.shape[0] == 0:
            return torch.zeros(0, self.width)
        return self._reduce(rows.detach()).to(device="cpu", dtype=torch.float32)

    @abstractmethod
    def _reduce(self, rows: Tensor) -> Tensor:
        """Features (n, f) of at least one row."""


class Features(Settings, ABC):
    """Numbers of a flat update that an adversary model is given. Subclasses are frozen keyword-only dataclasses.

    Attributes:
        needs_rows: whether `fit` looks at shadow updates; else it looks at the layout alone and calls `chunks` never.
        citations: where they come from.
    """

    needs_rows: ClassVar[bool] = False
    citations: ClassVar[tuple[Citation, ...]] = ()

    @abstractmethod
    def fit(self, chunks: Chunks, layout: Layout, generator: torch.Generator) -> Reduction:
        """The reduction of one round.

        Args:
            chunks: gives the shadow updates of the round anew at every call, as an iterator over (c, P) tensors; called
                at most once. Never private updates: what is fitted on them has seen what it is tested on.
            layout: where the tensors lie in an update.
            generator: the only source of randomness.

        Raises:
            InputError: for chunks that do not fit the layout, too few rows, or rows that are not finite.
        """

"""The update as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.inference.features import Chunks, Features, Reduction
from gradleak.attacks.inference.layout import Layout


@dataclass(frozen=True, kw_only=True)
class AllEntries(Features):
    """Every entry of the flat update, f = P.

    **Cost**: 4·n·P bytes for n updates, all held at once by the adversary model.
    """

    def fit(self, chunks: Chunks, layout: Layout, generator: torch.Generator) -> Reduction:
        """Nothing is learned."""
        return Unreduced(size=layout.size, width=layout.size)


class Unreduced(Reduction):
    """Every entry."""

    def _reduce(self, rows: Tensor) -> Tensor:
        return rows

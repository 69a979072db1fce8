"""A few statistics of every tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.inference.features import Chunks, Features, Reduction
from gradleak.attacks.inference.layout import Layout
from gradleak.results import Share

# Rows are sorted in blocks of at most so many bytes: the copy in float64 and the places take three times that.
BLOCK_BYTES = 2**26


@dataclass(frozen=True, kw_only=True)
class LayerSummaries(Features):
    """Mean, standard deviation (over s entries), minimum, maximum, norms, share of zeros and quantiles of every tensor.

    Tensor by tensor in the order of the layout, statistics in the order above; quantiles are interpolated linearly
    between order statistics. Which entry is large is lost: features are few and have names, and they read less than
    `MaxPooling` does of updates whose entries keep their signs.

    **Cost**: sorting the entries of every row.

    **Source**: none; the statistics that a table of layers shows.

    Attributes:
        quantiles: which, each in (0, 1).

    Raises:
        InputError: for a quantile out of range.
    """

    quantiles: tuple[Share, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)

    def fit(self, chunks: Chunks, layout: Layout, generator: torch.Generator) -> Reduction:
        """Nothing is learned; the layout says where tensors begin."""
        return _Summarized(layout=layout, quantiles=self.quantiles)


class _Summarized(Reduction):
    def __init__(self, *, layout: Layout, quantiles: tuple[float, ...]) -> None:
        self.layout, self.quantiles = layout, quantiles
        super().__init__(size=layout.size, width=(7 + len(quantiles)) * len(layout.sizes))

    def _reduce(self, rows: Tensor) -> Tensor:
        block = max(1, BLOCK_BYTES // (8 * self.size))
        return torch.cat([self._summaries(part) for part in rows.split(block)])

    def _summaries(self, rows: Tensor) -> Tensor:
        columns: list[Tensor] = []
        for _, place in self.layout.slices():
            # numpy sorts a row of 50,000 three times as fast as torch.
            values = torch.from_numpy(np.sort(rows[:, place].cpu().numpy(), axis=1)).double()
            last = values.shape[1] - 1
            columns += [
                values.mean(dim=1),
                values.std(dim=1, correction=0),
                values[:, 0],
                values[:, last],
                values.abs().sum(dim=1),
                values.square().sum(dim=1).sqrt(),
                (values == 0).double().mean(dim=1),
            ]
            for quantile in self.quantiles:
                low = int(quantile * last)
                high = min(low + 1, last)
                columns.append(torch.lerp(values[:, low], values[:, high], quantile * last - low))
        return torch.stack(columns, dim=1)

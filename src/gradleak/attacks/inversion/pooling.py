"""One claim of several starts: rows aligned one to one, pooled entry by entry, with what is certain of each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.core import Domain
from gradleak.results import Settings

SMALLEST_SPREAD = 1e-6
"""Standard deviations of a number over starts count as this at least, in units of its range."""


class PoolBy(StrEnum):
    """Middle of the starts, entry by entry."""

    MEDIAN = "median"
    MEAN = "mean"


class Pooled(NamedTuple):
    """Rows pooled of several starts.

    Attributes:
        pixels: (b, d), one value a category, scaled to [0, 1].
        entropies: by row and column; see `Pooling`.
    """

    pixels: Tensor
    entropies: list[list[float]]

    def facts(self) -> dict[str, Any]:
        """JSON-ready facts for `Reconstruction.details`."""
        return {"entropies": self.entropies}


@dataclass(frozen=True, kw_only=True)
class Pooling(Settings):
    """Rows of a table as the middle of what all starts found, in place of the start with the smallest matching loss.

    The rows of every start are put in the order of the best start's, one to one, so that the total distance is smallest
    (half of the L1 distance of the weights of a category, the difference of a number in its range); rows that the update
    tells apart, by their label or mini-batch, are never exchanged. Each entry is then the median or mean over the starts,
    and each category the value with the largest.

    The entropy of a cell is the attacker's own measure of certainty: of a category that of the pooled weights, over that
    of equal ones (0 to 1), of a number that of a normal law with the starts' standard deviation in units of its range,
    ½ + ½ log 2πσ² (−12.4 at least, for σ = 1e-6). Starts that agree on something wrong are certain, too.

    **Source**: Vero et al. 2023 and their code (pooled ensembling, entropy). Deviation: they align by the number of
    cells that differ, of numbers by more than 0.319 standard deviations of the private column, which is not known here.

    Attributes:
        by: median (of an even number the lower of the middle two, as published) or mean.
    """

    by: PoolBy | str = PoolBy.MEDIAN

    def __call__(self, domain: Domain, starts: Tensor, best: int, alike: Sequence[Sequence[int]]) -> Pooled:
        """Rows pooled of starts.

        Args:
            domain: of a row.
            starts: pixels (s, b, d) scaled to [0, 1].
            best: start whose order of rows is kept.
            alike: places of the batch that the update does not tell apart.
        """
        rows = torch.stack([_aligned(start, starts[best], domain, alike) for start in starts])
        middle = rows.median(dim=0).values if PoolBy(self.by) is PoolBy.MEDIAN else rows.mean(dim=0)
        return Pooled(domain.decided(middle), _entropies(rows, middle, domain))

    @staticmethod
    def note(domain: Domain) -> str:
        """Note where the columns are not known, "" where they are."""
        return "" if domain.columns else "the domain states no columns: every entry was searched as a number"


def _aligned(start: Tensor, reference: Tensor, domain: Domain, alike: Sequence[Sequence[int]]) -> Tensor:
    """The rows of a start (b, d) in the order of those of another one that they are nearest to, one to one."""
    order = list(range(len(start)))
    for places in alike:
        if len(places) > 1:
            costs = _distances(reference[list(places)], start[list(places)], domain)
            _, chosen = linear_sum_assignment(costs.cpu().double().numpy())
            for place, other in zip(places, chosen.tolist(), strict=True):
                order[place] = places[other]
    return start[order]


def _distances(left: Tensor, right: Tensor, domain: Domain) -> Tensor:
    """Sum over columns of their distance, of every row (m, d) from every other (m, d), (m, m)."""
    gaps = (left[:, None] - right[None]).abs()
    halves = [1.0 if width == 1 else 0.5 for width in _widths(domain) for _ in range(width)]
    return gaps @ torch.tensor(halves, dtype=gaps.dtype, device=gaps.device)


def _entropies(rows: Tensor, middle: Tensor, domain: Domain) -> list[list[float]]:
    """Entropies by row and column of aligned rows (s, b, d) and their middle (b, d)."""
    spread = rows.double().std(dim=0, correction=min(1, len(rows) - 1)).clamp(min=SMALLEST_SPREAD)
    columns = []
    for part, stds in zip(
        middle.double().split(_widths(domain), dim=-1), spread.split(_widths(domain), dim=-1), strict=True
    ):
        if part.shape[-1] == 1:
            columns.append(0.5 + 0.5 * (2 * math.pi * stds[:, 0].square()).log())
        else:
            shares = part / part.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(part.dtype).tiny)
            columns.append(torch.special.entr(shares).sum(dim=-1) / math.log(part.shape[-1]))
    found: list[list[float]] = torch.stack(columns, dim=1).tolist()
    return found


def _widths(domain: Domain) -> tuple[int, ...]:
    """The entries of each column; where none is stated one each."""
    return domain.columns or (1,) * domain.size

"""The largest of every few neighboring entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.inference.features import Chunks, Features, Reduction
from gradleak.attacks.inference.layout import Layout
from gradleak.results import LI_2024, Citation, Count


@dataclass(frozen=True, kw_only=True)
class MaxPooling(Features):
    """Maxima of signed entries over windows of the flat update: f_j = max(g_{jk}, …, g_{jk+k−1}), f = ⌈P/k⌉.

    Windows do not overlap, run on over the borders of tensors, and the last one may be shorter. It is the largest entry
    that is kept, not the largest in magnitude: a window of negative entries gives its least negative one, and one that
    holds a zero of a pruned update gives 0 unless something positive is in it. Noise of the same size in every entry
    lifts all maxima alike, and a window keeps one draw of it; `PrincipalComponents` averages over all entries and reads
    more through it.

    **Cost**: one pass over the rows.

    **Source**: Li et al. 2024, section 5.1.3 (kernel 3 for tables, 10 for other data; 1-dimensional, before the
    adversary's model). Signs, the ragged end (kept here, as with `ceil_mode=True` of torch, whose default drops it) and
    the order of tensors are not said there.

    Attributes:
        kernel: k, entries a window.

    Raises:
        InputError: for a kernel that is not a whole number of at least 1.

    Examples:
        >>> reduce = MaxPooling(kernel=3).fit(lambda: iter(()), Layout(sizes={"w": 4}), torch.Generator())
        >>> reduce(torch.tensor([[-2.0, -1.0, -3.0, 5.0]]))
        tensor([[-1.,  5.]])
    """

    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    kernel: Count = 3

    def fit(self, chunks: Chunks, layout: Layout, generator: torch.Generator) -> Reduction:
        """Nothing is learned; only the size of an update counts."""
        return _Pooled(size=layout.size, kernel=self.kernel)


class _Pooled(Reduction):
    def __init__(self, *, size: int, kernel: int) -> None:
        self.kernel = kernel
        super().__init__(size=size, width=-(-size // kernel))

    def _reduce(self, rows: Tensor) -> Tensor:
        return F.max_pool1d(rows[:, None], self.kernel, self.kernel, ceil_mode=True)[:, 0]

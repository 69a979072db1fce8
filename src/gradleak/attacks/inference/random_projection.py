"""A few random combinations of all entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inference.all_entries import Unreduced
from gradleak.attacks.inference.features import Chunks, Features, Reduction
from gradleak.attacks.inference.layout import Layout
from gradleak.results import LI_2006, Citation, Count


@dataclass(frozen=True, kw_only=True)
class RandomProjection(Features):
    """f = R g, R sparse and random: entries ±√(√P/f) with probability 1/(2√P) each, else 0.

    E‖R g‖² = ‖g‖²: distances between updates are kept up to a factor 1 ± about √(8 log n/f) for n of them (Johnson and
    Lindenstrauss). Unlike `PrincipalComponents` it needs no shadow update and no memory, and finds no structure. With
    f ≥ P every entry is kept as it is.

    **Cost**: √P·f products a row.

    **Source**: Li, Hastie and Church 2006 (density 1/√P), by scikit-learn's `SparseRandomProjection`.

    Attributes:
        width: f, features.

    Raises:
        InputError: for a width that is not a whole number of at least 1.
    """

    citations: ClassVar[tuple[Citation, ...]] = (LI_2006,)

    width: Count = 256

    def fit(self, chunks: Chunks, layout: Layout, generator: torch.Generator) -> Reduction:
        """The matrix is drawn; shadow updates are not looked at."""
        from sklearn.random_projection import SparseRandomProjection

        if self.width >= layout.size:
            note = f"an update has {layout.size} entries, fewer than the {self.width} projections: all are kept"
            return Unreduced(size=layout.size, width=layout.size, notes=(note,))
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        # Only the number of columns is read off what it is fitted on.
        drawn = SparseRandomProjection(n_components=self.width, random_state=seed).fit(
            torch.zeros(1, layout.size).numpy()
        )
        return _Projected(size=layout.size, matrix=drawn.components_)


class _Projected(Reduction):
    def __init__(self, *, size: int, matrix: Any) -> None:
        self.matrix = matrix
        super().__init__(size=size, width=matrix.shape[0])

    def _reduce(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(self.matrix @ rows.cpu().double().numpy().T).T

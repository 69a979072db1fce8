"""The directions in which shadow updates differ most."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inference.estimator import thread_pools
from gradleak.attacks.inference.features import Chunks, Features, Reduction
from gradleak.attacks.inference.layout import Layout
from gradleak.core import one_thread
from gradleak.core.turns import ONE_CALL
from gradleak.linalg import dense_spectrum
from gradleak.results import HALKO_2011, LI_2024, ROSS_2008, Citation, Count, InputError

# A singular value below this share of the largest is round-off of float32.
RESOLUTION = 1e-6
# Directions kept between blocks, and rows of a block, for each component that is asked for: the more, the weaker a
# direction may be that noise of one block does not drown.
KEPT = 10


@dataclass(frozen=True, kw_only=True)
class PrincipalComponents(Features):
    """Scores on the first principal components of the shadow updates: f = (g − mean) V, V (P, count), not rescaled.

    Mean and directions come from the shadow updates of the round alone. n of them span at most n − 1 directions: with
    fewer than `count` + 1, or where they differ in fewer directions, there are fewer components and a note says so;
    shadow updates that are all equal give one feature which is 0 for them. Independent noise of every entry falls
    into each of them with its own standard deviation, while what batches have in common adds up: it reads
    more through noise than `MaxPooling` does.

    **Cost**: about 15·n·P·`count` multiplications and 8·n·P bytes if 4·n·P bytes are within `max_bytes`; beyond it, about
    40·n·P·`count` multiplications, and 240·P·`count` bytes besides the `max_bytes`.

    **Source**: Li et al. 2024, section 6.4 and table 2 (number and solver are not said there; the 50 is ours). Within the
    budget randomized SVD by Halko et al. 2011, or an exact one for small sizes, by scikit-learn's `PCA`; beyond it the
    incremental PCA of Ross et al. 2008, an approximation: 10·`count` directions are kept between blocks of 10·`count` rows.

    Attributes:
        count: components, at most.
        max_bytes: of shadow updates in float32 that are held at once.

    Raises:
        InputError: for a number that is not a whole number of at least 1; at the fit, for fewer than two shadow updates, or
            some that are not finite.
    """

    needs_rows: ClassVar[bool] = True
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, HALKO_2011, ROSS_2008)

    count: Count = 50
    max_bytes: Count = 2**30

    def fit(self, chunks: Chunks, layout: Layout, generator: torch.Generator) -> Reduction:
        """Mean and directions of the shadow updates of a round.

        Raises:
            InputError: for fewer than two, other sizes than the layout, or updates that are not finite.
        """
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        stream, held, size = _finite(chunks(), layout), [], 0
        for chunk in stream:
            held.append(chunk)
            size += chunk.shape[0]
            if 4 * size * layout.size > self.max_bytes:
                break
        if size < 2:
            # A single update may be larger than the budget.
            rest = next(stream, None)
            if rest is None:
                raise InputError(f"PrincipalComponents: expected at least two shadow updates, got {size}")
            stream = chain((rest,), stream)
        notes: tuple[str, ...] = ()
        if 4 * size * layout.size <= self.max_bytes:
            mean, directions, values = _at_once(torch.cat(held), self.count, seed)
        else:
            mean, directions, values = _in_turn(
                _blocks(chain(_handed_over(held), stream), KEPT * self.count), KEPT * self.count
            )
            directions, values = directions[: self.count], values[: self.count]
            notes = (f"shadow updates of more than {self.max_bytes} bytes: components by incremental PCA, approximate",)
        kept = int((values > RESOLUTION * values[:1]).sum())
        if kept == 0:
            notes += ("shadow updates do not differ: no principal component",)
            directions = torch.zeros(1, layout.size)
        elif kept < self.count:
            notes += (
                f"{kept} principal components instead of {self.count}: shadow updates differ in no more directions",
            )
        return _Scores(mean=mean, directions=directions[: max(kept, 1)], notes=notes)


class _Scores(Reduction):
    def __init__(self, *, mean: Tensor, directions: Tensor, notes: tuple[str, ...]) -> None:
        self.mean, self.directions = mean, directions
        super().__init__(size=mean.numel(), width=directions.shape[0], notes=notes)

    def _reduce(self, rows: Tensor) -> Tensor:
        # The mean goes first: a product of what is common would cost the digits of what differs.
        return (rows.float() - self.mean.to(rows.device)) @ self.directions.to(rows.device).T


def _finite(chunks: Iterator[Tensor], layout: Layout) -> Iterator[Tensor]:
    for chunk in chunks:
        if chunk.dim() != 2 or chunk.shape[1] != layout.size:
            raise InputError(f"chunks: expected shadow updates (c, {layout.size}), got {tuple(chunk.shape)}")
        rows = chunk.detach().to(device="cpu", dtype=torch.float32)
        bad = int((~torch.isfinite(rows).all(dim=1)).sum())
        if bad:
            raise InputError(
                f"PrincipalComponents: expected finite shadow updates, got {bad} of a chunk of {rows.shape[0]} with NaN or "
                "infinity; has the training diverged?"
            )
        yield rows


def _handed_over(held: list[Tensor]) -> Iterator[Tensor]:
    while held:
        yield held.pop(0)


def _blocks(chunks: Iterator[Tensor], rows: int) -> Iterator[Tensor]:
    """The same rows in blocks of so many, whatever the chunks are; the last one may have fewer."""
    left: list[Tensor] = []
    size = 0
    for chunk in chunks:
        for piece in chunk.split(rows):
            left.append(piece)
            size += piece.shape[0]
            if size >= rows:
                joined = torch.cat(left)
                yield joined[:rows]
                left, size = [joined[rows:]], size - rows
    if size:
        yield torch.cat(left)


def _at_once(rows: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (P,), directions (k, P) and their singular values, of rows that are held together."""
    from sklearn.decomposition import PCA

    scale = float(rows.abs().max())
    if bool((rows == rows[0]).all()):
        return rows[0].clone(), torch.zeros(0, rows.shape[1]), torch.zeros(0)
    with ONE_CALL, thread_pools().limit(limits=1):
        solver = PCA(n_components=min(count, *rows.shape), random_state=seed, copy=False)
        # Squares of small entries would leave the range of float32.
        found = solver.fit(rows.div_(scale).numpy())
    mean = torch.from_numpy(found.mean_).double() * scale
    return mean.float(), torch.from_numpy(found.components_).float(), torch.from_numpy(found.singular_values_).float()


def _in_turn(blocks: Iterator[Tensor], held: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same of blocks that are seen one after another; so many directions are kept between them.

    The block, less its mean, is put below what is kept of the rows before it (directions times singular values), and a
    row for the distance of the two means; the left singular vectors of that are those of a small Gram matrix.
    """
    kept, mean, seen = torch.zeros(0), torch.zeros(0), 0
    with one_thread():
        for block in blocks:
            rows, size = block.double(), block.shape[0]
            center = rows.mean(dim=0)
            stacked = rows - center
            if seen:
                apart = (seen * size / (seen + size)) ** 0.5 * (mean - center)
                stacked = torch.cat([kept, stacked, apart[None]])
            mean = (seen * mean + size * center) / (seen + size) if seen else center
            seen += size
            vectors = dense_spectrum(stacked @ stacked.T).vectors.flip(1)[:, :held]
            kept = vectors.T @ stacked
    values = kept.norm(dim=1)
    return mean.float(), (kept / values.clamp_min(torch.finfo(values.dtype).tiny)[:, None]).float(), values.float()

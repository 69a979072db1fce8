"""Features of an update that a classifier sees: all entries, means of layers, pooled, projected, principal components."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.inference.estimator import thread_pools
from gradleak.core import one_thread
from gradleak.core.process import ONE_CALL
from gradleak.linalg import dense_spectrum
from gradleak.results import (
    HALKO_2011,
    LI_2006,
    LI_2024,
    ROSS_2008,
    Citation,
    Count,
    InputError,
    Settings,
    Share,
    check_count,
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The slice of the flat update that each tensor fills; tensors follow one another in the order of `sizes`.

    Attributes:
        sizes: number of entries by name, in the order of `objective.params`.

    Raises:
        InputError: for no tensor, or one without entries.

    Examples:
        >>> layout = Layout.of({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
        >>> layout.size, layout["bias"]
        (8, slice(6, 8, None))
    """

    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        """Check the sizes and freeze them."""
        if not self.sizes:
            raise InputError("Layout.sizes: expected at least one tensor, got none")
        for name, size in self.sizes.items():
            check_count(f"Layout.sizes[{name!r}]", size)
        object.__setattr__(self, "sizes", MappingProxyType(dict(self.sizes)))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """The layout of these tensors, for instance of `objective.params` or of the tensors of an update."""
        return cls(sizes={name: tensor.numel() for name, tensor in tensors.items()})

    @property
    def size(self) -> int:
        """The number of entries of a flat update, P."""
        return sum(self.sizes.values())

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Name and slice of every tensor, in order."""
        start = 0
        for name, size in self.sizes.items():
            yield name, slice(start, start + size)
            start += size

    def __getitem__(self, name: str) -> slice:
        return dict(self.slices())[name]

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One flat update (P,) from its tensors, each row-major, in the order of the layout.

        Raises:
            InputError: for other names or sizes than those of the layout.
        """
        if {name: tensor.numel() for name, tensor in tensors.items()} != dict(self.sizes):
            raise InputError(
                f"flatten: expected tensors {dict(self.sizes)} (name and entries), got "
                f"{ {name: tensor.numel() for name, tensor in tensors.items()} }"
            )
        return torch.cat([tensors[name].reshape(-1) for name in self.sizes])

    def __reduce__(self) -> tuple[object, ...]:
        return _layout, (dict(self.sizes),)


def _layout(sizes: dict[str, int]) -> Layout:
    return Layout(sizes=sizes)


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

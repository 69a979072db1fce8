"""Words and places from the rows of tables alone: which rows words move, in tied tables too, and which place a row is of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

# The words that were read stand out of a tied table by at least so much.
_LEAST_GAP = 10.0
# Squaring a matrix in float64 hides singular values below this share of the largest.
_SQUARED = 3e-8
_ROUNDS = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class OutsideHead:
    """Rows of a tied table that its head does not explain.

    Attributes:
        rows: indices of the words that were read, ascending; None where they do not stand out.
        rank: dimensions that the head's share spans: at most the number of tokens with a target.
        free: basis (d, d - rank) of what is free of the head; rows times it hold the words' share alone.
        gap: smallest residual of a word that was read over the largest of the others; infinite where the others have none.
    """

    rows: Tensor | None
    rank: int
    free: Tensor
    gap: float


def rows_outside_head(gradient: Tensor, *, std: float = 0.0, false_alarms: float = 0.01) -> OutsideHead:
    """The words that were read, from the gradient of a table that is the weight of the head too.

    Row v is Σ_t (p_tv - 1[v is the target t]) h_t + Σ over the places of v of ∂L/∂x, h_t the final states: every row
    moves, but the rows of words that were not read lie in the span of the h_t, of rank n < d at most. The span is that of
    the smaller half of rows, without those that a direction of it is of alone; its rank is counted above the noise, which
    is that of the numbers' format, or the stated one. A word counts where its part outside of the span is beyond the
    largest gap (without noise), or beyond what noise reaches (with it).

    Assumptions: fewer tokens with a target than dimensions, at least four times as many words as dimensions, and most of
    them not read. Where the span is not seen whole (targets that ordinary rows hardly hold, half precision), a word that is
    only predicted stands out too: it is a word of the batch.

    Args:
        gradient: of the table (V, d), in the format in which it came.
        std: of Gaussian noise on each entry.
        false_alarms: probability of naming a word that was not read, over the table, under noise.

    Cost: a few products of the table with itself, V d² each.
    """
    eps, tiny = _rounding(gradient.dtype)
    table = gradient.double()
    width = table.shape[1]
    sizes = table.norm(dim=1)
    # Each row in units of its own error, so that one floor is right for all.
    errors = (width * (std**2 + tiny**2) + (eps * sizes).square()).sqrt()
    scaled = table / errors[:, None]
    # Without noise each row tells of the span whatever its size, and words that were read are mostly among the larger; under
    # noise the larger rows are needed.
    kept = sizes.argsort()[: len(table) // 2] if std == 0.0 else torch.arange(len(table))
    kept = kept[sizes[kept] > 0]
    if len(table) < 4 * width or len(kept) < 2 * width:
        return OutsideHead(rows=None, rank=width, free=table.new_zeros(width, 0), gap=1.0)
    while True:
        values, vectors = torch.linalg.eigh(scaled[kept].T @ scaled[kept])
        values = values.clamp_min(0.0).sqrt()
        floor = 1.05 * (math.sqrt(len(kept) / width) + 1.0) if std > 0.0 else math.sqrt(len(kept))
        floor = max(floor, _SQUARED * float(values[-1]))
        spans = values > floor
        basis = vectors[:, spans]
        # A row of leverage near one has a direction to itself: it would hide its own part in the span.
        alone = (scaled[kept] @ basis / values[spans]).square().sum(dim=1) > 0.5
        if not bool(alone.any()) or int((~alone).sum()) < 2 * width:
            break
        kept = kept[~alone]
    rank = int(spans.sum())
    free = vectors[:, ~spans]
    if rank >= width:
        return OutsideHead(rows=None, rank=rank, free=free, gap=1.0)
    outside = (table @ free).norm(dim=1)
    if std > 0.0:
        each = 1.0 - (1.0 - false_alarms) ** (1.0 / len(table))
        least = std * math.sqrt(float(scipy.stats.chi2.isf(each, width - rank)))
        rows = (outside > least).nonzero()[:, 0]
        return OutsideHead(rows=rows if len(rows) else None, rank=rank, free=free, gap=1.0)
    relative = outside / sizes.clamp_min(torch.finfo(torch.float64).tiny)
    ordered = relative.sort(descending=True).values[: width + 1].clamp_min(torch.finfo(torch.float64).eps)
    gaps = ordered[:-1] / ordered[1:]
    wide = (gaps >= _LEAST_GAP).nonzero()[:, 0]
    if not len(wide):
        return OutsideHead(rows=None, rank=rank, free=free, gap=float(gaps.max()))
    # The lowest wide gap: words that are targets too stand above others, but less than those that are read alone.
    count = int(wide[-1]) + 1
    return OutsideHead(
        rows=relative.topk(count).indices.sort().values, rank=rank, free=free, gap=float(gaps[count - 1])
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Places:
    """Words in order.

    Attributes:
        words: index into the given word rows of each place, (T,).
        misfit: root mean square, over words, of ‖sum of the rows of its places - its row‖ / ‖its row‖; 0 for a fit.
        margins: by place, how much the sum of squared misfits grows if it takes its next best word, or changes words with
            another place, (T,).
        scale: factor between rows of words and of places (1 but for models that scale the embedding).
    """

    words: Tensor
    misfit: float
    margins: Tensor
    scale: float


def place_words(words: Tensor, places: Tensor) -> Places:
    """The word of each place of one sentence, from the rows of the words and of the places in the gradient.

    Both tables get the gradient of their sum, so that the row of a word is the sum of the rows of its places. Where the
    rows of the places are independent, this linear system names every place (least squares, then the largest share); where
    noise or signs spoil it, the word nearest in its own size does. From both starts single places move and pairs swap while
    the relative misfit falls, and the better end counts.

    Assumptions: one sentence; learned places that are added to the words; nothing else reads the table of words.

    Args:
        words: rows (n, d) of the words that were read.
        places: rows (T, d) of the places, in order.

    Cost: T n d for each round, up to 12 rounds; no forward pass.
    """
    left, right = words.double(), places.double()
    total, base = left.sum(dim=0), right.sum(dim=0)
    scale = float((total @ base) / (base @ base).clamp_min(torch.finfo(torch.float64).tiny))
    # Only models that multiply the looked-up rows have another scale than 1; noise must not move it.
    if not (float((total - scale * base).norm()) < 1e-3 * float(total.norm()) and scale > 0.0):
        scale = 1.0
    right = scale * right
    sizes = left.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    shares = torch.linalg.lstsq(right.T, left.T, driver="gelsd").solution
    distance = torch.cdist(right, left) / torch.maximum(sizes[None], right.norm(dim=1)[:, None])
    near = distance.argmin(dim=1)
    cosine = (right @ left.T) / sizes
    far = distance.min(dim=1).values > 0.5
    near = torch.where(far, cosine.argmax(dim=1), near)
    ends = [_Assignment(left / sizes[:, None], right, sizes, start) for start in (shares.argmax(dim=1), near)]
    for end in ends:
        end.improve()
    best = min(ends, key=lambda end: float(end.errors.sum()))
    return Places(
        words=best.of,
        misfit=math.sqrt(max(float(best.errors.mean()), 0.0)),
        margins=best.margins(),
        scale=scale,
    )


class _Assignment:
    """Words of places, with the squared relative misfit of each word."""

    def __init__(self, words: Tensor, places: Tensor, sizes: Tensor, of: Tensor) -> None:
        self.words, self.places, self.sizes, self.of = words, places, sizes, of.clone()
        # Misfit of a word: what the rows of its places leave of its own, in its size.
        self.rest = words - torch.zeros_like(words).index_add_(0, self.of, places) / sizes[:, None]

    @property
    def errors(self) -> Tensor:
        return self.rest.square().sum(dim=1)

    def _costs(self, place: int) -> Tensor:
        """Growth of the sum of squares if this place takes each word, (n,); 0 for its own."""
        row = self.places[place] / self.sizes[:, None]
        own = int(self.of[place])
        freed = (self.rest[own] + row[own]).square().sum() - self.rest[own].square().sum()
        taken = (self.rest - row).square().sum(dim=1) - self.errors
        costs = freed + taken
        costs[own] = 0.0
        return costs

    def _move(self, place: int, word: int) -> None:
        own = int(self.of[place])
        self.rest[own] += self.places[place] / self.sizes[own]
        self.rest[word] -= self.places[place] / self.sizes[word]
        self.of[place] = word

    def improve(self) -> None:
        """Move places and swap pairs of them while the misfit falls."""
        count = len(self.places)
        for _ in range(_ROUNDS):
            before = self.of.clone()
            for place in range(count):
                costs = self._costs(place)
                word = int(costs.argmin())
                if float(costs[word]) < -1e-12:
                    self._move(place, word)
            for place in range(count):
                self._swap(place)
            if torch.equal(before, self.of):
                return

    def _exchanges(self, place: int) -> Tensor:
        """Growth of the sum of squares if this place's word changes places with that of each, (T,); 0 for the same word."""
        own, others = int(self.of[place]), self.of
        step = self.places - self.places[place]
        mine = (self.rest[own] - step / self.sizes[own]).square().sum(dim=1) - self.rest[own].square().sum()
        theirs = (self.rest[others] + step / self.sizes[others, None]).square().sum(dim=1) - self.errors[others]
        return torch.where(others == own, 0.0, mine + theirs)

    def _swap(self, place: int) -> None:
        """The best exchange of this place's word with that of another, if it helps."""
        gain = self._exchanges(place)
        own, other = int(self.of[place]), int(gain.argmin())
        if float(gain[other]) < -1e-12:
            word = int(self.of[other])
            self._move(place, word)
            self._move(other, own)

    def margins(self) -> Tensor:
        """The smallest growth of the misfit by which each place would take another word, by itself or in exchange, (T,)."""
        found = []
        for place, own in enumerate(self.of.tolist()):
            costs, exchanges = self._costs(place), self._exchanges(place)
            costs[own] = math.inf
            found.append(torch.minimum(costs.min(), torch.where(self.of == own, math.inf, exchanges).min()))
        return torch.stack(found)


def _rounding(dtype: torch.dtype) -> tuple[float, float]:
    """Relative error of a number in this format, and the smallest step of very small ones."""
    facts = torch.finfo(dtype)
    return facts.eps, facts.smallest_normal * facts.eps

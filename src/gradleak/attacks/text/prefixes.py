"""Sentences behind a decoder: prefixes that grow while what the layers read stays in the span of their gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.text.readers import Reach, Reader, Span, Taps, span_of

_CHUNK = 4096
# Of a clear gap between the dimensions of tokens and what rounding leaves.
_CLEAR = 1e-3
_MOST_PREFIXES = 4096
_MOST_TRIALS = 400_000
_MOST_COMBINATIONS = 20_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """Layers whose gradients are shared, with the row space of each.

    Attributes:
        own: layers that read single tokens, before any attention.
        mixed: layers of the first block that read what attention mixed, and those of the next attention.
    """

    own: tuple[tuple[Reader, Span], ...]
    mixed: tuple[tuple[Reader, Span], ...]

    @property
    def rank(self) -> int:
        """Largest number of dimensions of a layer that reads single tokens: at most the number of tokens."""
        return max((span.rank for _, span in self.own if not span.full), default=0)

    @property
    def telling(self) -> tuple[tuple[Reader, Span], ...]:
        """Those behind attention that have room for more: a span of fewer dimensions than one of single tokens lost some.

        The attention of a last block does, of which a head reads one place. Where all have lost some (noise), all are taken.
        """
        open_spans = tuple(pair for pair in self.mixed if not pair[1].full)
        return tuple(pair for pair in open_spans if pair[1].rank >= self.rank) or open_spans

    @property
    def _widest(self) -> Span | None:
        return max((span for _, span in self.telling), key=lambda span: span.basis.shape[0], default=None)

    @property
    def tokens(self) -> int | None:
        """Number of tokens of the batch as the widest layer counts them; None where none has room for more."""
        return None if self._widest is None else self._widest.rank

    @property
    def clear(self) -> bool:
        """True if no token can hide below the widest layer's last dimension, nor a false one pass within its tolerance."""
        return self._widest is not None and self._widest.slack < _CLEAR


def spans_of(
    readers: Sequence[Reader], gradients: Mapping[str, Tensor], *, eps: float, std: Mapping[str, float] | None = None
) -> Spans:
    """The spans of the layers up to the second attention.

    Args:
        readers: of `find_readers`.
        gradients: by name of the parameter.
        eps: relative rounding error of their numbers.
        std: of Gaussian noise on each, by name; None for none.
    """
    own: list[tuple[Reader, Span]] = []
    mixed: list[tuple[Reader, Span]] = []
    # Adapters of low rank have a narrow layer behind each of these.
    wide = max((reader.width for reader in readers if reader.reach is Reach.OWN), default=0)
    count = 0
    for reader in readers:
        count += reader.reach is not Reach.OWN and reader.width >= wide
        gradient = reader.gradient(gradients)
        if gradient is None:
            continue
        noise = max((std or {}).get(name, 0.0) for name in reader.weights)
        if reader.reach is Reach.OWN:
            own.append((reader, span_of(gradient, eps=eps, std=noise)))
        elif count <= 4:
            mixed.append((reader, span_of(gradient, eps=eps, std=noise)))
    return Spans(own=_seeing_all(own, wide), mixed=_seeing_all(mixed, wide))


def _seeing_all(pairs: Sequence[tuple[Reader, Span]], wide: int) -> tuple[tuple[Reader, Span], ...]:
    """The pairs without adapters whose gradients lose tokens that others have: keys do a dimension a sentence."""
    most = max((span.rank for reader, span in pairs if reader.width < wide and not span.full), default=0)
    return tuple((reader, span) for reader, span in pairs if reader.width >= wide or span.rank >= most)


def fitting(pairs: Sequence[tuple[Reader, Span]], inputs: Sequence[Tensor]) -> Tensor:
    """Mask (n,) of the inputs (n, width) that lie in the span of every layer, by its own tolerance."""
    fits = [span.residuals(value) < span.tolerance for (_, span), value in zip(pairs, inputs, strict=True)]
    return torch.stack(fits).all(dim=0)


def candidate_words(taps: Taps, spans: Spans, words: Tensor, length: int) -> list[Tensor]:
    """The words that may stand at each place: those whose first input lies in the span, (n_p,) for p = 0 to length - 1.

    Inputs of words and places that are joined through repeated words span each other, so that false ones are among them
    exactly, and no tolerance tells them apart.

    Args:
        taps: the model.
        spans: of its gradients.
        words: ids to try.
        length: number of places.

    Cost: the embedding of every word at every place.
    """
    pairs = [pair for pair in spans.own if not pair[1].full]
    layers = [reader.layer for reader, _ in pairs]
    # Words fill sentences of full length; turning them by one place at a time brings every word to every place.
    rows = -(-len(words) // length)
    filled = torch.cat([words, words[:1].expand(rows * length - len(words))]).reshape(rows, length)
    kept: list[list[Tensor]] = [[] for _ in range(length)]
    for turn in range(length):
        ids = filled.roll(turn, dims=1)
        for chunk in ids.split(max(1, _CHUNK // length)):
            values = taps.inputs(chunk, layers)
            fits = fitting(pairs, [value.flatten(0, 1) for value in values]).reshape(chunk.shape)
            for place in range(length):
                kept[place].append(chunk[fits[:, place], place])
    return [torch.cat(parts).unique() for parts in kept]


def grow_prefixes(taps: Taps, spans: Spans, candidates: Sequence[Tensor]) -> list[list[int]]:
    """Sentences from prefixes: each candidate of the next place is tried after each prefix, and kept where it fits.

    A decoder's inputs at a place depend on the prefix alone, so that wrong words are dropped one by one. The second matrix of
    the feed-forward net reads four times as many numbers as a token has, and its input bends with the token, so that the exact
    coincidences of single tokens do not reach it.

    Args:
        taps: the model.
        spans: of its gradients.
        candidates: of `candidate_words`.

    Returns:
        Ids of each sentence; none where there are too many prefixes to follow.

    Cost: prefixes times candidates for each place, each one pass through the first layers.
    """
    pairs = spans.telling
    layers = [reader.layer for reader, _ in pairs]

    def fits_last(prefixes: Tensor) -> Tensor:
        kept = []
        for chunk in prefixes.split(max(1, 4 * _CHUNK // prefixes.shape[1])):
            values = taps.inputs(chunk, layers)
            kept.append(fitting(pairs, [value[:, -1] for value in values]))
        return torch.cat(kept)

    if not pairs or not len(candidates[0]):
        return []
    ended: list[list[int]] = []
    prefixes = candidates[0][:, None]
    prefixes = prefixes[fits_last(prefixes)]
    for words in candidates[1:]:
        if not len(prefixes):
            break
        if len(prefixes) > _MOST_PREFIXES or len(prefixes) * len(words) > _MOST_TRIALS:
            return []
        if not len(words):
            break
        longer = torch.cat([prefixes.repeat_interleave(len(words), 0), words.repeat(len(prefixes))[:, None]], dim=1)
        fits = fits_last(longer)
        goes_on = fits.reshape(len(prefixes), len(words)).any(dim=1)
        ended += prefixes[~goes_on].tolist()
        prefixes = longer[fits]
    ended += prefixes.tolist()
    return ended


def whole_sentences(taps: Taps, spans: Spans, candidates: Sequence[Tensor], ends: Collection[int]) -> list[list[int]]:
    """Sentences out of every combination of candidates, where what further layers read of all their tokens fits.

    Behind an encoder no token tells without its whole sentence. This is what is left where the feed-forward net of the first
    block is not shared, as with adapters of the attention alone; it ends where common words make combinations too many.

    Args:
        taps: the model.
        spans: of its gradients.
        candidates: of `candidate_words`.
        ends: ids that end a sentence and stand nowhere else; none if empty.

    Returns:
        Ids of each sentence; nothing where there are too many combinations.

    Cost: combinations times tokens, each one pass through the first layers.
    """
    pairs = spans.telling
    if not pairs:
        return []
    layers = [reader.layer for reader, _ in pairs]
    found: list[list[int]] = []
    prefixes = candidates[0][:, None]
    trials = 0
    for place in range(len(candidates)):
        closed = torch.tensor([bool(ends) and int(word) in ends for word in prefixes[:, -1]], dtype=torch.bool)
        # Where nothing marks an end, a sentence goes on while words fit.
        more = place + 1 < len(candidates) and len(candidates[place + 1]) > 0
        whole = prefixes[closed] if ends else prefixes[:0] if more else prefixes
        trials += len(whole)
        if trials > _MOST_COMBINATIONS:
            return []
        for chunk in whole.split(max(1, _CHUNK // (place + 1))) if len(whole) else ():
            values = taps.inputs(chunk, layers)
            fits = fitting(pairs, [value.flatten(0, 1) for value in values]).reshape(chunk.shape).all(dim=1)
            found += chunk[fits].tolist()
        prefixes = prefixes[~closed]
        if not more or not len(prefixes):
            break
        words = candidates[place + 1]
        if len(prefixes) * len(words) > _MOST_COMBINATIONS:
            return []
        prefixes = torch.cat([prefixes.repeat_interleave(len(words), 0), words.repeat(len(prefixes))[:, None]], dim=1)
    return found


def distinct_prefixes(sentences: Sequence[Sequence[int]]) -> int:
    """Number of different prefixes: so many different inputs a decoder reads."""
    return len({tuple(sentence[: end + 1]) for sentence in sentences for end in range(len(sentence))})

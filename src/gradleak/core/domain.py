"""Domain of an example: kind, shape, valid range, normalization."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from gradleak.core.vocabulary import Vocabulary
from gradleak.results import InputError, UnsupportedError, is_number, member

# Ranges that images usually have, the narrowest first.
_USUAL_RANGES = ((0.0, 1.0), (-0.5, 0.5), (-1.0, 1.0), (0.0, 255.0))
# What float32 normalization leaves at the ends of a range, as a share of its width.
_ROUNDING = 1e-4
# A range of which more is used is taken for right.
WIDE = 0.5 + _ROUNDING
_CONSTANT = 1e-7
# Beyond it the columns of a table are in units of their own; standardized ones lie within.
_OWN_UNITS = 10.0
# Columns of a table that reach so little of a shared range, seen in so many rows.
_HARDLY = 0.05
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_ENOUGH_ROWS = 8


class DomainKind(StrEnum):
    """Kind of data that the numbers of an example stand for."""

    IMAGE = "image"
    TABULAR = "tabular"
    SIGNAL = "signal"
    TOKENS = "tokens"


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The public facts on one example: shape, range in data units, normalization, kind.

    A model sees `(pixel - mean) / std`. Errors are measured in pixels scaled to [0, 1], that is in
    `(pixel - low) / (high - low)`.

    Attributes:
        shape: shape of one example, for images (channels, height, width).
        low: smallest valid data value, before normalization: one number for all, or one a channel (the first axis of
            `shape`; for a row of a table its features).
        high: largest valid data value, as `low`. An age and a one-hot column need ranges of their own: in units of a
            range that is far too wide for a column its errors are as good as none.
        mean: per channel (first axis of `shape`), or one number for all, or None for 0.
        std: as `mean`, positive, or None for 1.
        kind: image, tabular row, one-dimensional signal, or tokens: ids of a vocabulary, which have no range and no pixels.
        vocabulary: of tokens, whose ids a sentence holds; None for everything else.
        columns: of a row of a table how many entries each column makes, in order: 1 for a number, m for one of m values, of
            which one entry is at the top of its range and the others are at the bottom. None where that is not stated.
        guessed: whether `Domain.guess` made it from values of data, also where a copy of it is changed
            (`dataclasses.replace`); a domain that is written out is stated.

    Raises:
        InputError: for an empty shape, low >= high, or a range, mean or std of the wrong length or sign; for tokens without
            a vocabulary; for columns that do not make up the row.

    Examples:
        >>> rows = Domain(shape=(3,), low=(16.0, 0.0, 0.0), high=(90.0, 1.0, 1.0), kind="tabular")
        >>> rows.to_pixels(torch.tensor([[53.0, 0.0, 1.0]])).tolist()
        [[0.5, 0.0, 1.0]]
    """

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = field(default=0.0, metadata={"checksum": True})
    high: float | tuple[float, ...] = field(default=1.0, metadata={"checksum": True})
    mean: tuple[float, ...] | None = field(default=None, metadata={"checksum": True})
    std: tuple[float, ...] | None = field(default=None, metadata={"checksum": True})
    kind: DomainKind = DomainKind.IMAGE
    vocabulary: Vocabulary | None = field(default=None, metadata={"described": "given"})
    columns: tuple[int, ...] | None = field(default=None, metadata={"described": "given"})
    guessed: bool = field(default=False, repr=False, compare=False, metadata={"described": False})

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in (
            "shape",
            "low",
            "high",
            "mean",
            "std",
            "columns",
        ):  # lists, as plan files have them, cannot be hashed
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "kind", member("Domain.kind", DomainKind, self.kind))
        if not self.shape or any(size < 1 for size in self.shape):
            raise InputError(f"Domain.shape: expected positive sizes, for instance (1, 28, 28); got {self.shape}")
        if (self.vocabulary is None) is (self.kind is DomainKind.TOKENS):
            raise InputError(
                f"Domain: expected a vocabulary for tokens and for nothing else, got kind {self.kind.value!r} and vocabulary "
                f"{self.vocabulary!r}; use Domain.tokens(vocabulary, length)"
            )
        self._check_range()
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and not isinstance(values, tuple | list):
                raise InputError(f"Domain.{name}: expected a tuple of numbers, got {values!r}; write ({values!r},)")
            if values is not None and len(values) not in (1, self.shape[0]):
                raise InputError(
                    f"Domain.{name}: expected 1 or {self.shape[0]} numbers (one a channel of shape {self.shape}), "
                    f"got {len(values)}"
                )
            if values is not None and not all(math.isfinite(value) for value in values):
                raise InputError(f"Domain.{name}: expected finite numbers, got {values}")
        if self.std is not None and any(value <= 0 for value in self.std):
            raise InputError(f"Domain.std: expected positive numbers, got {self.std}")
        if self.columns is not None and (
            self.kind is not DomainKind.TABULAR
            or any(width < 1 for width in self.columns)
            or self.shape != (sum(self.columns),)
        ):
            raise InputError(
                f"Domain.columns: expected the entries of each column of a table, which sum to {self.shape[0]}, got "
                f"{self.columns} for {self.kind.value} of shape {self.shape}"
            )

    @classmethod
    def image(
        cls,
        *,
        channels: int,
        height: int,
        width: int,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> Domain:
        """The domain of images with pixels in [0, 1], normalized by `mean` and `std` for the model."""
        return cls(shape=(channels, height, width), mean=mean, std=std)

    @classmethod
    def tokens(cls, vocabulary: Vocabulary, length: int) -> Domain:
        """The domain of sentences: `length` ids of a vocabulary each, -1 where there is no token.

        Args:
            vocabulary: of the model, public.
            length: places of a sentence, T, padded ones among them.
        """
        if not isinstance(vocabulary, Vocabulary):
            raise InputError(
                f"Domain.tokens: expected a Vocabulary, got {type(vocabulary).__name__}; write Vocabulary(size=...)"
            )
        return cls(shape=(length,), kind=DomainKind.TOKENS, vocabulary=vocabulary)

    @classmethod
    def guess(cls, inputs: Tensor) -> Domain:
        """The domain of a batch whose domain was not stated, from shape and values.

        Three axes an example make an image, one a table row, two a signal. The range is [0, 1], [-1, 1] or, for images
        with values above 100, [0, 255] where all values lie in it, else the smallest and largest value seen, rounded
        outwards to one significant digit so that no value of the data is in it. Rows of a table with values beyond 10
        have columns in units of their own: each gets [0, 1], [-1, 1], or ends that are powers of ten, so that little
        more than the size of its values is in them. The guess still uses the defender's data, so it is marked as
        `guessed`: the knowledge of an adversary who is told it, and reports, say so.

        Raises:
            InputError: if there are NaN or infinite values, or no values.

        Examples:
            >>> guessed = Domain.guess(torch.tensor([[-0.42, 2.83]]))
            >>> guessed.low, guessed.high
            (-0.5, 3.0)
            >>> guessed = Domain.guess(torch.tensor([[38.0, 1.0, -0.5], [61.0, 0.0, 0.2]]))
            >>> guessed.low, guessed.high
            ((0.0, 0.0, -1.0), (100.0, 1.0, 1.0))
        """
        if not inputs.is_floating_point():
            raise InputError(
                f"Domain.guess: expected floating point numbers, got {inputs.dtype}; for ids of tokens state "
                "Domain.tokens(Vocabulary(size=...), length), for images scale them with inputs.float() / 255"
            )
        if inputs.numel() == 0 or not bool(torch.isfinite(inputs).all()):
            raise InputError("Domain.guess: expected finite values, got none or some that are NaN or infinite")
        kinds = {3: DomainKind.IMAGE, 2: DomainKind.SIGNAL}
        values, kind = inputs.detach(), kinds.get(inputs.dim() - 1, DomainKind.TABULAR)
        low, high = float(values.min()), float(values.max())
        ends: list[tuple[float, float]] = []
        if inputs.dim() == 2 and max(-low, high) > _OWN_UNITS:
            columns = zip(values.amin(0).tolist(), values.amax(0).tolist(), strict=True)
            ends = [
                _usual(*column) or (0.0 - _power_of_ten(-column[0]), _power_of_ten(column[1])) for column in columns
            ]
        elif inputs.dim() == 4 and low >= 0.0 and 100.0 < high <= 255.0:
            ends = [(0.0, 255.0)]
        else:
            ends = [_usual(low, high) or (min(-_round_up(-low), 0.0), max(_round_up(high), 0.0))]
        lows, highs = zip(*ends, strict=True)
        return cls(shape=tuple(inputs.shape[1:]), low=lows, high=highs, kind=kind, guessed=True)

    @property
    def size(self) -> int:
        """The number of entries of one example, d."""
        return int(torch.Size(self.shape).numel())

    def check(self, inputs: Tensor) -> None:
        """Refuse inputs whose example shape is not this domain's.

        Raises:
            InputError: on another shape.
        """
        if self.vocabulary is not None and inputs.dtype not in _INTEGERS:
            raise InputError(
                f"inputs: expected whole numbers, the ids of tokens, from the domain, got {inputs.dtype}; for embeddings state "
                "a domain of signals and use objective.at_embeddings()"
            )
        if tuple(inputs.shape[1:]) != self.shape:
            raise InputError(
                f"inputs: expected (b, {', '.join(map(str, self.shape))}) from the domain, got {tuple(inputs.shape)}"
            )

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Model inputs as pixels scaled to [0, 1] (values outside the valid range stay outside)."""
        self.refuse_tokens()
        mean, std = self._per_channel(self.mean, 0.0, inputs), self._per_channel(self.std, 1.0, inputs)
        low, width = self._range(inputs)
        return (inputs * std + mean - low) / width

    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels scaled to [0, 1] as model inputs; the inverse of `to_pixels`."""
        self.refuse_tokens()
        mean, std = self._per_channel(self.mean, 0.0, pixels), self._per_channel(self.std, 1.0, pixels)
        low, width = self._range(pixels)
        return (pixels * width + low - mean) / std

    def bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest valid model input, each of shape `shape`, with dtype and device of `like`."""
        zeros = torch.zeros(self.shape, dtype=like.dtype, device=like.device)
        return self.from_pixels(zeros), self.from_pixels(zeros + 1.0)

    def pixel_scale(self, like: Tensor) -> Tensor:
        """Factor by which each model-input entry changes its pixel in [0, 1]: std / (high - low), shape `shape`."""
        self.refuse_tokens()
        ones = torch.ones(self.shape, dtype=like.dtype, device=like.device)
        return ones * self._per_channel(self.std, 1.0, ones) / self._range(ones)[1]

    def decided(self, pixels: Tensor) -> Tensor:
        """Rows of a table with one value a category: its largest entry 1 and the others 0; numbers stay as they are.

        Args:
            pixels: (..., *shape), scaled to [0, 1].

        Examples:
            >>> domain = Domain(shape=(3,), kind="tabular", columns=(1, 2))
            >>> domain.decided(torch.tensor([0.3, 0.4, 0.6])).tolist()
            [0.30000001192092896, 0.0, 1.0]
        """
        if self.columns is None:
            return pixels
        parts = pixels.split(self.columns, dim=-1)
        return torch.cat([part if part.shape[-1] == 1 else _largest(part) for part in parts], dim=-1)

    def refuse_tokens(self) -> None:
        """Refuse what needs numbers where examples are ids of tokens.

        Raises:
            UnsupportedError: for tokens.
        """
        if self.vocabulary is not None:
            raise UnsupportedError(
                "the examples are ids of tokens, which have no range, no pixels and no derivative; take what works on "
                "tokens (gradleak.attacks.text), or the embeddings: objective.at_embeddings(ids) with "
                "objective.embed(ids) as inputs"
            )

    def middle(self, like: Tensor, count: int = 1) -> Tensor:
        """A batch of `count` examples that holds nothing of the data: the middle of the range, or the ordinary tokens in turn.

        Args:
            like: whose dtype and device numbers get; ids are int64.
            count: how many.
        """
        if self.vocabulary is None:
            low, high = self.bounds(like)
            return ((low + high) / 2).expand(count, *self.shape).clone()
        ordinary = [one for one in range(self.vocabulary.size) if self.vocabulary.ordinary(one)] or [0]
        ids = torch.tensor(ordinary, device=like.device)
        return ids[torch.arange(count * self.size, device=like.device) % len(ids)].reshape(count, *self.shape)

    @property
    def range_text(self) -> str:
        """The range in words: "0 to 1", or "ranges by feature, from 0 to 90" where they differ; of tokens their number."""
        if self.vocabulary is not None:
            return f"{self.size} places, {self.vocabulary.size:,} ids"
        if isinstance(self.low, float | int) and isinstance(self.high, float | int):
            return f"{self.low:g} to {self.high:g}"
        low, high = (ends if isinstance(ends, tuple) else (ends,) for ends in (self.low, self.high))
        noun = "feature" if self.kind is DomainKind.TABULAR else "channel"
        return f"ranges by {noun}, from {min(low):g} to {max(high):g}"

    def range_note(self, inputs: Iterable[Tensor]) -> str:
        """A sentence where data use little of the range of this domain, and what that does if the range is wrong.

        Errors are stated in units of the range: one that is too wide by a factor makes them smaller by it. For images a
        usual range that is narrower and holds all values is named; dark ones, or of low contrast, may still be what they
        are. For rows of a table, of which at least eight are known, columns that reach a twentieth of the range that
        they share with others are counted.

        Args:
            inputs: all known examples of the domain, (b, *shape) each, in model-input units.

        Returns:
            "" for signals and ranges by channel or feature, where more than half of the range of images is used, where
            all values are equal or some are not finite. Values of the data are not in it: where no usual range fits,
            the ends are rounded.
        """
        if isinstance(self.low, tuple) or isinstance(self.high, tuple):
            return ""
        if self.kind is DomainKind.TABULAR and len(self.shape) == 1:
            return self._shared_range_note(list(inputs))
        if self.kind is not DomainKind.IMAGE:
            return ""
        low, high, width = math.inf, -math.inf, self.high - self.low
        for part in inputs:
            if part.numel() == 0:
                continue
            pixels = self.to_pixels(part.detach().cpu().to(torch.float64))
            low, high = min(low, float(pixels.min())), max(high, float(pixels.max()))
            if not high - low <= WIDE:  # the usual case, after the first one; NaN too
                return ""
        if not high - low > _CONSTANT:
            return ""
        low, high = self.low + low * width, self.low + high * width
        slack = min(_ROUNDING * width, 0.01)
        usual = [
            (start, end)
            for start, end in _USUAL_RANGES
            if end - start <= WIDE * width and start - slack <= low and high <= end + slack
        ]
        if not usual and high - low <= _ROUNDING * width:
            return ""
        start, end = usual[0] if usual else _outwards(low, high)
        factor = width / (end - start)
        share = "half" if factor == 2.0 else f"1/{factor:.0f}" if factor > 99.5 else f"{1 / factor:.0%}"
        times = f"{factor:,.0f}" if factor > 99.5 else f"{factor:.2g}"
        other = f"{start:g} to {end:g}" if usual else "no more than that"
        return (
            f"all values lie in {start:.6g} to {end:.6g}, {share} of the {'guessed' if self.guessed else 'declared'} range "
            f"{self.low:g} to {self.high:g}; if images range over {other}, pixel errors are {times} times as large as "
            f"stated and the PSNR is {20 * math.log10(factor):.0f} dB lower"
        )

    def _shared_range_note(self, rows: Sequence[Tensor]) -> str:
        """A sentence on columns of a table that reach hardly anywhere in the range that all columns share."""
        known = torch.cat([part.detach().to(torch.float64).cpu() for part in rows]) if rows else torch.zeros(0, 1)
        if len(known) < _ENOUGH_ROWS:
            return ""
        assert not isinstance(self.low, tuple)
        assert not isinstance(self.high, tuple)
        zero = -self.low / (self.high - self.low)
        reach = (self.to_pixels(known) - zero).abs().amax(dim=0)
        narrow = int(((reach > 0) & (reach <= _HARDLY)).sum())
        if not narrow or not float(reach.max()) > 5 * _HARDLY:
            return ""
        return (
            f"{narrow} of {len(reach)} columns reach no further than {_HARDLY:.0%} of the "
            f"{'guessed' if self.guessed else 'declared'} range {self.low:g} to {self.high:g} that all columns share, so "
            "that errors there count for next to nothing and a blind guess looks good; state low and high by column"
        )

    def _check_range(self) -> None:
        """Refuse ends of a wrong length or order; ends that are the same for all channels become one number."""
        for name in ("low", "high"):
            ends = getattr(self, name)
            each = ends if isinstance(ends, tuple) else (ends,)
            if not all(is_number(end) and math.isfinite(end) for end in each):
                raise InputError(f"Domain: expected finite low < high, got low={self.low}, high={self.high}")
            if len(each) not in (1, self.shape[0]):
                raise InputError(
                    f"Domain.{name}: expected 1 or {self.shape[0]} numbers (one a channel or feature of shape "
                    f"{self.shape}), got {len(each)}"
                )
            if isinstance(ends, tuple) and len(set(ends)) == 1:
                object.__setattr__(self, name, float(ends[0]))
        for place in range(self.shape[0]):
            low, high = (end[place] if isinstance(end, tuple) else end for end in (self.low, self.high))
            if not low < high:
                which = "" if low == self.low and high == self.high else f" in channel or feature {place}"
                raise InputError(f"Domain: expected finite low < high, got low={low}, high={high}{which}")

    def _range(self, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """The low end and the width of the range; numbers where it is one for all, else shaped to go with examples."""
        if not isinstance(self.low, tuple) and not isinstance(self.high, tuple):
            return self.low, self.high - self.low
        low, high = (
            self._per_channel(ends if isinstance(ends, tuple) else (ends,), 0.0, like) for ends in (self.low, self.high)
        )
        return low, high - low

    def _per_channel(self, values: tuple[float, ...] | None, default: float, like: Tensor) -> Tensor:
        numbers = torch.tensor(values or (default,), dtype=like.dtype, device=like.device)
        return numbers.reshape(-1, *[1] * (len(self.shape) - 1))


def _largest(entries: Tensor) -> Tensor:
    """1 in the place of the largest of the last axis, 0 elsewhere."""
    return torch.zeros_like(entries).scatter(-1, entries.argmax(dim=-1, keepdim=True), 1.0)


def _usual(low: float, high: float) -> tuple[float, float] | None:
    """A usual range around 0 that holds these values."""
    return ((0.0 if low >= 0.0 else -1.0), 1.0) if low >= -1.0 and high <= 1.0 else None


def _power_of_ten(value: float) -> float:
    """The smallest power of ten, from 1 on, that is not below `value`; 0 for what is not positive."""
    return 10.0 ** max(math.ceil(math.log10(value)), 0) if value > 0.0 else 0.0


def _outwards(low: float, high: float) -> tuple[float, float]:
    """Ends of an interval, rounded outwards to two digits of its width, so that no value of the data is in them."""
    digits = 1 - math.floor(math.log10(high - low))
    step = 10.0**-digits
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)


def _round_up(value: float) -> float:
    """The smallest number of one significant digit that is not below `value`."""
    if value == 0.0:
        return 0.0
    unit = math.floor(math.log10(abs(value)))
    digits = math.ceil(value / 10.0**unit) if unit >= 0 else math.ceil(value * 10.0**-unit)
    return float(f"{digits}e{unit}")

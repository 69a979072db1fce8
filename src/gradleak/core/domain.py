"""Domain of an example: kind, shape, valid range, normalization."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from gradleak.results import InputError, member

# Ranges that images usually have, the narrowest first.
_USUAL_RANGES = ((0.0, 1.0), (-0.5, 0.5), (-1.0, 1.0), (0.0, 255.0))
# What float32 normalization leaves at the ends of a range, as a share of its width.
_ROUNDING = 1e-4
_CONSTANT = 1e-7


class DomainKind(StrEnum):
    """Kind of data that the numbers of an example stand for."""

    IMAGE = "image"
    TABULAR = "tabular"
    SIGNAL = "signal"


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The public facts on one example: shape, range in data units, normalization, kind.

    A model sees `(pixel - mean) / std`. Errors are measured in pixels scaled to [0, 1], that is in
    `(pixel - low) / (high - low)`.

    Attributes:
        shape: shape of one example, for images (channels, height, width).
        low: smallest valid data value, before normalization.
        high: largest valid data value, before normalization.
        mean: per channel (first axis of `shape`), or one number for all, or None for 0.
        std: as `mean`, positive, or None for 1.
        kind: image, tabular row or one-dimensional signal.
        guessed: whether `Domain.guess` made it from values of data, also where a copy of it is changed
            (`dataclasses.replace`); a domain that is written out is stated.

    Raises:
        InputError: for an empty shape, low >= high, or a mean or std of the wrong length or sign.
    """

    shape: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    kind: DomainKind = DomainKind.IMAGE
    guessed: bool = field(default=False, repr=False, compare=False, metadata={"described": False})

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("shape", "mean", "std"):  # lists, as plan files have them, would make the domain unhashable
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "kind", member("Domain.kind", DomainKind, self.kind))
        if not self.shape or any(size < 1 for size in self.shape):
            raise InputError(f"Domain.shape: expected positive sizes, for instance (1, 28, 28); got {self.shape}")
        if not (self.low < self.high and math.isfinite(self.low) and math.isfinite(self.high)):
            raise InputError(f"Domain: expected finite low < high, got low={self.low}, high={self.high}")
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
    def guess(cls, inputs: Tensor) -> Domain:
        """The domain of a batch whose domain was not stated, from shape and values.

        Three axes an example make an image, one a table row, two a signal. The range is [0, 1], [-1, 1] or, for images
        with values above 100, [0, 255] where all values lie in it, else the smallest and largest value seen, rounded
        outwards to one significant digit so that no value of the data is in it. The guess still uses the defender's
        data, so it is marked as `guessed`: the knowledge of an adversary who is told it, and reports, say so.

        Raises:
            InputError: if there are NaN or infinite values, or no values.

        Examples:
            >>> guessed = Domain.guess(torch.tensor([[-0.42, 2.83]]))
            >>> guessed.low, guessed.high
            (-0.5, 3.0)
        """
        if inputs.numel() == 0 or not bool(torch.isfinite(inputs).all()):
            raise InputError("Domain.guess: expected finite values, got none or some that are NaN or infinite")
        kinds = {3: DomainKind.IMAGE, 2: DomainKind.SIGNAL}
        low, high = float(inputs.detach().min()), float(inputs.detach().max())
        if low >= -1.0 and high <= 1.0:
            low, high = (0.0 if low >= 0.0 else -1.0), 1.0
        elif inputs.dim() == 4 and low >= 0.0 and 100.0 < high <= 255.0:
            low, high = 0.0, 255.0
        else:
            low, high = min(-_round_up(-low), 0.0), max(_round_up(high), 0.0)
        kind = kinds.get(inputs.dim() - 1, DomainKind.TABULAR)
        return cls(shape=tuple(inputs.shape[1:]), low=low, high=high, kind=kind, guessed=True)

    @property
    def size(self) -> int:
        """The number of entries of one example, d."""
        return int(torch.Size(self.shape).numel())

    def check(self, inputs: Tensor) -> None:
        """Refuse inputs whose example shape is not this domain's.

        Raises:
            InputError: on another shape.
        """
        if tuple(inputs.shape[1:]) != self.shape:
            raise InputError(
                f"inputs: expected (b, {', '.join(map(str, self.shape))}) from the domain, got {tuple(inputs.shape)}"
            )

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Model inputs as pixels scaled to [0, 1] (values outside the valid range stay outside)."""
        mean, std = self._per_channel(self.mean, 0.0, inputs), self._per_channel(self.std, 1.0, inputs)
        return (inputs * std + mean - self.low) / (self.high - self.low)

    def from_pixels(self, pixels: Tensor) -> Tensor:
        """Pixels scaled to [0, 1] as model inputs; the inverse of `to_pixels`."""
        mean, std = self._per_channel(self.mean, 0.0, pixels), self._per_channel(self.std, 1.0, pixels)
        return (pixels * (self.high - self.low) + self.low - mean) / std

    def bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest valid model input, each of shape `shape`, with dtype and device of `like`."""
        zeros = torch.zeros(self.shape, dtype=like.dtype, device=like.device)
        return self.from_pixels(zeros), self.from_pixels(zeros + 1.0)

    def pixel_scale(self, like: Tensor) -> Tensor:
        """Factor by which each model-input entry changes its pixel in [0, 1]: std / (high - low), shape `shape`."""
        ones = torch.ones(self.shape, dtype=like.dtype, device=like.device)
        return ones * self._per_channel(self.std, 1.0, ones) / (self.high - self.low)

    def range_note(self, inputs: Iterable[Tensor]) -> str:
        """A sentence where images use at most half of the range of this domain, and what that does if the range is wrong.

        Errors are stated in units of the range: one that is too wide by a factor makes them smaller by it. A usual range
        that is narrower and holds all values is named; images that are dark or of low contrast may still be what they are.

        Args:
            inputs: all known examples of the domain, (b, *shape) each, in model-input units.

        Returns:
            "" for data that are no images, where more than half of the range is used, where all values are equal or
            some are not finite. Values of the data are not in it: where no usual range fits, the ends are rounded.
        """
        if self.kind is not DomainKind.IMAGE:
            return ""
        low, high, width = math.inf, -math.inf, self.high - self.low
        for part in inputs:
            if part.numel() == 0:
                continue
            pixels = self.to_pixels(part.detach().to(torch.float64))
            low, high = min(low, float(pixels.min())), max(high, float(pixels.max()))
            if not high - low <= 0.5 + _ROUNDING:  # the usual case, after the first one; NaN too
                return ""
        if not high - low > _CONSTANT:
            return ""
        low, high = self.low + low * width, self.low + high * width
        slack = min(_ROUNDING * width, 0.01)
        usual = [
            (start, end)
            for start, end in _USUAL_RANGES
            if end - start <= (0.5 + _ROUNDING) * width and start - slack <= low and high <= end + slack
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

    def _per_channel(self, values: tuple[float, ...] | None, default: float, like: Tensor) -> Tensor:
        numbers = torch.tensor(values or (default,), dtype=like.dtype, device=like.device)
        return numbers.reshape(-1, *[1] * (len(self.shape) - 1))


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

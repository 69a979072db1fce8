"""Losses of an update to its number format: entries flushed to zero, almost flushed, or overflown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
# Significant bits of the half formats, the hidden one included; fewer come out by chance of small tensors alone.
_BITS = {torch.bfloat16: 8, torch.float16: 11}
_ENOUGH = 64
# By how many bits the range of a tensor must exceed its digits: numbers on an even grid have none to spare.
_GRID = 2


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Effect of the number format on the entries of one tensor; shares of all entries.

    Attributes:
        dtype: the format in which it came, for instance "float16".
        entries: how many numbers.
        zero: share that is exactly zero: flushed, or zero to begin with (dead units, unused embeddings).
        subnormal: share below the smallest normal number of the format, where digits are lost.
        non_finite: share that is NaN or infinite.
    """

    dtype: str
    entries: int
    zero: float
    subnormal: float
    non_finite: float

    @property
    def flushed(self) -> float:
        """The share that was flushed at most: zero or subnormal."""
        return self.zero + self.subnormal


def precision_of(tensor: Tensor) -> Precision:
    """The shares of a tensor in its own dtype.

    Examples:
        >>> found = precision_of(torch.tensor([0.0, 1e-7, 1.0, float("inf")], dtype=torch.float16))
        >>> found.zero, found.subnormal, found.flushed, found.non_finite
        (0.25, 0.25, 0.5, 0.25)
    """
    entries = tensor.numel()
    # A comparison with the smallest normal number would be lost where the hardware flushes subnormals.
    size = tensor.detach().abs()
    smallest = torch.finfo(tensor.dtype).tiny if tensor.is_floating_point() else 1
    zero, subnormal = size == 0, (size > 0) & (size < smallest)
    counts = [int(mask.sum()) for mask in (zero, subnormal, ~torch.isfinite(tensor))]
    zeros, subnormals, non_finite = (count / max(entries, 1) for count in counts)
    return Precision(
        dtype=str(tensor.dtype).removeprefix("torch."),
        entries=entries,
        zero=zeros,
        subnormal=subnormals,
        non_finite=non_finite,
    )


def whole_precision(parts: Mapping[str, Precision]) -> Precision:
    """The shares over all tensors together; the format is that of the first."""
    entries = sum(part.entries for part in parts.values())

    def share(values: Iterable[tuple[float, int]]) -> float:
        return sum(value * count for value, count in values) / max(entries, 1)

    return Precision(
        dtype=next(iter(parts.values())).dtype,
        entries=entries,
        zero=share((part.zero, part.entries) for part in parts.values()),
        subnormal=share((part.subnormal, part.entries) for part in parts.values()),
        non_finite=share((part.non_finite, part.entries) for part in parts.values()),
    )


def computed_in_half(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The half format that wide numbers were made in, or None.

    Numbers of float16 or bfloat16 keep their few significant bits when they are stored wider and when a loss scale that
    is a power of two is divided out: what was flushed before can be seen only so. Signs and rounded updates have few
    bits too, but lie on an even grid or take few values, which fit every format and are no evidence: a tensor counts
    only if its small numbers are finer than a grid through its large ones, and enough leading digits must differ.

    Args:
        tensors: of one update; tensors of half precision themselves count for nothing here.

    Examples:
        >>> scaled = torch.linspace(0.1, 1.0, 100).half().float() / 65536
        >>> computed_in_half([scaled]), computed_in_half([torch.linspace(0.1, 1.0, 100)])
        (torch.float16, None)
    """
    bits, count, different = 0, 0, torch.zeros(0)
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float64):
            continue
        flat = tensor.detach().reshape(-1)
        mantissas, exponents = torch.frexp(flat[torch.isfinite(flat) & (flat != 0)].abs())
        digits = _significant_bits(mantissas)
        if not digits.numel():
            continue
        most = int(digits.max())
        if most > _BITS[torch.float16]:
            return None
        if int(exponents.max()) - int((exponents - digits).min()) <= most + _GRID:
            continue
        bits, count = max(bits, most), count + digits.numel()
        different = torch.cat([different, mantissas.cpu().float()]).unique()
    if count < _ENOUGH or different.numel() < _ENOUGH // 2:
        return None
    return next((dtype for dtype, most in _BITS.items() if bits <= most), None)


def _significant_bits(mantissas: Tensor) -> Tensor:
    """Number of significant bits of mantissas in [0.5, 1); one more than those of float16 stands for all above."""
    digits = torch.full_like(mantissas, _BITS[torch.float16] + 1, dtype=torch.int64)
    for bits in range(_BITS[torch.float16], 0, -1):
        scaled = mantissas * 2.0**bits
        digits[scaled == scaled.round()] = bits
    return digits

"""Convolutions as products with matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to this many times the arithmetic of its windows a convolution is taken as a product with one matrix: torch has no fast
# kernel in float64 and goes through a block example by example.
_WASTE = 8


@dataclass(frozen=True, kw_only=True)
class Window:
    """Geometry of a convolution in two dimensions without groups.

    Attributes:
        channels: C.
        sides: (H, W) of the input.
        kernel: (h, w).
        stride: by side.
        padding: zeros on either side.
        dilation: by side.
    """

    channels: int
    sides: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def is_small(self) -> bool:
        """True if the matrix of the convolution is not much larger than its windows together."""
        return self.sides[0] * self.sides[1] <= _WASTE * self.kernel[0] * self.kernel[1]

    @property
    def outputs(self) -> tuple[int, int]:
        """(P, Q) of the output."""
        return self._outputs(0), self._outputs(1)

    def matrix(self, weight: Tensor) -> Tensor:
        """The convolution as a matrix (C·H·W, O·P·Q) that rows of inputs are multiplied by."""
        spread = weight.new_zeros(self.channels, *self.sides, len(weight), *self.outputs)
        by_offset = weight.permute(2, 3, 1, 0)
        for high, (h, p) in enumerate(self._meetings(0)):
            for wide, (w, q) in enumerate(self._meetings(1)):
                # Both sides by pairs (input, output): (pairs, pairs, C, O).
                spread[:, h[:, None], w, :, p[:, None], q] = by_offset[high, wide]
        return spread.reshape(self.channels * self.sides[0] * self.sides[1], -1)

    def patches(self, entered: Tensor) -> Tensor:
        """Windows of inputs (N, C, H, W) as rows (N·P·Q, C·h·w): Gᵀ = patchesᵀ e for the gradient of the weight."""
        rows = F.unfold(entered, self.kernel, self.dilation, self.padding, self.stride)
        return rows.transpose(1, 2).reshape(-1, rows.shape[1])

    def errors(self, left: Tensor) -> Tensor:
        """Output gradients (N, O, P, Q) at the places of inputs (N·H·W, O, h·w): their products with a make G."""
        spread = left.new_zeros(len(left), *self.sides, left.shape[1], *self.kernel)
        by_place = left.permute(2, 3, 0, 1)
        for high, (h, p) in enumerate(self._meetings(0)):
            for wide, (w, q) in enumerate(self._meetings(1)):
                spread[:, h[:, None], w, :, high, wide] = by_place[p[:, None], q].permute(2, 0, 1, 3)
        return spread.reshape(-1, left.shape[1], self.kernel[0] * self.kernel[1])

    def _meetings(self, side: int) -> list[tuple[Tensor, Tensor]]:
        """By offset of the kernel: which inputs it meets at which outputs."""
        starts = torch.arange(self._outputs(side)) * self.stride[side] - self.padding[side]
        met = []
        for offset in range(self.kernel[side]):
            places = starts + offset * self.dilation[side]
            inside = (places >= 0) & (places < self.sides[side])
            met.append((places[inside], inside.nonzero()[:, 0]))
        return met

    def _outputs(self, side: int) -> int:
        reach = self.dilation[side] * (self.kernel[side] - 1) + 1
        return (self.sides[side] + 2 * self.padding[side] - reach) // self.stride[side] + 1


def window_of(
    entered: Tensor, weight: Tensor, stride: object, padding: object, dilation: object, groups: int
) -> Window | None:
    """The geometry of a call of `conv2d`, or None for one with groups, of one image without a batch, or with padding by name."""
    pairs = [_pair(value) for value in (stride, padding, dilation)]
    if entered.dim() != 4 or groups != 1 or any(pair is None for pair in pairs):
        return None
    by, pad, apart = (pair for pair in pairs if pair is not None)
    return Window(
        channels=entered.shape[1],
        sides=(entered.shape[2], entered.shape[3]),
        kernel=(weight.shape[2], weight.shape[3]),
        stride=by,
        padding=pad,
        dilation=apart,
    )


def _pair(value: object) -> tuple[int, int] | None:
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 2:
        return int(value[0]), int(value[1])
    if isinstance(value, tuple | list) and len(value) == 1:
        return int(value[0]), int(value[0])
    return None

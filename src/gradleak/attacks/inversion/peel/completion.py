"""Pixels that linear equations leave open: from smoothness, the range, units that are not active, and the grid of 8 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.attacks.inversion.peel.lattice import Array, hardness, is_sure, whole
from gradleak.attacks.inversion.peel.systems import Equations, Solution

# Size of an edge below which it counts as flat, round by round, and steps of each round.
_BLUNT, _STEPS = (3e-2, 1e-2, 3e-3), 8
# Weight of what breaks a range or a gate.
_BROKEN = 1e4
# Least variance of an edge in a direction of colors, beside the mean.
_COLORLESS = 1e-4
# Sides of windows in which pixels are taken for whole numbers together, their step, and the most pixels at once.
_SIDES, _STEP, _MOST = (5, 7), 2, 160
# Spread that is allowed for beside what edges show, windows that may fail, and freedom of a pixel that is open.
_WIDE, _FAILURES, _FREE = 1.5, 24, 1e-6
# Safety of the error of what is determined, and the least one, in levels.
_SAFE, _LEAST_ERROR = 4.0, 1e-8
# Chance of a second image on the grid, one in.
_LOTS = 1e6


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenImage:
    """All images that explain what is known of one: start + basis z.

    Attributes:
        start: pixels scaled to [0, 1], (n,).
        basis: what is open, orthonormal columns (n, k).
        shape: of the image (channels, height, width).
        inactive: rows x ≤ right sides; None where there are none.
    """

    start: Tensor
    basis: Tensor
    shape: tuple[int, ...]
    inactive: Equations | None

    @property
    def dimensions(self) -> int:
        """Number of directions that are open, k."""
        return self.basis.shape[1]

    def at(self, code: Tensor) -> Tensor:
        """The image (n,) of coordinates (k,)."""
        return self.start + self.basis @ code

    def middle(self) -> Tensor:
        """The image nearest to gray."""
        return self.at(self.basis.T @ (0.5 - self.start))

    def smooth(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """The image of least total variation in the range and on the right side of inactive units.

        Total variation is Σ ‖W e‖ over edges e between neighbors, of all channels together, where W makes their covariance
        white: channels of a photograph rise and fall together, so that an edge that is not gray counts for more. The covariance
        is that of the image itself, step by step. Reweighted least squares; what breaks range and gates is weighed in.

        Returns:
            Its coordinates (k,), and the precision of these (k, k): that of edges of the sizes that are left.

        **Cost**: 24 solutions of k equations, and as many products of k × k edges.
        """
        rows = None if self.inactive is None else self.inactive.matrix @ self.basis
        left = None if self.inactive is None else self.inactive.right[:, 0] - self.inactive.matrix @ self.start
        wide = _edges(self.basis.reshape(*self.shape, -1))
        precision = torch.eye(self.dimensions).to(self.basis)
        for blunt in _BLUNT:
            for _ in range(_STEPS):
                pixels = self.at(code)
                edges = _edges(pixels.reshape(self.shape))
                white = _whitening(edges, blunt)
                gram, slope, total, count = torch.zeros_like(precision), torch.zeros_like(code), 0.0, 0
                for edge, moved in zip(edges, wide, strict=True):
                    turned = torch.einsum("cd,dhw->chw", white, edge)
                    size = (turned.square().sum(dim=0) + blunt**2).sqrt()
                    matrix = torch.einsum("cd,dhwk->chwk", white, moved) / size.sqrt()[None, ..., None]
                    matrix = matrix.reshape(-1, self.dimensions)
                    gram = gram + matrix.T @ matrix
                    slope = slope + matrix.T @ (turned / size.sqrt()).reshape(-1)
                    total, count = total + float(size.sum()), count + turned.numel()
                gram.diagonal().add_(1e-9 * float(gram.diagonal().mean()))
                # Of edges that are spread like exp(−λ ‖W e‖).
                precision = gram * (count / total)
                broken, by = (
                    [self.basis[pixels < 0], self.basis[pixels > 1]],
                    [pixels[pixels < 0], pixels[pixels > 1] - 1],
                )
                if rows is not None and left is not None:
                    over = rows @ code - left
                    broken, by = [*broken, rows[over > 0]], [*by, over[over > 0]]
                pushed = torch.cat(broken)
                step = torch.linalg.solve(
                    gram + _BROKEN * pushed.T @ pushed, slope + _BROKEN * pushed.T @ torch.cat(by)
                )
                code = code - step
                if float(step.norm()) < 1e-5 * math.sqrt(self.dimensions):
                    break
        return code, precision

    def fixed(self, places: Tensor, values: Tensor, code: Tensor, precision: Tensor) -> _State | None:
        """The images with these values at these places, with likeliest coordinates and precision; None where there are none."""
        left, sizes, right = torch.linalg.svd(self.basis[places])
        rank = int((sizes > _FREE).sum())
        asked = values - self.start[places]
        part = left[:, :rank].T @ asked
        if float((left[:, :rank] @ part - asked).norm()) > 1e-4 * math.sqrt(len(places)):
            return None
        move, rest = right[:rank].T @ (part / sizes[:rank]), right[rank:].T
        image = replace(self, start=self.at(move), basis=(self.basis @ rest).contiguous())
        precision, slope = rest.T @ precision @ rest, rest.T @ (precision @ (code - move))
        if image.dimensions:
            slope = torch.linalg.solve(precision, slope)
        return image, slope, precision


_State = tuple[OpenImage, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Levels on which pixels lie, and what is known of them there.

    Attributes:
        steps: of the grid between 0 and 1.
        error: standard deviation of what is determined, in [0, 1].
        explains: whether an image satisfies all equations.
    """

    steps: int
    error: float
    explains: Callable[[Tensor], bool]


def on_grid(
    image: OpenImage, code: Tensor, precision: Tensor, grid: Grid, tell: Callable[[int], None]
) -> Tensor | None:
    """The image on the grid that explains all equations; None where none is found.

    Window by window: its pixels are whole numbers of levels, and equations of the units that look at it hold for these with an
    error far below a level. Thereby few whole numbers are possible at all, and smoothness says where they are about (`whole`).
    What they are makes others sure. The window that is expected to be surest comes first.

    Args:
        image: what is known.
        code: coordinates of a completion (k,).
        precision: of these (k, k).
        grid: on which the image lies.
        tell: called with the number of open directions.

    **Cost**: a factorization of some dozen to hundred pixels for each window, and a reduced lattice for each that is taken.
    """
    windows, error = _Windows(image.shape), max(_SAFE * grid.error * grid.steps, _LEAST_ERROR)
    failures = 0
    while True:
        rounded = (image.at(code) * grid.steps).round() / grid.steps
        if grid.explains(rounded):
            return rounded
        if not image.dimensions or failures > _FAILURES:
            return None
        tell(image.dimensions)
        factor = _on_cpu(image.basis @ torch.linalg.inv(torch.linalg.cholesky(precision)).T * (_WIDE * grid.steps))
        chosen = windows.surest(factor, error)
        if chosen is None:
            return None
        found = whole(_on_cpu(image.at(code))[chosen] * grid.steps, _with_error(factor[chosen], error))
        able = found.sure and found.values.min() >= 0 and found.values.max() <= grid.steps
        places, values = (torch.from_numpy(part).to(code.device) for part in (chosen, found.values / grid.steps))
        fixed = image.fixed(places, values, code, precision) if able else None
        if fixed is None:
            failures += 1
            windows.leave_out()
        elif fixed[0].dimensions == image.dimensions:
            # No open direction moves these pixels by more than round-off, so that nothing was told: never the same again.
            windows.leave_out()
        else:
            image, code, precision = fixed


class _Windows:
    """Windows of an image, and how hard the pixels of each are expected to be."""

    def __init__(self, shape: Sequence[int]) -> None:
        channels, height, width = shape
        numbers = np.arange(channels * height * width).reshape(channels, height, width)
        self.windows = {
            (side, top, left): numbers[:, top : top + side, left : left + side].reshape(-1)
            for side in _SIDES
            for top in range(0, max(height - side, 0) + 1, _STEP)
            for left in range(0, max(width - side, 0) + 1, _STEP)
        }
        self.expected: dict[tuple[int, int, int], float] = {}
        self.last: tuple[int, int, int] | None = None

    def surest(self, factor: Array, error: float) -> NDArray[np.int64] | None:
        """Open pixels of the window that is expected to be easiest; None where none is worth a try."""
        free = np.square(factor).sum(axis=1) > error**2
        for key, pixels in list(self.windows.items()):
            if key in self.expected and (self.last is None or max(np.abs(np.subtract(key, self.last)[1:])) > 8):
                continue
            inside = pixels[free[pixels]]
            if not len(inside):
                del self.windows[key]
                self.expected.pop(key, None)
            elif len(inside) <= _MOST:
                self.expected[key] = hardness(_with_error(factor[inside], error))
        if not self.expected:
            return None
        self.last = min(self.expected, key=lambda key: self.expected[key])
        if not is_sure(self.expected[self.last]):
            return None
        pixels = self.windows[self.last]
        chosen: NDArray[np.int64] = pixels[free[pixels]]
        return chosen

    def leave_out(self) -> None:
        """Leave the window out that was given last."""
        assert self.last is not None
        del self.windows[self.last], self.expected[self.last]


def _with_error(factor: Array, error: float) -> Array:
    return np.concatenate([factor, error * np.eye(len(factor))], axis=1)


def _on_cpu(tensor: Tensor) -> Array:
    made: Array = tensor.detach().cpu().numpy()
    return made


def _whitening(edges: Sequence[Tensor], blunt: float) -> Tensor:
    """A matrix W (channels, channels) for which W e has channels of one size that are not correlated; det W is about 1."""
    flat = torch.cat([edge.reshape(edge.shape[0], -1) for edge in edges], dim=1)
    weight = 1 / (flat.square().sum(dim=0) + blunt**2)
    spread = (flat * weight) @ flat.T / weight.sum()
    spread = spread * len(spread) / spread.trace().clamp(min=1e-300)
    spread.diagonal().add_(_COLORLESS)
    factor: Tensor = torch.linalg.inv(torch.linalg.cholesky(spread))
    return factor


def alone_on_grid(solution: Solution, gram: Tensor, steps: int, fit: float) -> bool:
    """True if no second image on the grid is to be expected to satisfy the equations that one does.

    Two things are asked. Changing one pixel by a level, or two pixels by one each, must break the equations: a pixel that no
    active unit reads, or two that all units read alike, could hold anything. And of all images on the grid, as many as
    (steps + 1)ⁿ, less than one in a million lots may come by chance so near to what the determined directions say.

    Args:
        solution: of the equations.
        gram: MᵀM of the equations, (n, n).
        steps: of the grid between 0 and 1.
        fit: largest sum of squares, in variances, that counts as satisfied.
    """
    single = gram.diagonal()
    together = single[:, None] + single[None] - 2 * gram.abs()
    together.fill_diagonal_(math.inf)
    if float(torch.minimum(single, together.amin(dim=1)).min()) / steps**2 <= 4 * fit:
        return False
    # An ellipsoid, times a section of the cube, which is at most √2 a direction that is cut away (Ball 1989).
    radius = math.sqrt(4 * math.pi * math.e * fit / max(solution.rank, 1))
    chance = len(gram) * math.log(steps + 1) + solution.rank * math.log(radius) + solution.volume
    return chance < -math.log(_LOTS)


def _edges(image: Tensor) -> tuple[Tensor, Tensor]:
    return image[:, 1:] - image[:, :-1], image[:, :, 1:] - image[:, :, :-1]

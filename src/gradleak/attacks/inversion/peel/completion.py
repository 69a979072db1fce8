"""Pixels that linear equations leave open: from smoothness, the range, units that are not active, and the grid of 8 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.inversion.peel.systems import Equations, Solution

_EVEN = 3e-3
# Weight of what breaks a range or a gate, and the gradient below which an edge counts as flat, round by round.
_ROUNDS = ((10.0, 1e-2), (1e3, 1e-3), (1e5, 1e-4))
_AGAIN = ((1e4, 3e-4), (1e5, 1e-4))
_STEPS, _STEPS_AGAIN = 120, 40
# Levels are fixed where a pixel is so near to one, in steps; of these the surest, so many at once.
_NEAR, _AT_ONCE, _FREE, _INDEPENDENT = 0.2, 16, 0.05, 0.03
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

    def smooth(self, code: Tensor, rounds: Sequence[tuple[float, float]] = _ROUNDS, steps: int = _STEPS) -> Tensor:
        """Coordinates of the image of least total variation in the range and on the right side of inactive units.

        Total variation is taken over channels together. Constraints are weighed ever more, edges made ever sharper.
        """
        rows = None if self.inactive is None else self.inactive.matrix @ self.basis
        left = None if self.inactive is None else self.inactive.right[:, 0] - self.inactive.matrix @ self.start
        for weight, blunt in rounds:
            code = self._descend(code, rows, left, weight, blunt, steps)
        return code

    def _descend(
        self, code: Tensor, rows: Tensor | None, left: Tensor | None, weight: float, blunt: float, steps: int
    ) -> Tensor:
        code = code.detach().clone().requires_grad_()
        search = torch.optim.LBFGS(
            [code],
            max_iter=steps,
            history_size=20,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-10,
            tolerance_change=1e-13,
        )

        def closure() -> Tensor:
            search.zero_grad()
            pixels = self.at(code)
            broken = pixels.clamp(max=0).square().sum() + (pixels - 1).clamp(min=0).square().sum()
            if rows is not None and left is not None:
                broken = broken + (rows @ code - left).clamp(min=0).square().sum()
            down, across = _edges(pixels.reshape(self.shape))
            loss = sum((edge.square().sum(dim=0) + blunt**2).sqrt().sum() for edge in (down, across)) + weight * broken
            loss.backward()
            return loss

        with torch.enable_grad():
            search.step(closure)
        return code.detach()

    def spread(self, pixels: Tensor) -> Tensor:
        """Distance that each pixel may move at equal total variation, to second order, (n,)."""
        down, across = _edges(pixels.reshape(self.shape))
        wide = self.basis.reshape(*self.shape, -1)
        moved = []
        for edge, step in zip(
            (down, across), (wide[:, 1:] - wide[:, :-1], wide[:, :, 1:] - wide[:, :, :-1]), strict=True
        ):
            weight = (edge.square().sum(dim=0) + _EVEN**2) ** -0.25
            moved.append((step * weight[None, ..., None]).reshape(-1, self.dimensions))
        gram = moved[0].T @ moved[0] + moved[1].T @ moved[1]
        gram = gram + 1e-9 * gram.diagonal().mean() * torch.eye(self.dimensions).to(gram)
        factor = torch.linalg.cholesky(gram)
        turned: Tensor = torch.linalg.solve_triangular(factor, self.basis.T, upper=False)
        return turned.square().sum(dim=0).sqrt()

    def fixed(self, places: Tensor, values: Tensor, code: Tensor) -> tuple[OpenImage, Tensor]:
        """The images with these values at these places, and the coordinates that are left."""
        rows = self.basis[places]
        move = torch.linalg.lstsq(rows, (values - self.start[places])[:, None], driver="gelsd").solution[:, 0]
        turned, _ = torch.linalg.qr(rows.T, mode="complete")
        rest = turned[:, len(places) :]
        image = replace(self, start=self.at(move), basis=(self.basis @ rest).contiguous())
        return image, rest.T @ (code - move)


def on_grid(
    image: OpenImage, code: Tensor, steps: int, explains: Callable[[Tensor], bool], tell: Callable[[int], None]
) -> Tensor | None:
    """The image on the grid of `steps` + 1 levels that explains all equations; None where none is found.

    Level by level: pixels that lie near a level and may move least are set to it, and the others are completed anew. A wrong
    one shows at the end, since no image on the grid then fits.

    Args:
        image: what is known.
        code: coordinates of a completion.
        steps: of the grid between 0 and 1.
        explains: whether an image satisfies all equations.
        tell: called with the number of open directions.
    """
    set_already = torch.zeros(len(image.start), dtype=torch.bool, device=image.start.device)
    while True:
        pixels = image.at(code)
        rounded = (pixels * steps).round() / steps
        if explains(rounded):
            return rounded
        if not image.dimensions:
            return None
        tell(image.dimensions)
        off = (pixels - rounded).abs() * steps
        free = image.basis.square().sum(dim=1).sqrt() > _FREE
        able = (free & ~set_already & (off < _NEAR)).nonzero()[:, 0]
        if not len(able):
            return None
        surest = able[image.spread(pixels)[able].argsort()[: min(_AT_ONCE, image.dimensions)]]
        upper = torch.linalg.qr(image.basis[surest].T)[1]
        independent = upper.diagonal().abs() > _INDEPENDENT
        independent[0] = True
        chosen = surest[independent]
        image, code = image.fixed(chosen, rounded[chosen], code)
        set_already[chosen] = True
        if image.dimensions:
            code = image.smooth(code, _AGAIN, _STEPS_AGAIN)


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

"""The model of one step: residual and derivative around a point, what is solved for there, and the box."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gradleak.linalg import dense_gram

SMALLEST_WEIGHT = 1e-12
"""Entries of D below this share of the largest are raised to it, so that dead unknowns do not blow up a step."""

ROUNDS = 8
"""How often a step is solved anew with more entries at the box."""


class LocalModel(ABC):
    """‖ρ + M h‖² around one point, where ρ, M are the residual r (P,) and A (P, n), or a sketch of both.

    Attributes:
        residual: r (P,), whole.
        squared: ‖ρ‖².
        slope: Mᵀρ (n,), half of the gradient of the squared residual.
        weights: D (n,), the diagonal of MᵀM or an estimate of it; zero everywhere where M is zero.
        is_whole: whether ρ is r.
        is_solved: whether a system was solved, so that `correct` can follow.
    """

    is_whole: bool = True
    is_solved: bool = False

    residual: Tensor
    squared: float
    slope: Tensor
    weights: Tensor

    @property
    def is_finite(self) -> bool:
        """True if there is anything to go by."""
        return bool(torch.isfinite(self.residual).all()) and bool(torch.isfinite(self.slope).all())

    @abstractmethod
    def measure(self, residual: Tensor) -> float:
        """‖ρ‖² of another residual r (P,)."""

    @abstractmethod
    def curvature(self, move: Tensor) -> Tensor:
        """MᵀM h (n,)."""

    @abstractmethod
    def solve(self, right: Tensor, damping: float, free: Tensor) -> Tensor | None:
        """(MᵀM + μD)⁻¹ b over the free entries (n,), zero elsewhere; None where that fails."""

    @abstractmethod
    def correct(self, residual: Tensor) -> Tensor:
        """−(AᵀA + μD)⁻¹Aᵀr (n,) for another residual r, with the last μ and free entries of `solve`."""

    def gram(self) -> Tensor | None:
        """MᵀM (n, n), where it is held."""
        return None


class FactoredModel(LocalModel):
    """A model whose Gram matrix is held, and factored for each damping.

    Args:
        residual: r (P,).
        reduced: ρ (m,).
        slope: Mᵀρ (n,).
        gram: MᵀM (n, n).
    """

    def __init__(self, residual: Tensor, reduced: Tensor, slope: Tensor, gram: Tensor) -> None:
        self.residual = residual
        self.reduced = reduced
        self.squared = float(reduced.square().sum())
        self.slope = slope
        self._gram = gram
        self.weights = raised(gram.diagonal())
        self._factor: Tensor | None = None
        self._free: Tensor | None = None

    @abstractmethod
    def pull(self, residual: Tensor) -> Tensor:
        """Aᵀu (n,)."""

    def measure(self, residual: Tensor) -> float:
        """‖r‖²."""
        return float(residual.square().sum())

    def curvature(self, move: Tensor) -> Tensor:
        """By the Gram matrix."""
        return self._gram @ move

    def solve(self, right: Tensor, damping: float, free: Tensor) -> Tensor | None:
        """By a Cholesky factor, kept for `correct`."""
        places = free.nonzero()[:, 0]
        matrix = self._gram[places][:, places]
        matrix.diagonal().add_(damping * self.weights[places])
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            return None
        self._factor, self._free, self.is_solved = factor, places, True
        return self.by_factor(right)

    def by_factor(self, right: Tensor) -> Tensor:
        """The last system of `solve` with another right-hand side."""
        assert self._factor is not None
        assert self._free is not None
        out = torch.zeros_like(right)
        out[self._free] = torch.cholesky_solve(right[self._free][:, None], self._factor)[:, 0]
        return out

    def correct(self, residual: Tensor) -> Tensor:
        """A chord step: the last factor, the fresh residual."""
        return -self.by_factor(self.pull(residual))

    def gram(self) -> Tensor | None:
        """The Gram matrix."""
        return self._gram


class GramModel(FactoredModel):
    """A model whose matrix is held as well.

    Args:
        residual: r (P,).
        reduced: ρ (m,).
        columns: Mᵀ (n, m), contiguous.
    """

    def __init__(self, residual: Tensor, reduced: Tensor, columns: Tensor) -> None:
        self.columns = columns
        finite = bool(torch.isfinite(columns).all())
        missing = columns.new_full((len(columns), len(columns)), torch.nan)
        slope = columns @ reduced if finite else missing[0]
        super().__init__(residual, reduced, slope, dense_gram(columns.T) if finite else missing)

    def pull(self, residual: Tensor) -> Tensor:
        """By the matrix."""
        return self.columns @ residual


def raised(diagonal: Tensor) -> Tensor:
    """D: the diagonal with its smallest entries raised."""
    return diagonal.clamp(min=float(diagonal.max()) * SMALLEST_WEIGHT)


def held_at_box(point: Tensor, slope: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mask of the entries that stand at the box and would leave it downhill (n,)."""
    return ((point <= low) & (slope > 0)) | ((point >= high) & (slope < 0))


def bounded_move(
    model: LocalModel, point: Tensor, low: Tensor, high: Tensor, damping: float, rounds: int = ROUNDS
) -> Tensor | None:
    """The damped step h (n,) with z + h in the box; None where the system cannot be solved.

    Entries whose step would leave the box stop at it, and the others are solved for again with those moves given, until
    none leaves it (the working set of an active-set method, only ever growing). Clamping the unbounded step instead
    throws the others' answer to it away: on color LeNets with weights from U(−1/2, 1/2) such steps went astray.

    Args:
        model: around the point.
        point: z (n,), in the box.
        low: (n,).
        high: (n,).
        damping: μ.
        rounds: at most so many solves; after the last, what still leaves the box is clamped.
    """
    held = held_at_box(point, model.slope, low, high)
    fixed = torch.zeros_like(point)
    move = fixed
    for _ in range(rounds):
        if bool(held.all()):
            return fixed
        right = model.slope
        if bool(fixed.any()):
            right = right + model.curvature(fixed)
        found = model.solve(right, damping, ~held)
        if found is None:
            return None
        move = torch.where(held, fixed, -found)
        target = point + move
        leaves = ~held & ((target < low) | (target > high))
        if not bool(leaves.any()):
            break
        held = held | leaves
        fixed = torch.where(held, target.clamp(low, high) - point, 0.0)
    return (point + move).clamp(low, high) - point

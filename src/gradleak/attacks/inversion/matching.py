"""How far a candidate's update is from the one that was seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Matching(ABC):
    """A distance between two flat updates; pure and safe under torch.func transforms."""

    @abstractmethod
    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The distance, a scalar of at least 0.

        Args:
            candidate: the released mean of the current guess, (P,).
            target: the update that was seen, (P,), not zero.
        """


@dataclass(frozen=True, kw_only=True)
class SquaredError(Matching):
    """‖g − g*‖² / ‖g*‖²: the relative squared residual.

    The division makes the number independent of the update's scale, so that the tiny gradients of a converged model do
    not read as a small residual; 1 is what g = 0 reaches.

    **Source**: Zhang et al. 2023, equation 1, and Zhu et al. 2019, equation 4, without the division.
    """

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The relative squared residual."""
        scale = target.abs().max()
        return ((candidate - target) / scale).square().sum() / (target / scale).square().sum()


@dataclass(frozen=True, kw_only=True)
class CosineDistance(Matching):
    """1 − cos(g, g*), between 0 and 2; a positive scale of either does not matter.

    Computed as ½‖g/‖g‖ − g*/‖g*‖‖², the same number without the loss of digits near 0. A zero candidate has distance 1
    and derivative 0.

    **Source**: Geiping et al. 2020, equation 4.

    Example:
        >>> import torch
        >>> distance = CosineDistance()
        >>> float(distance(torch.tensor([0.0, 2.0]), torch.tensor([3.0, 0.0])))
        1.0
        >>> float(distance(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 0.0])))
        0.0
    """

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """One minus the cosine."""
        scale = target.abs().max()
        unit = target / scale
        unit = unit / unit.square().sum().sqrt()
        # The largest entry is a constant divisor: it keeps squares away from under- and overflow.
        size = candidate.detach().abs().max()
        nothing = size == 0
        scaled = candidate / torch.where(nothing, 1.0, size)
        squared = scaled.square().sum()
        direction = scaled * torch.rsqrt(torch.where(nothing, 1.0, squared))
        return torch.where(nothing, 1.0, 0.5 * (direction - unit).square().sum())

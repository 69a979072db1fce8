"""Bounds on an update before a defense, read from the released one, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """lower ≤ g ≤ upper for every entry g of an update; equal bounds say what it is, infinite ones nothing.

    Attributes:
        lower: by parameter name, −∞ where nothing is known.
        upper: by parameter name, ∞ where nothing is known.
    """

    lower: Mapping[str, Tensor]
    upper: Mapping[str, Tensor]

    @classmethod
    def of(cls, update: Mapping[str, Tensor]) -> Bounds:
        """The bounds of an update that is known."""
        return cls(lower=dict(update), upper=dict(update))

    def known(self, name: str) -> Tensor:
        """Mask of the entries of a tensor that are known exactly."""
        return self.lower[name] == self.upper[name]

    def hold_zero(self, name: str) -> Tensor:
        """Mask of the entries of a tensor that may be zero."""
        return (self.lower[name] <= 0) & (self.upper[name] >= 0)

    def most(self, name: str) -> Tensor:
        """The largest magnitude that each entry of a tensor may have."""
        return torch.maximum(self.lower[name].abs(), self.upper[name].abs())

    def widened(self, reach: Mapping[str, Tensor | float]) -> Bounds:
        """Bounds that are wider by so much on each side."""
        return Bounds(
            lower={name: tensor - reach[name] for name, tensor in self.lower.items()},
            upper={name: tensor + reach[name] for name, tensor in self.upper.items()},
        )

    def filled(self, reach: Mapping[str, Tensor | float]) -> Bounds:
        """Bounds that, where an entry may be zero, also hold −reach to reach: a zero may have been put there."""
        lower, upper = {}, {}
        for name, low in self.lower.items():
            high, open_, limit = self.upper[name], self.hold_zero(name), reach[name]
            lower[name] = torch.where(open_, torch.minimum(low, -torch.as_tensor(limit).to(low)), low)
            upper[name] = torch.where(open_, torch.maximum(high, torch.as_tensor(limit).to(high)), high)
        return Bounds(lower=lower, upper=upper)

    def scaled(self, factor: float) -> Bounds:
        """The bounds of the update times a positive number."""
        return Bounds(
            lower={name: tensor * factor for name, tensor in self.lower.items()},
            upper={name: tensor * factor for name, tensor in self.upper.items()},
        )

"""The sign of every entry of the update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Bounds, Guarantee, Noise, UpdateDefense
from gradleak.results import BERNSTEIN_2018, Citation


@dataclass(frozen=True)
class Sign(UpdateDefense):
    """The sign of every entry of the update, −1, 0 or 1: signSGD.

    It is constant almost everywhere, so A = 0 and the closed-form measures are `not_informative`: they say nothing,
    which is no evidence of safety. Attacks that know it look for an update with these signs (`before`); one that does
    not matches the plain gradient with the signs. The signs of a classifier's bias gradient
    name the label of a single example, and those of a first linear layer give the signs of its inputs, up to one for
    all of a unit. It gives no formal guarantee.

    Gaussian noise from before it is no longer Gaussian (it flips signs).
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (BERNSTEIN_2018,)

    @property
    def flat(self) -> bool:
        """True: a sign is constant almost everywhere."""
        return True

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The signs, in the dtype of the update."""
        return {name: tensor.sign() for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: the sign is deterministic."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The signs."""
        return self.mean(update)

    def bound(self, shapes: Mapping[str, Tensor]) -> float:
        """√P for P entries."""
        bound: float = sum(tensor.numel() for tensor in shapes.values()) ** 0.5
        return bound

    @property
    def keeps_scale(self) -> bool:
        """False: a positive multiple of the update has the same signs."""
        return False

    def before(self, after: Bounds) -> Bounds:
        """An entry with the sign that came out: from 0 up, from 0 down, or 0; all open where the sign is not known."""
        lower, upper = {}, {}
        for name, low in after.lower.items():
            high = after.upper[name]
            lower[name] = torch.where((low > 0) | ((low == 0) & (high == 0)), 0.0, -torch.inf).to(low)
            upper[name] = torch.where((high < 0) | ((low == 0) & (high == 0)), 0.0, torch.inf).to(low)
        return Bounds(lower=lower, upper=upper)

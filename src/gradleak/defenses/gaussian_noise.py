"""Independent Gaussian noise on every shared entry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import DiagonalGaussian, Guarantee, Noise, Unchanged, UpdateDefense
from gradleak.defenses.draws import mean_of, normal
from gradleak.results import ABADI_2016, Citation, NonNegative


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(UpdateDefense):
    """The update plus noise drawn from N(0, std²) for every entry.

    Without a bound on the sensitivity (clipping) it has no epsilon, so it is labeled heuristic; a release that clips
    per example before it is accounted for by DP-SGD.

    Attributes:
        std: standard deviation, at least 0.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016,)
    adds_in_order: ClassVar[bool] = True

    std: NonNegative

    def effect(self, names: Iterable[str]) -> Unchanged:
        """The update, plus noise."""
        return Unchanged()

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Gaussian of this standard deviation on every entry; None for a standard deviation of 0."""
        if self.std == 0:
            return None
        return DiagonalGaussian(std=dict.fromkeys(shapes, self.std))

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], GaussianNoise]:
        """Their mean, which carries std/√R for R draws."""
        return mean_of(updates), GaussianNoise(std=self.std / math.sqrt(len(updates)))

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The update with fresh noise; a CPU generator gives the same noise on every device."""
        if self.std == 0:
            return dict(update)
        return {name: tensor + self.std * normal(tensor, generator) for name, tensor in update.items()}

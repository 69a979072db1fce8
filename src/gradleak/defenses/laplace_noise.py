"""Independent Laplace noise on every shared entry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import DiagonalGaussian, Guarantee, Laplace, Noise, Unchanged, UpdateDefense
from gradleak.defenses.draws import laplace, mean_of
from gradleak.defenses.gaussian_noise import GaussianNoise
from gradleak.results import DWORK_2006, ZHU_2019, Citation, NonNegative


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(UpdateDefense):
    """The update plus noise drawn from the Laplace law of scale b, of variance 2b², for every entry.

    The density is exp(−|z|/b)/(2b). Its mean map is the identity, so that A stays; the law is not Gaussian, so that
    measures of Gaussian noise are unsupported. The expected squared error of the L2-matching attacker depends on the
    variance alone, to first order: it is that of Gaussian noise with std b√2.

    The Laplace mechanism protects what has a bounded L1 norm. No defense here bounds it, so that this one has no
    epsilon and is heuristic.

    **Source**: Zhu et al. 2019, section 5.1, which tries it beside Gaussian noise; the mechanism is Dwork et al. 2006.

    Attributes:
        scale: b, at least 0.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (DWORK_2006, ZHU_2019)

    scale: NonNegative

    def effect(self, names: Iterable[str]) -> Unchanged:
        """The update, plus noise."""
        return Unchanged()

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Laplace noise; None for a scale of 0."""
        if self.scale == 0:
            return None
        reason = f"LaplaceNoise adds Laplace noise of scale {self.scale:g} to every entry"
        return Laplace(scale=float(self.scale), reason=reason)

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def variance(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """2b² for every entry."""
        return {name: torch.full_like(tensor, 2 * self.scale**2) for name, tensor in update.items()}

    def pooled(self, updates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], LaplaceNoise | GaussianNoise]:
        """Their mean, read as Gaussian of its variance 2b²/R for R draws, which it nears as R grows; one draw as it is."""
        if len(updates) == 1:
            return dict(updates[0]), self
        return mean_of(updates), GaussianNoise(std=self.scale * math.sqrt(2 / len(updates)))

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The update with fresh noise; a CPU generator gives the same noise on every device."""
        if self.scale == 0:
            return dict(update)
        return {name: tensor + self.scale * laplace(tensor, generator) for name, tensor in update.items()}

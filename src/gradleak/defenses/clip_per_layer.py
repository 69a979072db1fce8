"""Clipping of each layer's part of the update to a norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Guarantee, Noise, Scaled, UpdateDefense
from gradleak.defenses.clip import scaled_to
from gradleak.defenses.layers import layers
from gradleak.results import MCMAHAN_2018, Citation, Positive


@dataclass(frozen=True)
class ClipPerLayer(UpdateDefense):
    """Each layer's part of the update scaled down to an L2 norm of at most `max_norm`.

    g_l -> g_l · min(1, C / ‖g_l‖) for every layer l (weight and bias of a module together); the whole update of L
    layers has a norm of at most C·√L. Where it bites, the rows of A of that layer become (C/‖g_l‖)(I − ĝ_lĝ_lᵀ)A_l:
    the proportions between layers are lost, directions within a layer survive. Alone it gives no formal guarantee.

    Attributes:
        max_norm: C, positive.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (MCMAHAN_2018,)

    max_norm: Positive

    def effect(self, names: Iterable[str]) -> Scaled:
        """Every layer times a factor of its own."""
        return Scaled(groups=list(layers(names).values()), max_norm=self.max_norm)

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The update with every layer clipped by itself."""
        clipped: dict[str, Tensor] = {}
        for names in layers(update).values():
            clipped |= scaled_to(self.max_norm, {name: update[name] for name in names})
        return {name: clipped[name] for name in update}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: clipping is deterministic."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The clipped update."""
        return self.mean(update)

    def bound(self, shapes: Mapping[str, Tensor]) -> float:
        """C·√L for L layers."""
        bound: float = float(self.max_norm) * len(layers(shapes)) ** 0.5
        return bound

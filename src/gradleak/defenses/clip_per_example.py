"""Clipping of each example's gradient to a norm, before the mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import ExampleDefense, Guarantee, ScaledRows
from gradleak.defenses.clip import scaled_to
from gradleak.results import ABADI_2016, Citation, Positive


@dataclass(frozen=True)
class ClipPerExample(ExampleDefense):
    """Every example's gradient scaled down to an L2 norm of at most `max_norm`, then averaged: DP-SGD without noise.

    (1/b) Σᵢ gᵢ · min(1, C / ‖gᵢ‖), with gᵢ the gradient of the loss of the batch that holds example i alone, its norm
    over all tensors. The mean has this form whatever the reduction of the loss: for a sum it is 1/b of the clipped
    sum. Under FedAvg every local step is clipped so. The rows of A that belong to example i become
    (C/(b‖gᵢ‖))(I − ĝᵢĝᵢᵀ)Aᵢ where it bites.

    It bounds what one example adds to a step (C/b), and with noise that is what DP-SGD accounts for; alone it gives no
    formal guarantee. Models that mix examples (BatchNorm in train mode) are refused.

    Attributes:
        max_norm: C, positive.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ABADI_2016,)

    max_norm: Positive

    @property
    def bound(self) -> float:
        """C."""
        return float(self.max_norm)

    def effect(self, names: Iterable[str]) -> ScaledRows:
        """Every example's gradient times a factor of its own."""
        return ScaledRows(max_norm=self.bound)

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients (b, ...) with each row clipped by its own norm over all tensors."""

        def clipped(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
            return scaled_to(self.max_norm, gradient)

        rows: dict[str, Tensor] = torch.func.vmap(clipped)(dict(gradients))
        return rows

"""The defenses of the defense table, their constants relative to a public gradient norm."""

from __future__ import annotations

import math
from enum import StrEnum

from gradleak.core import Defense
from gradleak.defenses import (
    DPSGD,
    Clip,
    ClipPerLayer,
    GaussianNoise,
    LaplaceNoise,
    NoiseOn,
    Outpost,
    Prune,
    Quantize,
    RandomSparsify,
    Sign,
    Soteria,
    SpectralNoise,
    TopK,
)

SHARE = 0.05
"""Norm of added noise over that of the public gradient."""


class Shield(StrEnum):
    """Defenses of the table; c is the gradient norm of a public noise image, noise has the norm 0.05 c."""

    NONE = "none"
    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    SPECTRAL = "spectral"
    CLIP = "clip"
    CLIP_PER_LAYER = "clip_per_layer"
    DP_SGD = "dp_sgd"
    PRUNE_90 = "prune_90"
    PRUNE_99 = "prune_99"
    TOP_K_PER_LAYER = "top_k_per_layer"
    RANDOM_SPARSIFY = "random_sparsify"
    QUANTIZE = "quantize"
    SIGN = "sign"
    SOTERIA = "soteria"
    OUTPOST = "outpost"

    @property
    def described(self) -> str:
        """The defense with its constant, as a table prints it."""
        return _TITLES[self]

    def defenses(self, norm: float, entries: int, head: str) -> tuple[Defense, ...]:
        """The defenses for a public gradient of this norm c and so many entries, of a model with this last linear layer."""
        std = SHARE * norm / math.sqrt(entries)
        match self:
            case Shield.NONE:
                return ()
            case Shield.GAUSSIAN:
                return (GaussianNoise(std=std),)
            case Shield.LAPLACE:
                return (LaplaceNoise(scale=std / math.sqrt(2)),)
            case Shield.SPECTRAL:
                return (SpectralNoise(norm=SHARE * norm),)
            case Shield.CLIP:
                return (Clip(norm / 2),)
            case Shield.CLIP_PER_LAYER:
                return (ClipPerLayer(norm / 4),)
            case Shield.DP_SGD:
                return (DPSGD(clip_norm=norm / 2, noise_std=std, noise=NoiseOn.SUM),)
            case Shield.PRUNE_90:
                return (Prune(0.9),)
            case Shield.PRUNE_99:
                return (Prune(0.99),)
            case Shield.TOP_K_PER_LAYER:
                return (TopK(0.1, by="layer"),)
            case Shield.RANDOM_SPARSIFY:
                return (RandomSparsify(0.1),)
            case Shield.QUANTIZE:
                return (Quantize(bits=8),)
            case Shield.SIGN:
                return (Sign(),)
            case Shield.SOTERIA:
                return (Soteria(layer=head),)
            case Shield.OUTPOST:
                return (Outpost(),)


_TITLES = {
    Shield.NONE: "none",
    Shield.GAUSSIAN: "`GaussianNoise`, norm 0.05 c",
    Shield.LAPLACE: "`LaplaceNoise`, norm 0.05 c",
    Shield.SPECTRAL: "`SpectralNoise`, norm 0.05 c",
    Shield.CLIP: "`Clip(c/2)`",
    Shield.CLIP_PER_LAYER: "`ClipPerLayer(c/4)`",
    Shield.DP_SGD: "`DPSGD`, clip c/2, noise on the sum of norm 0.05 c",
    Shield.PRUNE_90: "`Prune(0.9)`",
    Shield.PRUNE_99: "`Prune(0.99)`",
    Shield.TOP_K_PER_LAYER: "`TopK(0.1)` per layer",
    Shield.RANDOM_SPARSIFY: "`RandomSparsify(0.1)`",
    Shield.QUANTIZE: "`Quantize(bits=8)`",
    Shield.SIGN: "`Sign()`",
    Shield.SOTERIA: "`Soteria()` of the last layer",
    Shield.OUTPOST: "`Outpost()` of the first iteration",
}

__all__ = ["SHARE", "Shield"]

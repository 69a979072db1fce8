"""Sizes of a first plan: how much is attacked, for how long, and behind which defenses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Preset(StrEnum):
    """Size of a first plan."""

    QUICK = "quick"
    """One update, a short attack, undefended and under DP-SGD."""
    STANDARD = "standard"
    """Four updates, attacks of a thousand steps, noise and DP-SGD."""
    DEEP = "deep"
    """Eight updates, attacks of 4,000 steps from four starts, both adversaries, pruning, noise and DP-SGD."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Numbers of a preset.

    Attributes:
        updates: how many are attacked.
        iterations: of `InvertingGradients`.
        steps: of `GaussNewton`.
        restarts: of both.
        unknowns: up to which `GaussNewton` is tried; None for as many as it takes.
        defenses: beside no defense.
        adversaries: who attacks them.
    """

    updates: int
    iterations: int
    steps: int
    restarts: int
    unknowns: int | None = None
    defenses: tuple[str, ...]
    adversaries: str


EFFORTS: Mapping[Preset, Effort] = {
    Preset.QUICK: Effort(
        updates=1,
        iterations=300,
        steps=12,
        restarts=1,
        unknowns=256,
        defenses=("DP-SGD",),
        adversaries='["adaptive"]',
    ),
    Preset.STANDARD: Effort(
        updates=4, iterations=1000, steps=30, restarts=1, defenses=("noise", "DP-SGD"), adversaries='["adaptive"]'
    ),
    Preset.DEEP: Effort(
        updates=8,
        iterations=4000,
        steps=60,
        restarts=4,
        defenses=("largest tenth", "noise", "DP-SGD"),
        adversaries='["adaptive", "static"]',
    ),
}
DEFENSES: Mapping[str, str] = {
    "largest tenth": '{ use = "TopK", share = 0.1 }',
    "noise": '{ use = "Clip", max_norm = 1.0 }, { use = "GaussianNoise", std = 0.01 }',
    "DP-SGD": '{ use = "DPSGD.from_noise_multiplier", noise_multiplier = %g, clip_norm = 1.0, expected_batch_size = %d }',
}
"""Defenses of a plan by name; of DP-SGD the noise multiplier and the size of a batch are left open."""

"""Trials of two Gaussians, of which everything is known."""

from __future__ import annotations

import numpy as np

from gradleak.privacy.lower_bounds import TrialScores

DELTA = 1e-5


def gaussian_trials(mu: float, count: int, seed: int, *, reversed_: bool = False) -> TrialScores:
    generator = np.random.default_rng(seed)
    sign = -1.0 if reversed_ else 1.0
    return TrialScores(
        null=sign * generator.standard_normal(count), alternative=sign * (mu + generator.standard_normal(count))
    )

"""Test of whether a measure of an attribute found something in a layer, or only what chance gives."""

from __future__ import annotations

import scipy

from gradleak.results import Score

# A control that fails by chance takes a measure with it; at 95 % one layer in forty would.
CONTROL_CONFIDENCE = 0.999
_STATED = 0.95


def reaches(score: Score, layers: int) -> bool | None:
    """True if a measure of an attribute finds something beyond chance in one of so many layers; None without a number.

    An interval of 95 % is stretched as that of a normal law; a subspace is judged by its effect against random groups.

    Args:
        score: of one layer.
        layers: how many are looked at together.
    """
    if score.value is None:
        return None
    far = float(scipy.stats.norm.isf((1.0 - CONTROL_CONFIDENCE) / layers))
    if "p_value" in score.details:
        effect = score.details.get("effect_size")
        return None if effect is None else float(effect) > far
    if score.interval is None:
        return None
    value = float(score.details.get("unclipped", score.value))
    near = float(scipy.stats.norm.isf((1.0 - _STATED) / 2.0))
    return value - (value - score.interval[0]) * far / near > 0.0

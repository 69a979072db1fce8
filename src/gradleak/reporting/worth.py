"""The worth of a trained model, as several pages read it."""

from __future__ import annotations

# A reference whose gain over the blind answer is a smaller share of the room above that has learned too little to compare.
_LEARNED = 0.25


def learned_little(value: float | None, blind: float | None) -> bool:
    """True if a model without a defense gains too little over the best answer that ignores the input to be a reference."""
    return value is not None and blind is not None and value - blind < _LEARNED * (1 - blind)

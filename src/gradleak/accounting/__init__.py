"""Accounting: what a release is worth as a mechanism, and the epsilon of many rounds."""

from gradleak.accounting.cautions import delta_caution
from gradleak.accounting.epsilon import (
    Accounting,
    can_be_empty,
    classical_gaussian_epsilon,
    exact_gaussian_epsilon,
    next_clip_norm,
    of_mechanism,
    pld_epsilon,
    rdp_epsilon,
    with_clip_query,
)
from gradleak.accounting.mechanism import guarantee_of, mechanism_of

__all__ = [
    "Accounting",
    "can_be_empty",
    "classical_gaussian_epsilon",
    "delta_caution",
    "exact_gaussian_epsilon",
    "guarantee_of",
    "mechanism_of",
    "next_clip_norm",
    "of_mechanism",
    "pld_epsilon",
    "rdp_epsilon",
    "with_clip_query",
]

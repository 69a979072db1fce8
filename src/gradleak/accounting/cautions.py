"""Cautions on an epsilon: a delta that protects nobody, and what its sampling assumes."""

from __future__ import annotations

SAMPLING = (
    "it assumes Poisson sampling: every unit takes part in every round by a coin of its own, with this probability. Batches "
    "of a shuffled loader are no such sample, and this epsilon does not hold for them: take a sampling rate of 1 and count "
    "the rounds in which a unit takes part"
)


def delta_caution(delta: float, units: int, noun: str) -> str:
    """A clause for a δ that is not below one over the number of units, "" for one that is.

    A mechanism that gives away one of n units in full, chosen at random, is (0, 1/n)-private.

    Args:
        delta: δ, between 0 and 1.
        units: n, how many there are, or a number that there are at least.
        noun: of a unit, in the singular.

    Examples:
        >>> delta_caution(1e-5, 1000, "example"), delta_caution(0.01, 100, "client")[:42]
        ('', 'delta 0.01 is not below one over the 100 c')
    """
    if delta * units < 1:
        return ""
    return (
        f"delta {delta:g} is not below one over the {units} {noun}{'s' if units != 1 else ''}, which protects nobody: a release "
        "that gives one of them away in full meets it"
    )

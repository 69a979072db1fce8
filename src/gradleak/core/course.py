"""Paths of the examples of a batch into an update, for whoever counts what one of them adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Course:
    """The gradients that a client takes on its way to an update.

    Attributes:
        epochs: how often an example takes part.
        sizes: of the mini-batches that it may be in.
        whole: whether every gradient is that of the whole batch, however many examples it has.
        sums: the mean gradients at the shared parameters, with the defenses of examples, of which the update is a sum
            exactly: of how many examples, and with which weight; None where it is no such sum.
    """

    epochs: int
    sizes: Sequence[int]
    whole: bool
    sums: Sequence[tuple[int, float]] | None

"""Paths of examples and clients into an update, for whoever counts what one of them adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.core.defense import UpdateDefense


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


@dataclass(frozen=True, kw_only=True)
class Clients:
    """Clients whose updates a protocol adds up, as far as an accountant has to know them.

    Attributes:
        shares: the weight of each update in the sum.
        public: whether the weights are constants, which do not depend on who takes part.
        defenses: that every client applies to its own update, in order.
        honest: how many of the others add the noise that they state and keep it from the server.
    """

    shares: Sequence[float]
    public: bool
    defenses: Sequence[UpdateDefense]
    honest: int

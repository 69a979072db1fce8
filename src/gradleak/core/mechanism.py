"""Descriptions of a release as a mechanism: the noise on what one unit moves, or the reason why there is no guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gradleak.results import Count, Positive, Settings


class Adjacency(StrEnum):
    """Relation of two data sets that an adversary is not to tell apart."""

    ADD_OR_REMOVE = "add_or_remove"
    REPLACE = "replace"


class Unit(StrEnum):
    """Unit whose presence is hidden."""

    EXAMPLE = "example"
    CLIENT = "client"


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism(Settings):
    """A quantity that one unit moves by at most `sensitivity`, with Gaussian noise of `std` on every entry.

    Attributes:
        sensitivity: the largest L2 norm of what one unit adds to the sum (or, for a client, to the update).
        std: standard deviation of the noise on every entry of that quantity.
        steps: how often a unit takes part in a release (local epochs).
        unit: an example, or the whole update of a client.
        fixed: whether divisor, noise and mini-batches do not depend on how many examples there are, however many, as
            Poisson sampling needs: a protocol with mini-batches is never so.
        loose: why an epsilon of this mechanism is an upper bound on what the release loses, for a reader; "" where it
            is exact: nothing else hides the quantity, and it is seen as it is here.
    """

    sensitivity: Positive
    std: Positive
    steps: Count = 1
    unit: Unit = Unit.EXAMPLE
    fixed: bool = True
    loose: str = ""

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation over the sensitivity."""
        return self.std / self.sensitivity


@dataclass(frozen=True, kw_only=True)
class NoGuarantee:
    """Reason why a release has no epsilon.

    Attributes:
        reason: one sentence.
    """

    reason: str

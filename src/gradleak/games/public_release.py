"""Releases that need public rows, which a game knows only once it has split its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradleak.core import Batch, Defense, Protocol
from gradleak.protocols import FedSGD
from gradleak.results import check_count, check_not_negative, check_positive
from gradleak.utility.rounds import PerturbedRounds
from gradleak.utility.training import AnyRelease


class ReleaseWithPublicRows(ABC):
    """What makes a release once the public rows of a seed are known."""

    @abstractmethod
    def given(self, public: Batch, batch_size: int) -> AnyRelease:
        """The release.

        Args:
            public: the public rows, with their sensitive variable.
            batch_size: how many rows make an update.
        """


@dataclass(frozen=True, kw_only=True)
class PerturbedGame(ReleaseWithPublicRows):
    """Adversarial perturbation against a classifier that is trained every round on the public rows of the game.

    These are the rows that the adversary has too, so that an adaptive one meets the very classifier.

    **Source**: Li et al. 2024, section 6.1 (3): the classifier learns from "the same as the shadow dataset".

    Attributes:
        protocol: what the client computes.
        before: defenses before the perturbation.
        target: the value that an update is to be taken for, or None for any but the true one. In a game about users it is
            needed, and the number of a public user: 0 to u − 1 in the order of their numbers in the population.
        gamma: γ, the largest change of an entry.
        alpha: α, the step.
        steps: of the perturbation.
        updates: how many updates the classifier is trained on.
        hidden: units of its hidden layer.
        epochs: its passes over the updates.

    Raises:
        InputError: for a number out of range.
    """

    protocol: Protocol = field(default_factory=FedSGD)
    before: Sequence[Defense] = ()
    target: int | None = None
    gamma: float = 0.005
    alpha: float = 0.002
    steps: int = 5
    updates: int = 256
    hidden: int = 64
    epochs: int = 20

    def __post_init__(self) -> None:
        """Check the numbers before anything is trained."""
        for name in ("steps", "updates", "hidden", "epochs"):
            check_count(f"PerturbedGame.{name}", getattr(self, name))
        check_not_negative("PerturbedGame.gamma", self.gamma)
        check_positive("PerturbedGame.alpha", self.alpha)
        if self.target is not None:
            check_count("PerturbedGame.target", self.target, least=0)

    def given(self, public: Batch, batch_size: int) -> PerturbedRounds:
        """The perturbation with a classifier of these rows, trained anew every round."""
        return PerturbedRounds(
            public=public,
            batch_size=batch_size,
            protocol=self.protocol,
            before=self.before,
            target=self.target,
            gamma=self.gamma,
            alpha=self.alpha,
            steps=self.steps,
            updates=self.updates,
            hidden=self.hidden,
            epochs=self.epochs,
        )


__all__ = ["PerturbedGame", "ReleaseWithPublicRows"]

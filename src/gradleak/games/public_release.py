"""Releases that need public rows, which a game knows only once it has split its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from gradleak.core import Batch
from gradleak.training import AnyRelease, PerturbedRounds
from gradleak.training.rounds import Perturbation


class ReleaseWithPublicRows(ABC):
    """Maker of a release once the public rows of a seed are known."""

    @abstractmethod
    def given(self, public: Batch, batch_size: int) -> AnyRelease:
        """The release.

        Args:
            public: the public rows, with their sensitive variable.
            batch_size: how many rows make an update.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class PerturbedGame(Perturbation, ReleaseWithPublicRows):
    """Adversarial perturbation against a classifier that is trained every round on the public rows of the game.

    These are the rows that the adversary has too, so that an adaptive one meets the very classifier.

    **Source**: Li et al. 2024, section 6.1 (3): the classifier learns from "the same as the shadow dataset".

    Attributes:
        target: the value that an update is to be taken for, or None for any but the true one. In a game about users it is
            needed, and the number of a public user: 0 to u − 1 in the order of their numbers in the population.
        updates: how many updates the classifier is trained on.
        hidden: units of its hidden layer.
        epochs: its passes over the updates.
    """

    updates: int = 256
    hidden: int = 64
    epochs: int = 20

    def given(self, public: Batch, batch_size: int) -> PerturbedRounds:
        """The perturbation with a classifier of these rows, trained anew every round."""
        return PerturbedRounds(public=public, batch_size=batch_size, **self.perturbation)

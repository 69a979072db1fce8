"""Releases that are made anew at every round, because a part of them is trained at the parameters of the round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch

from gradleak.core import Batch, Defense, Objective, Protocol, Release, describe
from gradleak.defenses import AdversarialPerturbation
from gradleak.defenses.adversarial_perturbation import train_sensitive_classifier
from gradleak.protocols import FedSGD
from gradleak.results import (
    Citation,
    Count,
    InputError,
    Natural,
    NonNegative,
    Positive,
    Settings,
)


class ReleaseOfRound(ABC):
    """Maker of the release of a round."""

    @abstractmethod
    def at(self, objective: Objective, generator: torch.Generator) -> Release:
        """The release at these parameters.

        Args:
            objective: the loss at the parameters of the round.
            generator: the only source of randomness.
        """


AnyRelease = Release | ReleaseOfRound


@dataclass(frozen=True, kw_only=True, eq=False)
class Perturbation(Settings):
    """Perturbation of updates, and the classifier that they are perturbed against.

    Attributes:
        protocol: what the client computes.
        before: defenses before the perturbation.
        target: the value that an update is to be taken for, one that public rows have, or None for any but the true one.
        gamma: γ, the largest change of an entry.
        alpha: α, the step.
        steps: of the perturbation.
        updates: how many updates the classifier is trained on.
        hidden: units of its hidden layer.
        epochs: its passes over the updates.

    Raises:
        InputError: for a number out of range.
    """

    citations: ClassVar[tuple[Citation, ...]] = AdversarialPerturbation.citations

    protocol: Protocol = field(default_factory=FedSGD)
    before: Sequence[Defense] = ()
    target: Natural | None = None
    gamma: NonNegative = 0.005
    alpha: Positive = 0.002
    steps: Count = 5
    updates: Count = 64
    hidden: Count = 32
    epochs: Count = 10

    @property
    def perturbation(self) -> dict[str, Any]:
        """The numbers of `Perturbation`, by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(Perturbation)}


@dataclass(frozen=True, kw_only=True, eq=False)
class PerturbedRounds(Perturbation, ReleaseOfRound):
    """Adversarial perturbation against a classifier of the sensitive variable that is trained at every round.

    Half-way through a training a classifier of its start no longer fits. Every round one is trained on releases of public
    rows at the parameters of that round, through the defenses before the perturbation.

    **Cost**: a round costs `updates` releases and the training of the classifier more.

    **Source**: Li et al. 2024, section 6.1 (3).

    Attributes:
        public: rows with their sensitive variable, none of them private.
        batch_size: how many rows make an update, as the client has it.

    Raises:
        InputError: for a number out of range, or a target that no public row has.
    """

    public: Batch = field(repr=False)
    batch_size: Count

    def __post_init__(self) -> None:
        """Check the sizes, and that the classifier will know the target."""
        super().__post_init__()
        if self.target is None:
            return
        if self.public.sensitive is None:
            raise InputError("PerturbedRounds.public: expected rows with their sensitive variable, got none")
        values = self.public.sensitive.unique()
        if not bool((values == self.target).any()):
            raise InputError(
                f"PerturbedRounds.target: expected one of the {len(values)} values of the public rows, {int(values.min())} to "
                f"{int(values.max())}, got {self.target}"
            )

    def at(self, objective: Objective, generator: torch.Generator) -> Release:
        """The release with a classifier that was trained at these parameters."""
        classifier = train_sensitive_classifier(
            objective,
            Release(self.protocol, self.before),
            self.public,
            batch_size=self.batch_size,
            generator=generator,
            updates=self.updates,
            hidden=self.hidden,
            epochs=self.epochs,
        )
        perturbation = AdversarialPerturbation(
            classifier=classifier, target=self.target, gamma=self.gamma, alpha=self.alpha, steps=self.steps
        )
        return Release(self.protocol, [*self.before, perturbation])

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description, without a value of the public rows."""
        described: dict[str, Any] = describe(self)
        return described | {"public": f"{self.public.size} rows"}

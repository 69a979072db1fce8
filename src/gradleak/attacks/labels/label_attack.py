"""Base of every label attack: an update and knowledge go in; labels with a confidence, or a reason, come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from gradleak.core import Knowledge, Update, sealed
from gradleak.core.effect import ScaledRows, Unchanged
from gradleak.protocols.average_gradient import without_decay
from gradleak.results import Citation, Outcome, Settings


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelRecovery:
    """Labels that the update gives away, without the truth.

    Attributes:
        targets: class indices (b,), in ascending order, or None where the update does not identify them.
        confidence: probability that all of them are right, under the known (or apparent) noise and error, in [0, 1].
        outcome: `converged`, `not_identifiable`, or `no_signal`.
        note: how they were had, or why not.
        counts: how often each class occurs (c,), whole numbers that sum to the batch size, or None with `targets`.
        estimate: the counts before rounding (c,), or None where none were made; kept where there is no claim.
        interval: smallest and largest count of each class at 95 % (c, 2), where there is a claim of counts.
        expected_accuracy: the share of labels expected to be right, where there is a claim. As confidence and interval
            it holds under the attack's error model, which a trained model breaks.
    """

    targets: Tensor | None
    confidence: float
    outcome: Outcome
    note: str
    counts: Tensor | None = None
    estimate: Tensor | None = None
    interval: Tensor | None = None
    expected_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Reason why nothing about the labels can be read from an update.

    Attributes:
        reason: a clause for the reader.
        outcome: `not_identifiable`, or `no_signal`.
    """

    reason: str
    outcome: Outcome = Outcome.NOT_IDENTIFIABLE

    def recovery(self) -> LabelRecovery:
        """The answer without labels."""
        return LabelRecovery(targets=None, confidence=0.0, outcome=self.outcome, note=self.reason)


class LabelAttack(Settings, ABC):
    """An adversary that reads the labels of a batch off an update. Authors write `_recover`.

    Attributes:
        name: snake case, as it stands in records.
        needs: the fields of `Knowledge` without which the attack is refused before anything is computed.
        citations: where it comes from.
        summary: one sentence for lists and reports.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("objective", "batch_size", "domain")
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str]

    @final
    def __call__(
        self, update: Update, knowledge: Knowledge, *, generator: torch.Generator | None = None
    ) -> LabelRecovery:
        """The labels behind an update with a confidence, or why the update does not give them; never a guess.

        Args:
            update: what the server saw; it is aligned with the model and never changed.
            knowledge: all that the adversary knows besides it.
            generator: the only source of randomness (dummy inputs); None stands for a new one with seed 0.

        Raises:
            KnowledgeError: naming what the attack needs and the threat model does not disclose.
            InconsistentUpdateError: if the update does not fit the model.
            InputError: naming a tensor of the update with NaN or infinite values.
            UnsupportedError: for a model, loss or defense that cannot be copied.
        """
        knowledge.require(self.needs, asker=f"the label attack {self.name}")
        if generator is None:
            generator = torch.Generator().manual_seed(0)
        (update,), (knowledge,) = sealed([update]), sealed([knowledge])
        assert knowledge.objective is not None
        aligned, protocol, examples = update.align(knowledge.objective), knowledge.protocol, knowledge.batch_size
        if protocol is not None and examples is not None and protocol.decay(examples):
            effects = [defense.effect(aligned.tensors) for defense in knowledge.defenses or ()]
            if any(not isinstance(effect, Unchanged | ScaledRows) for effect in effects):
                reason = (
                    "weight decay moved the parameters before a defense changed the update, and cannot be taken out"
                )
                return Unreadable(reason=reason).recovery()
            aligned = without_decay(aligned, protocol, examples, knowledge.objective.params)
        return self._recover(aligned, knowledge, generator)

    @abstractmethod
    def _recover(self, update: Update, knowledge: Knowledge, generator: torch.Generator) -> LabelRecovery:
        """The labels behind one aligned, finite update."""


def spelled_out(counts: Tensor) -> Tensor:
    """Class indices (b,) with each class as often as counted, ascending.

    Examples:
        >>> spelled_out(torch.tensor([0, 3, 1])).tolist()
        [1, 1, 1, 2]
    """
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)

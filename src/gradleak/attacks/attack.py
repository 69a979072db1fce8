"""Base of every attack: an update and knowledge go in, a reconstruction comes out; the truth is nowhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, final

import torch

from gradleak.attacks.monitor import Checkpoint, Monitor, Progress
from gradleak.core import Knowledge, Objective, Reconstruction, Update, refuse_inference_mode, sealed
from gradleak.results import Citation, InputError, KnowledgeError, Outcome, Settings, UnsupportedError


class Attack(Settings, ABC):
    """An adversary that rebuilds a batch from an update and what the threat model discloses.

    Authors write `_recover` and `estimate`, and state four facts on the class. An attack that gains from running many
    targets in lockstep also overrides `_recover_many`.

    Attributes:
        name: snake case of the class name, as it stands in records.
        needs: the fields of `Knowledge` without which the attack is refused before anything is computed.
        citations: where it comes from.
        summary: one sentence for lists and reports.
        reads_update: False only for an adversary that ignores the update.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str]
    reads_update: ClassVar[bool] = True

    @final
    def __call__(
        self,
        update: Update,
        knowledge: Knowledge,
        *,
        generator: torch.Generator,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Reconstruction:
        """The adversary's claim about the batch behind one update.

        The attack works on copies of both (`gradleak.core.sealed`), so that nothing that it does reaches another attack.

        Args:
            update: what the server saw; it is aligned with the model and never changed.
            knowledge: all that the adversary knows besides it.
            generator: the only source of randomness; same generator, same bits (on one thread).
            progress: called with (iterations done, planned, best matching loss).
            checkpoint: where a search leaves its state now and then, and from where it goes on after a kill with the
                same bits; None for none. The file holds guesses, which may be private.

        Returns:
            The reconstruction. A zero update gives outcome `no_signal` and no inputs.

        Raises:
            KnowledgeError: naming what the attack needs and the threat model does not disclose.
            InconsistentUpdateError: if the update does not fit the model.
            InputError: naming a tensor of the update with NaN or infinite values, or an argument of another kind.
            UnsupportedError: for a model, loss or defense that cannot be copied.
        """
        return self.many([update], knowledge, generators=[generator], progress=progress, checkpoint=checkpoint)[0]

    @final
    def many(
        self,
        updates: Sequence[Update],
        knowledge: Knowledge | Sequence[Knowledge],
        *,
        generators: Sequence[torch.Generator],
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> list[Reconstruction]:
        """The claims about independent updates, in lockstep where the attack gains from it.

        The result for one update depends on its own generator and on the size of the lockstep group and its place there
        (both change the order of floating-point sums), never on the other updates' values.

        Args:
            updates: one a target.
            knowledge: one for all targets, or one a target.
            generators: one a target.
            progress: called with (iterations done, planned, best matching loss).
            checkpoint: as `__call__`.

        Raises:
            KnowledgeError: as `__call__`.
            InconsistentUpdateError: as `__call__`.
            InputError: as `__call__`, and if the three lists have different lengths.
        """
        refuse_inference_mode()
        for update in updates:
            if not isinstance(update, Update):
                raise InputError(
                    f"{self.name}: expected an Update first, got {type(update).__name__}; the order is "
                    "attack(update, knowledge, generator=...)"
                )
        if not isinstance(knowledge, Sequence):
            knowledge = [knowledge] * len(updates)
        known = list(knowledge)
        for facts in known:
            if not isinstance(facts, Knowledge):
                raise InputError(
                    f"{self.name}: expected Knowledge, got {type(facts).__name__}; a threat model makes it: "
                    "gradleak.HonestButCurious().disclose(objective, release, batch)"
                )
        if not len(updates) == len(known) == len(generators):
            raise InputError(
                f"{self.name}.many: expected as many generators and knowledge as updates ({len(updates)}), "
                f"got {len(generators)} and {len(known)}"
            )
        monitor = Monitor(progress=progress, checkpoint=checkpoint)
        for facts in known:
            facts.require(self.needs, asker=f"the attack {self.name}")
            self._check(facts)
        updates, known = sealed(updates), sealed(known)
        if not self.reads_update:
            return self._recover_many(updates, known, generators, monitor)
        aligned = [update.align(_objective(facts)) for update, facts in zip(updates, known, strict=True)]
        empty = [len(update.zero_tensors()) == len(update.tensors) for update in aligned]
        kept = [place for place, nothing in enumerate(empty) if not nothing]
        found = self._recover_many(
            [aligned[place] for place in kept],
            [known[place] for place in kept],
            [generators[place] for place in kept],
            monitor,
        )
        results = dict(zip(kept, found, strict=True))
        return [
            _noted(_finite(results[place]), aligned[place], known[place]) if place in results else _no_signal()
            for place in range(len(updates))
        ]

    @final
    def refusal(self, knowledge: Knowledge) -> str | None:
        """Reason why this attack is refused with such knowledge, before anything is computed; None where it runs."""
        try:
            knowledge.require(self.needs, asker=f"the attack {self.name}")
            self._check(knowledge)
        except (KnowledgeError, UnsupportedError) as refusal:
            return str(refusal)
        return None

    @property
    def searches_images(self) -> bool:
        """True if its claims are images of the generator that the adversary knows, whatever they explain."""
        return "generator" in self.needs

    def brief(self, steps: int) -> Attack:
        """This attack with one start of so many steps at most, for controls; itself where that is no setting of it."""
        return self

    def _check(self, knowledge: Knowledge) -> None:
        """Refuse knowledge that cannot be worked with, without looking at an update; by default nothing.

        Raises:
            KnowledgeError: naming what is missing.
            UnsupportedError: naming what cannot be attacked, and the reason.
        """
        del knowledge

    @abstractmethod
    def estimate(self, knowledge: Knowledge) -> float:
        """The expected cost of one target in plain gradients, before anything is computed.

        Raises:
            KnowledgeError: if a fact that the cost depends on is not disclosed.
        """

    @abstractmethod
    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        """The claim about one aligned, finite update that is not zero."""

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> list[Reconstruction]:
        """The claims about aligned updates; a loop unless the attack runs them in lockstep."""
        return [
            self._recover(update, facts, generator, monitor)
            for update, facts, generator in zip(updates, knowledge, generators, strict=True)
        ]


def _objective(knowledge: Knowledge) -> Objective:
    knowledge.require(("objective",), asker="reading an update")
    assert knowledge.objective is not None
    return knowledge.objective


def _no_signal() -> Reconstruction:
    return Reconstruction(
        inputs=None,
        targets=None,
        loss=None,
        outcome=Outcome.NO_SIGNAL,
        note="every shared tensor is zero, so there is nothing to match; this is no evidence of safety",
    )


def _finite(found: Reconstruction) -> Reconstruction:
    """The claim, withdrawn where it holds NaN or infinite values."""
    if found.inputs is None or bool(torch.isfinite(found.inputs).all()):
        return found
    return replace(found, inputs=None, targets=None, loss=None, outcome=Outcome.NOT_FINITE)


def _noted(found: Reconstruction, update: Update, knowledge: Knowledge) -> Reconstruction:
    """The claim with notes on the update: tensors without signal, and a kind that the protocol does not make."""
    notes = [found.note] if found.note else []
    zero = update.zero_tensors()
    if zero:
        notes.append(f"zero everywhere in the update: {', '.join(zero)}")
    protocol = knowledge.protocol
    if protocol is not None and protocol.kind is not update.kind:
        notes.append(
            f"the update is a {update.kind.value}, but {type(protocol).__name__} makes a {protocol.kind.value}"
        )
    if protocol is not None and "protocol" in (knowledge.assumed or ()):
        notes.append(f"the client's protocol is not known; assumed was {protocol}")
    if protocol is not None and knowledge.batch_size is not None:
        notes += [note] if (note := protocol.note(knowledge.batch_size)) else []
    return replace(found, note="; ".join(notes))

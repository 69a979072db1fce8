"""Base of every attack, and what watches it: an update and knowledge go in, a reconstruction comes out."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradleak.core import Knowledge, Objective, Reconstruction, Update, refuse_inference_mode, sealed
from gradleak.results import Citation, InputError, KnowledgeError, Outcome, Settings, UnsupportedError
from gradleak.results.files import make_folder, partial_of, write_file

Progress = Callable[[int, int, float], None]
"""Called now and then with (iterations done, iterations planned, best matching loss)."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A file with the state of a running attack.

    It holds the adversary's guesses, which may be private data: it is written only where the caller asks for it, and
    removed when the attack ends, or, with `keep`, when the caller `clear`s it. It is a safetensors file, never a pickle,
    and replaced atomically, so that a kill at any moment leaves the state before or after.

    Attributes:
        path: of the file.
        seconds: at least so long between two states.
        keep: whether the finished state stays until the caller has put the claim in a safe place; an attack that finds it
            claims the same at once, without a further step.

    Raises:
        InputError: for a negative time.
    """

    path: Path
    seconds: float = 60.0
    keep: bool = False

    def __post_init__(self) -> None:
        """Check the time; a path may come as text."""
        object.__setattr__(self, "path", Path(self.path))
        if not self.seconds >= 0:
            raise InputError(f"Checkpoint.seconds: expected a number of at least 0, got {self.seconds}")

    def part(self, number: int) -> Checkpoint:
        """The file of one lockstep group of an attack."""
        return self if number == 0 else replace(self, path=self.path.with_name(f"{self.path.name}.{number}"))

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one state."""
        make_folder(self.path.parent)
        state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        # safetensors' own save_file writes through a file of a random name, which a kill would leave behind for good.
        write_file(self.path, save(state, metadata={"gradleak": json.dumps(facts)}))

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last state, or None if there is none.

        Raises:
            InputError: if the file is no state of an attack.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})["gradleak"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
            raise self._unreadable(type(error).__name__) from error
        if not isinstance(facts, dict):
            raise self._unreadable("no facts")
        return tensors, facts

    def remove(self) -> None:
        """Delete the file; nothing happens where there is none."""
        partial_of(self.path).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def end(self) -> None:
        """End the attack: delete the file, unless it is to be kept."""
        if not self.keep:
            self.remove()

    def clear(self) -> None:
        """Delete the files of all lockstep groups of the attack; nothing happens where there are none."""
        self.remove()
        number = 1
        while (part := self.part(number)).path.exists() or partial_of(part.path).exists():
            part.remove()
            number += 1

    def _unreadable(self, reason: str) -> InputError:
        return InputError(
            f"checkpoint {self.path.name}: expected the state of an attack, got a file that cannot be read as one "
            f"({reason}); delete it to begin anew"
        )


@dataclass(kw_only=True)
class Monitor:
    """Progress and checkpoint of one call of an attack; calling it reports progress.

    Attributes:
        progress: told how far the attack is, or None.
        checkpoint: where states go, or None.
    """

    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    _saved: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, planned: int, loss: float) -> None:
        """Report (iterations done, planned, best matching loss)."""
        if self.progress is not None:
            self.progress(done, planned, loss)

    def part(self, number: int) -> Monitor:
        """The monitor of one lockstep group."""
        checkpoint = None if self.checkpoint is None else self.checkpoint.part(number)
        return Monitor(progress=self.progress, checkpoint=checkpoint)

    @property
    def due(self) -> bool:
        """True if it is time for a state."""
        return self.checkpoint is not None and time.monotonic() - self._saved >= self.checkpoint.seconds

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one state."""
        assert self.checkpoint is not None
        self.checkpoint.save(tensors, facts)
        self._saved = time.monotonic()


def fingerprint(description: object, tensors: Iterable[Tensor]) -> str:
    """A hash of settings and tensors: a state goes on only in the attack that wrote it."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode())
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
        claims_tokens: True for an attack on ids of tokens, which is refused elsewhere, as all others are on tokens.
        claims_embeddings: True for an attack on numbers that takes sentences, too, by the embeddings of their words.
        on_processor: True for an attack that works on the processor wherever the update is: many small steps, or other code.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str]
    reads_update: ClassVar[bool] = True
    claims_tokens: ClassVar[bool] = False
    claims_embeddings: ClassVar[bool] = False
    on_processor: ClassVar[bool] = False

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
            self._refuse(facts)
        place = torch.device("cpu") if self.on_processor else None
        updates, known = sealed(updates, place), sealed(known, place)
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
            self._refuse(knowledge)
        except (KnowledgeError, UnsupportedError) as refusal:
            return str(refusal)
        return None

    @property
    def searches_images(self) -> bool:
        """True if its claims are images of the generator that the adversary knows, whatever they explain."""
        return "generator" in self.needs

    @property
    def pace(self) -> float:
        """Processor time of a plain gradient that `estimate` counts, in that of one alone, as a rule."""
        return 1.2

    def brief(self, steps: int) -> Attack:
        """This attack with one start of so many steps at most, for controls; itself where that is no setting of it."""
        return self

    def _refuse(self, knowledge: Knowledge) -> None:
        knowledge.require(self.needs, asker=f"the attack {self.name}")
        domain = knowledge.domain
        fits = domain is None or self.claims_embeddings or (domain.vocabulary is not None) is self.claims_tokens
        if domain is not None and not fits:
            held = "ids of tokens, for which there are gradleak.attacks.text" if domain.vocabulary else "no tokens"
            raise UnsupportedError(
                f"the attack {self.name} searches {'tokens' if self.claims_tokens else 'numbers'}, and the examples are {held}"
            )
        self._check(knowledge)

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

"""View of a plan for every audit: the model, the data, the release, and what the adversary is told."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import torch

from gradleak.attacks import Attack
from gradleak.audits.base.adversary import Adversary
from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    Knowledge,
    Objective,
    Release,
    ThreatModel,
    Update,
    derive_generator,
    is_installed,
    refuse_private_data,
)
from gradleak.games import PerturbedGame
from gradleak.results import (
    Count,
    GradleakError,
    NonNegative,
    PlanError,
    Positive,
    Requirement,
    Settings,
    Subject,
    Thresholds,
    Whole,
)
from gradleak.results.errors import shown
from gradleak.scoring import range_ends

# Of a plan: what torch takes, and no negative one.
SEED = Annotated[int, Whole(0, 2**64 - 1)]


@dataclass(frozen=True, kw_only=True)
class PerfectAttackerRule(Settings):
    """Condition on which the perfect attacker (a validation routine that starts from the truth) is run.

    Attributes:
        below: only where exact I²F predicts a pixel RMSE below this.
        max_steps: Levenberg–Marquardt steps at most.
    """

    refused_with: ClassVar[type[GradleakError]] = PlanError
    called: ClassVar[str] = "perfect_attacker"

    below: Positive = 0.05
    max_steps: Count = 30


@dataclass(frozen=True, kw_only=True)
class Controls(Settings):
    """The controls of an audit.

    Attributes:
        attack: name of the plan's attack that the planted leak is run with, of sentences before all others; None for the
            first one.
        positive: whether planted leaks are run.
        negative: whether noise controls are run.
    """

    called: ClassVar[str] = "controls"

    attack: str | None = None
    positive: bool = True
    negative: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenario(Settings):
    """One release map, the batches that go through it, and the attacks on the updates.

    Attributes:
        name: unique in the plan.
        release: protocol and defenses.
        examples: indices into `Site.batches`.
        attacks: for each attack name, the indices of the batches whose update it attacks.
        perfect_attacker: run the validation routine where the rule says so; None for never.
        updates: updates that were really sent, by batch index; others are drawn from the release.
        adversaries: against whom the defenses are tested: one who knows them, one who does not, or both; None for both
            where the threat model discloses them, else for the static one that it describes.
        reference: whether the scenario is there to compare with: no verdict on the run and no gate counts it.
        require: the verdict that a gate requires of it; None for none but what `--fail-on` names.
        perturbation: adversarial perturbation behind the release in inference games, which have the public rows that it is
            trained on; a scenario that has it releases no example and attacks none.
    """

    refused_with: ClassVar[type[GradleakError]] = PlanError
    called: ClassVar[str] = "scenario"

    name: str
    release: Release
    examples: Sequence[int]
    attacks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    perfect_attacker: PerfectAttackerRule | None = None
    updates: Mapping[int, Update] = field(default_factory=dict)
    adversaries: Sequence[Adversary] | None = None
    reference: bool = False
    require: Requirement | None = None
    perturbation: PerturbedGame | None = None

    @cached_property
    def members(self) -> frozenset[int]:
        """The examples, for asking whether one is among them."""
        return frozenset(self.examples)

    def only(self, indices: frozenset[int]) -> Scenario:
        """The same for these batches alone.

        Args:
            indices: of batches.
        """
        narrow = copy(self)
        narrow.__dict__.update(
            examples=tuple(sorted(indices & self.members)),
            attacks={},
            updates={index: self.updates[index] for index in indices if index in self.updates},
        )
        narrow.__dict__.pop("members", None)
        return narrow


class Held(Sequence[Batch]):
    """Some of the batches of a plan, under their indices."""

    def __init__(self, count: int, batches: Mapping[int, Batch]) -> None:
        """Made of the number of all batches, and those that are held by index."""
        self._count, self._batches = count, dict(batches)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        """The batch of that index.

        Raises:
            LookupError: for one that is not held.
        """
        if index not in self._batches:
            raise LookupError(f"batch {index}: this task holds {', '.join(map(str, self._batches))} alone")
        return self._batches[index]

    def alone(self) -> Held:
        """The same batches without memory that they share with others."""
        return Held(self._count, {index: _alone(batch) for index, batch in self._batches.items()})


def _alone(batch: Batch) -> Batch:
    parts = (batch.inputs, batch.targets, batch.sensitive)
    inputs, targets, sensitive = (part if part is None or _owns_memory(part) else part.clone() for part in parts)
    assert inputs is not None
    assert targets is not None
    return replace(batch, inputs=inputs, targets=targets, sensitive=sensitive)


def _owns_memory(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size()


@dataclass(frozen=True, kw_only=True, eq=False)
class Site(Settings):
    """Subject of a plan, without its audits.

    Attributes:
        name: of the run.
        seed: all randomness derives from it.
        objective: the client's loss at the audited parameters.
        batches: the private batches; each is released by itself.
        scenarios: what is released and attacked.
        threat: what the adversary is told.
        thresholds: when something counts as leaking.
        controls: which controls run.
        pictures: whether originals and reconstructions are saved beside the record.
        save_updates: whether the released updates are saved beside the record.
        checkpoint_seconds: at least so long between two states that an attack leaves under `checkpoints/` beside the
            record, from which a killed run goes on; None for none. A state holds guesses, which may be private data.
        max_bytes: memory budget of the closed-form operators.
        domain_guessed: whether the domain of the batches was guessed from their values.
    """

    refused_with: ClassVar[type[GradleakError]] = PlanError
    called: ClassVar[str] = "plan"

    name: str
    seed: SEED
    objective: Objective
    batches: Sequence[Batch]
    scenarios: Sequence[Scenario]
    threat: ThreatModel = field(default_factory=HonestButCurious)
    thresholds: Thresholds = field(default_factory=Thresholds)
    controls: Controls = field(default_factory=Controls)
    pictures: bool = False
    save_updates: bool = False
    checkpoint_seconds: NonNegative | None = None
    max_bytes: Count = 2**30
    domain_guessed: bool = False
    _searched: bool = field(default=False, init=False, repr=False)

    def __repr__(self) -> str:
        """One line: name and sizes."""
        return (
            f"Site({self.name!r}, {self.objective!r}, batches: {len(self.batches)}, scenarios: {len(self.scenarios)})"
        )

    def scenario(self, name: str) -> Scenario:
        """The scenario of that name.

        Raises:
            PlanError: naming the nearest one.
        """
        if name not in self._named:
            raise PlanError(unknown("scenario", name, self._named))
        return self._named[name]

    @cached_property
    def _named(self) -> Mapping[str, Scenario]:
        return {scenario.name: scenario for scenario in self.scenarios}

    @cached_property
    def beside(self) -> Sequence[Batch]:
        """The batches that tell of the declared range what all of them do, for `range_note`."""
        return range_ends(self.batches)

    def only(self, indices: Sequence[int]) -> Site:
        """The same with these batches alone, under their indices: what a task on them takes along of thousands.

        Args:
            indices: of batches.
        """
        held = frozenset(indices)
        narrow = copy(self)
        narrow.__dict__.update(
            batches=Held(len(self.batches), {index: self.batches[index] for index in indices}),
            scenarios=tuple(scenario.only(held) for scenario in self.scenarios),
            beside=self.beside,
        )
        narrow.__dict__.pop("_named", None)
        return narrow

    def for_another_process(self) -> Site:
        """The same with batches that hold no memory but their own: a view takes that of all rows along, once a batch."""
        alone = copy(self)
        if isinstance(self.batches, Held):
            batches: Sequence[Batch] = self.batches.alone()
        else:
            batches = [_alone(batch) for batch in self.batches]
        alone.__dict__.update(batches=batches, beside=[_alone(batch) for batch in self.beside])
        return alone

    def tensors(self) -> Iterator[torch.Tensor]:
        """The batches and the updates that were sent, which few tasks hold."""
        for batch in (*self.batches, *self.beside):
            yield from (part for part in (batch.inputs, batch.targets, batch.sensitive) if part is not None)
        for scenario in self.scenarios:
            for update in scenario.updates.values():
                yield from update.tensors.values()

    def subject(self, index: int) -> Subject:
        """The example or batch of that index, as findings name it."""
        return Subject(noun="batch" if self.batches[index].size > 1 else "example", name=str(index))

    def withheld(self, scenario: Scenario, attack: Attack) -> list[bool]:
        """The runs of an attack on each update of a scenario: whether the adversary is not told of the defenses.

        One run of the plan's adversary, and where that is told of defenses a second, static one beside it, unless the
        scenario says otherwise. The two differ in nothing else: same update, same generator.
        """
        if not scenario.release.defenses or not attack.reads_update:
            return [False]
        if self.knowledge(scenario, scenario.examples[0]).defenses is None:
            return [False]
        chosen = scenario.adversaries or tuple(Adversary)
        return [adversary is Adversary.STATIC for adversary in Adversary if adversary in chosen]

    def knowledge(self, scenario: Scenario, index: int, *, withheld: bool = False) -> Knowledge:
        """Knowledge that the adversary has of one batch's release.

        Args:
            scenario: of the plan.
            index: of the batch.
            withheld: whether the defenses are kept from it, whatever the threat model discloses.

        Raises:
            InputError: if private data can be reached in it.
        """
        self.search()
        known = self.threat.facts(self.objective, scenario.release, self.batches[index])
        # Protocol and defenses may have seen the batch since the search.
        refuse_private_data([Knowledge(protocol=known.protocol, defenses=known.defenses)], [self.batches[index]])
        return Adversary.STATIC.of(known) if withheld else known

    def search(self) -> None:
        """Search everything that attacks receive for the data of all batches; once a run.

        Before that the loss of one batch of each shape is evaluated, and released where protocol or defenses are of the
        user's own making: code may keep what it sees.

        Raises:
            InputError: naming the place where private data were found.
        """
        if self._searched:
            return
        shapes = {(batch.inputs.shape, batch.targets.shape): place for place, batch in enumerate(self.batches)}
        known = []
        for place in shapes.values():
            batch = self.batches[place].to(self.objective.dtype)
            # Whoever needs the numbers meets what is raised here.
            with suppress(GradleakError, RuntimeError, ValueError, TypeError, LookupError):
                self.objective.loss(self.objective.params, batch)
            for scenario in self.scenarios:
                parts = (scenario.release.protocol, *scenario.release.defenses)
                if not all(is_installed(type(part).__module__) for part in parts):
                    with suppress(GradleakError, RuntimeError, ValueError, TypeError, LookupError):
                        scenario.release(self.objective, batch, derive_generator(self.seed, "search"))
                known.append(self.threat.facts(self.objective, scenario.release, self.batches[place]))
        given = [update for scenario in self.scenarios for update in scenario.updates.values()]
        # An attack is there to find the data in the tensors; nothing else of an update may hold them.
        bare = [("update", replace(update, tensors={"none": torch.zeros(1)})) for update in given]
        refuse_private_data(known, self.batches, bare)
        object.__setattr__(self, "_searched", True)

    def released(self, scenario: Scenario, index: int) -> Update:
        """The update of one batch under one scenario: the one that was given, else drawn; the same in every process.

        It counts as what the scenario's protocol makes, whatever kind the client says it is.
        """
        if index in scenario.updates:
            return replace(scenario.updates[index].align(self.objective), kind=scenario.release.protocol.kind)
        generator = derive_generator(self.seed, "release", scenario.name, internal_example(index))
        return scenario.release(self.objective, self.batches[index], generator)

    def domain(self, index: int) -> Domain:
        """The stated domain of a batch, or one guessed from its data."""
        return domain_of(self.batches[index])

    def without_private(self) -> Site:
        """The same without batches and given updates, for what has rows of its own."""
        return replace(self, batches=(), scenarios=[replace(one, updates={}) for one in self.scenarios])


def released_by(scenarios: Sequence[Scenario]) -> dict[int, list[Scenario]]:
    """The scenarios that release a batch, by its index, in the order of the batches.

    Args:
        scenarios: in the order of the plan.
    """
    found: dict[int, list[Scenario]] = {}
    for scenario in scenarios:
        for index in scenario.examples:
            found.setdefault(index, []).append(scenario)
    return dict(sorted(found.items()))


def internal_example(index: int) -> str:
    """The name of a batch in seeds, items and file names, whatever people call it."""
    return f"example {index}"


def domain_of(batch: Batch) -> Domain:
    """The stated domain of a batch, or one guessed from its data."""
    return batch.domain or Domain.guess(batch.inputs)


def attack_generator(seed: int, scenario: str, index: int, attack: str) -> torch.Generator:
    """The generator that an audit gives to an attack, so that the attack can be repeated from a saved update.

    The adaptive and the static adversary start alike: what differs between them is what they know.
    """
    return derive_generator(seed, "attack", scenario, internal_example(index), attack)


def unknown(what: str, name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """One line for a name that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    allowed = f"expected one of {', '.join(known)}" if known else "none is allowed here"
    return f"unknown {what.removesuffix('s')} {shown(name)}; {hint}{allowed}"

"""The engine of gradient inversion, composed of parts, and presets that compose it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.matching import CosineDistance, Matching
from gradleak.attacks.inversion.optimizers import Adam, Iterations, Optimizer, SearchStage
from gradleak.attacks.inversion.pooling import Pooling
from gradleak.attacks.inversion.priors import Prior
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy, Problem, check_generator, check_labels, readable
from gradleak.attacks.inversion.reading import LocalTraining, draws_of
from gradleak.attacks.inversion.search import Search
from gradleak.attacks.inversion.sentences import as_numbers, has_sentences
from gradleak.attacks.inversion.variables import Pixels, Variables
from gradleak.core import HALF, ImageGenerator, Knowledge, Objective, Reconstruction, Update, describe
from gradleak.results import GEIPING_2020, Citation, Count, InputError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Inversion(Attack):
    """Inputs (and labels) found by minimizing matching + priors from random starts, in lockstep.

    A guess z gives inputs and labels, these the released mean g (known defenses included), and z moves down the
    gradient of matching(g, g*) + Σ prior(inputs), inside the box where the variables ask for one. Per start the iterate
    with the smallest matching loss is kept; over starts, too. No error against the truth exists here.

    A start that meets NaN or infinity goes back to its best iterate with half the step and a fresh optimizer state; if
    it never had a finite value it cannot be saved, and if no start had one the outcome is `not_finite`.

    Outcomes: `converged` where the matching loss is at round-off (the guess explains the update), `not_identifiable`
    where a random first guess is there already (dead units: any input explains the update), `plateau` where `patience`
    ran out, else `budget_spent`. None of them says that the inputs are right, and only the first two that the update is
    explained; `details["relative_residual"]` says how well it is.

    With `compile` the derivative goes through `torch.compile` first, as one graph or not at all: 34 seconds for one start
    of the 28×28 LeNet, for iterations 1.5 times as fast, and 44 for eight starts, 2.3 times as fast, so that it pays from
    25,000 and 6,000 iterations on. A model of more than 2¹⁸ shared numbers keeps its graph on a processor, compile or not:
    a ResNet-18 would take 140 seconds and be slower for them. Values differ by round-off; `details["route"]` says what ran.

    With `Latents` or `LatentsAndWeights` inputs are those of a generator (`Knowledge.generator`), a stage moves one part
    of the unknowns and holds the other, and all stages are repeated `rounds` times, each beginning with what the one
    before handed on: its own best iterate, or what its populations hand on. A schedule of steps runs over all rounds of
    its stage. `details["samples"]` has, for each round of populations, the matching loss of the sample that was handed
    on and of the best candidate.

    **Cost**: 3 plain gradients an evaluation and start (forward and backward pass for g, and differentiating both),
    1 a candidate of a population (g alone), times what the protocol's release costs: this rule is what
    `plain_gradients` counts, whatever the machine needed. What a generator costs is not in it.
    Measured: ResNet-18, one start, 2.5 to 3.1 (kept graph of g, see `Route`); the 28×28 LeNet of the I²F paper 2.8 for
    one start, in lockstep 0.7 at 8 starts and 0.4 at 64. Memory: about 8 updates a start.

    Attributes:
        matching: distance of updates.
        variables: how inputs are searched; unknown labels are added to it.
        priors: penalties on the guess.
        stages: stretches of the search, in order; each begins at the best iterates of the one before.
        rounds: how often the stages are gone through.
        restarts: starts a target.
        labels: what is done about labels that are not disclosed.
        local_training: how several local steps are read: unrolled, or as the average gradient (AGA).
        patience: a target stops after so many evaluations in which none of its starts improved by 1e-3 relative; None
            never.
        max_bytes: memory for updates in lockstep; more starts than fit are done in chunks of the same loop.
        compile: whether `torch.compile` is used where it pays.
        pooling: how rows of a table are pooled over starts; None claims the best start.
    """

    name: ClassVar[str] = "inversion"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (GEIPING_2020,)
    summary: ClassVar[str] = "Gradient inversion composed by hand from matching, variables, priors and optimizers."
    claims_embeddings: ClassVar[bool] = True

    matching: Matching = field(default_factory=CosineDistance)
    variables: Variables = field(default_factory=Pixels)
    priors: Sequence[Prior] = ()
    stages: Sequence[SearchStage] = field(
        default_factory=lambda: (SearchStage(optimizer=Adam(signed=True), iterations=1000),)
    )
    rounds: Iterations = 1
    restarts: Count = 1
    labels: LabelPolicy = LabelPolicy.RECOVER
    local_training: LocalTraining = LocalTraining.UNROLLED
    patience: Count | None = None
    max_bytes: Count = 2**30
    compile: bool = False
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if not self.stages:
            raise InputError(f"{type(self).__name__}.stages: expected at least one stage, got none")
        self._check_parts()

    def _check_parts(self) -> None:
        """Refuse stages and priors of parts that the variables do not have, and a compiler with nothing to compile."""
        known, name = self.variables.parts, type(self.variables).__name__
        asked = {f"a stage moves {stage.part.value}": stage.part for stage in self.stages}
        asked |= {
            f"{type(prior).__name__} looks at {prior.reads.value}": prior.reads for prior in self.priors if prior.reads
        }
        for what, part in asked.items():
            if part not in known:
                raise InputError(
                    f"{type(self).__name__}: {what}, which {name} does not have; use Latents or LatentsAndWeights"
                )
        if self.compile and not any(isinstance(stage.optimizer, Optimizer) for stage in self.stages):
            raise InputError(
                f"{type(self).__name__}: compile=True compiles the derivative, and populations take none; leave it out"
            )

    @property
    def searches_images(self) -> bool:
        """True if the variables are a generator's."""
        return super().searches_images or self.variables.needs_generator

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients if no start stops early."""
        knowledge = as_numbers(knowledge)
        release = 1.0
        if knowledge.protocol is not None:
            knowledge.require(("batch_size",), asker=f"the cost of {self.name}")
            assert knowledge.batch_size is not None
            unrolled = self.local_training is LocalTraining.UNROLLED
            release = knowledge.protocol.plain_gradients(knowledge.batch_size) if unrolled else 1.0
        if knowledge.objective is not None:
            release *= len(draws_of(knowledge, knowledge.objective, knowledge.targets))
        return release * self.restarts * self.rounds * sum(stage.passes for stage in self.stages)

    def _check(self, knowledge: Knowledge) -> None:
        """Refuse defenses that can be neither followed nor read backward, and labels that nobody can have."""
        tokens = has_sentences(knowledge)
        if tokens is not self.variables.reads_tokens:
            raise UnsupportedError(
                f"{self.name}: expected {'Embeddings' if tokens else 'variables for numbers'} where the examples are "
                f"{'sentences' if tokens else 'numbers'}, got {type(self.variables).__name__}"
            )
        check_labels(knowledge, self.labels)
        knowledge = as_numbers(knowledge)
        readable(knowledge)
        check_generator(knowledge, self.variables, self.labels)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        return self._recover_many([update], [knowledge], [generator], monitor)[0]

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> list[Reconstruction]:
        wide = _Wide()
        problems = [
            Problem.pose(
                update,
                wide(facts),
                pixels=self.variables,
                policy=self.labels,
                local_training=self.local_training,
            )
            for update, facts in zip(updates, knowledge, strict=True)
        ]
        groups: dict[object, list[int]] = {}
        results: dict[int, Reconstruction] = {}
        for place, problem in enumerate(problems):
            if bool(problem.likely(self.matching).looked_at(problem.target).any()):
                groups.setdefault(_group_key(problem), []).append(place)
            else:
                results[place] = problem.nothing_to_match()
        parts = [monitor.part(number) for number in range(len(groups))]
        for part, places in zip(parts, groups.values(), strict=True):
            search = Search(self, [problems[place] for place in places], [generators[place] for place in places], part)
            starts = [
                problems[place].variables.initialize(problems[place].space, self.restarts, generators[place])
                for place in places
            ]
            results |= dict(zip(places, search.run(torch.cat(starts)), strict=True))
        # Only now: a kill between two groups must not send the first one back to its beginning.
        for part in parts:
            if part.checkpoint is not None:
                part.checkpoint.end()
        return [wide.noted(results[place], facts) for place, facts in enumerate(knowledge)]


class _Wide:
    """Knowledge with a float32 objective in place of one in half precision, whose second derivatives are no numbers.

    The update stays as it came: its format tells the search how far it was rounded. A generator comes in the dtype and
    on the device of the search.
    """

    def __init__(self) -> None:
        self._objectives: dict[int, Objective] = {}
        self._generators: dict[tuple[int, torch.dtype, torch.device], ImageGenerator] = {}

    def __call__(self, knowledge: Knowledge) -> Knowledge:
        """The knowledge to search with; the same objective for the same objective, and so for generators."""
        objective, generator = knowledge.objective, knowledge.generator
        if objective is None:
            return knowledge
        if objective.dtype in HALF:
            objective = self._objectives.setdefault(id(objective), objective.to(torch.float32))
            knowledge = replace(knowledge, objective=objective)
        if generator is not None and (generator.dtype, generator.device) != (objective.dtype, objective.device):
            key = (id(generator), objective.dtype, objective.device)
            if key not in self._generators:
                self._generators[key] = generator.to(objective.dtype).to(objective.device)
            knowledge = replace(knowledge, generator=self._generators[key])
        return knowledge

    def noted(self, found: Reconstruction, knowledge: Knowledge) -> Reconstruction:
        """The claim with a note where it was computed in another format than the client's."""
        if knowledge.objective is None or id(knowledge.objective) not in self._objectives:
            return found
        text = f"computed in float32: {describe(knowledge.objective.dtype)} is too short for second derivatives"
        return replace(found, note="; ".join(part for part in (found.note, text) if part))


def _group_key(problem: Problem) -> object:
    """Problems that differ in nothing but target and label values run in one lockstep group."""
    shape = None if problem.labels is None else (tuple(problem.labels.shape), problem.labels.dtype)
    release = (problem.release.protocol, tuple(problem.release.defenses), tuple(problem.reading.last))
    sentences = problem.space.sentences
    return (
        # Of sentences the loss at embeddings is made for each, and the same for what stands below.
        id(problem.objective if sentences is None else sentences.model),
        repr(release),
        problem.space.domain,
        problem.space.batch_size,
        shape,
        id(problem.statistics),
        id(problem.space.generator),
        None if sentences is None else tuple(sentences.known.reshape(-1).tolist()),
        None if sentences is None or not sentences.foretold else tuple(sentences.candidates.tolist()),
    )


class Preset(Attack):
    """An attack that is a preset of `Inversion`; authors write `compose` alone.

    Settings are checked by how they are annotated (`Iterations`, `Positive` ...), so that messages name them as the user wrote
    them, not the parts they end up in.
    """

    def __post_init__(self) -> None:
        """Hold the fields against their annotations, and compose once, which refuses what the parts refuse."""
        super().__post_init__()
        self.compose()

    @abstractmethod
    def compose(self) -> Inversion:
        """The composition that runs."""

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients if no start stops early."""
        return self.compose().estimate(knowledge)

    def _check(self, knowledge: Knowledge) -> None:
        """As the composition."""
        self.compose()._check(knowledge)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        return self.compose()._recover(update, knowledge, generator, monitor)

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> list[Reconstruction]:
        return self.compose()._recover_many(updates, knowledge, generators, monitor)

"""Levenberg-Marquardt on the residual of the update: the strongest attack on smooth and on small ReLU networks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.embeddings import Embeddings
from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.gauss_newton.descent import Descent, Steps, advance
from gradleak.attacks.inversion.gauss_newton.ended import Ended
from gradleak.attacks.inversion.gauss_newton.gates import GateSystem, gate_system
from gradleak.attacks.inversion.gauss_newton.krylov_steps import Choice, choose_steps
from gradleak.attacks.inversion.gauss_newton.read_start import read_start
from gradleak.attacks.inversion.gauss_newton.residual_system import (
    PLAIN_GRADIENTS_PER_PRODUCT,
    Cost,
    OutOfBudgetError,
    ResidualSystem,
    release_cost,
)
from gradleak.attacks.inversion.gauss_newton.spectral import (
    SharedLimit,
    refuse_rule,
    spectral_noise,
    without_spectral_noise,
)
from gradleak.attacks.inversion.gauss_newton.words import better_words
from gradleak.attacks.inversion.inverting_gradients import InvertingGradients
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy, Problem, check_labels, readable
from gradleak.attacks.inversion.sentences import as_numbers, foretold, has_sentences
from gradleak.attacks.inversion.tag import TAG
from gradleak.attacks.inversion.variables import Pixels, Variables
from gradleak.core import NO_TOKEN, Batch, Knowledge, Reconstruction, Update
from gradleak.results import (
    LEVENBERG_MARQUARDT,
    ZHANG_2023,
    ZHAO_2020,
    Citation,
    Count,
    Natural,
    Positive,
    UnsupportedError,
)

READINGS = 3
"""How often words are read anew where targets are words that nobody told."""

LOCKSTEP_UNKNOWNS = 384
"""Starts go side by side while their unknowns together are no more: beyond it one start fills a block of columns."""


@dataclass(frozen=True, kw_only=True)
class GaussNewton(Attack):
    """Inputs whose released mean is the update, by Levenberg–Marquardt in float64.

    With r(z) = g(z) − g* (divided by the noise's std where it is known and differs between entries) and A = ∂g/∂z, a
    step solves (AᵀA + μD) h = −Aᵀr, D = diag(AᵀA), inside the box: entries that would leave it stop there, and the
    others are solved for again. It is taken if ‖r‖ falls, and μ follows the gain ratio. g includes the defenses that
    are known, so A does too. Unknown labels are further unknowns (`TargetForm`). When the residual reaches its floor, a
    few steps with the last factor follow.

    `steps` says how a step is computed: `DenseSteps` with A as a matrix, `SketchedSteps` and `RowSampledSteps` with
    part of its rows, `KrylovSteps` with products alone. None chooses by size and memory; details say what and why.

    ReLU networks have gradients that jump where a unit switches, and damped steps stop at the jumps. There the first start is
    what `Peel` reads of the update, where it can. Every other one goes first through steps in which the gates of uncertain
    units are unknowns, too (`GateSystem`), without jumps, and then on with the network as it is.

    The floor is the round-off of the update (16 eps relative, or, where steps stop helping, what the release's own
    computation rounds at the guess, measured by repeating it in float32), or, for known Gaussian noise, the residual
    that noise leaves at the minimizer: ‖r‖² ≤ σ²(P − n)(1 + 4√(2/(P − n))). Further starts follow only if the first
    one ended above the floor, several of them side by side where the unknowns are few.

    Outcomes: `converged` where the residual is at the floor and AᵀA has full rank there, so that no other input nearby
    explains the update as well (`identifiability` has the threshold); `not_identifiable` where the residual is at the
    floor and it has not, with the null dimension in the note and the details, or where the random start is already
    there; `plateau` at a stationary point above the floor (a local minimum, or noise that the adversary does not know),
    where no step helps, or where the residual stopped falling; else `budget_spent`, also where the residual is at the
    floor and the rank could not be resolved (Krylov steps).

    Defenses that are known and read entry by entry (pruning, signs, rounding) bound the update (`Reading`); the rule of
    known spectral noise is undone (`without_spectral_noise`). Of sentences the embeddings are searched, `read_words` reads the
    words, and a start goes on from them where they explain more: `converged` says that no other word explains the update.
    Where targets are the words of a language model, and nobody told them, `TAG` finds both first; its words are the targets.

    **Assumptions**: g is differentiable; quadratic convergence needs a smooth network (or the right gates) and an
    identifiable input. Rank is a statement about the neighborhood: inputs far away that explain the update too (the
    examples of a batch in another order, above all) are not looked for.

    **Cost**: counted as two plain gradients a product with A or Aᵀ, one a trial, two more a step, each times what the
    release takes (T for T local steps of the size of the batch): 2n + 3 a dense step of n unknowns. Linear algebra
    (P·n² multiplications for the Gram matrix, n³/3 for a factor) is not a plain gradient and is not counted. In time, a
    dense step on the 32×32 color LeNet is as long as 3,200 plain gradients, linear algebra included, where 6,147 are
    counted; an image takes 8 to 17 of them. Details hold the numbers of releases and products. How many trials a step
    takes is not known beforehand: `max_plain_gradients` is the way to give it what another attack gets. With it, nothing is
    computed that would pass the limit, the best guess so far is claimed, and further starts, however many are allowed,
    follow as long as a warm start and a first step of it still fit. The searches that undo spectral noise share it.

    **Source**: Moré 1978; gain-ratio update of μ: Nielsen 1999, "Damping parameter in Marquardt's method". Zhang et al.
    2023 assume an attacker that finds this minimizer. Labels: Zhao et al. 2020. Free gates are ours.

    Attributes:
        max_steps: linearizations a start may take; as many again with free gates.
        starts: starts at most, the first uniform over the domain's range.
        warm_iterations: each further start begins where `InvertingGradients` is after so many iterations from a random
            start; 0 for a uniform start again.
        damping: initial μ, relative to D.
        box: whether inputs stay in the domain's range.
        labels: what is done about labels that are not disclosed.
        steps: how steps are computed, or None to choose by size.
        peel: whether the first start of ReLU networks is read layer by layer, where `Peel` can.
        free_gates: whether ReLU networks go through a stretch with free gates.
        max_unknowns: most unknowns, gates included, for which a matrix is factored where no steps are named.
        max_bytes: memory for a block of Jacobian columns, besides the Jacobian.
        max_jacobian_bytes: memory for Jacobian and matrices.
        max_plain_gradients: plain gradients that a call may take, all starts and the look at the rank included; None for
            as many as steps and starts need.
    """

    name: ClassVar[str] = "gauss_newton"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (LEVENBERG_MARQUARDT, ZHANG_2023, ZHAO_2020)
    summary: ClassVar[str] = (
        "Levenberg-Marquardt on the residual of the update, in float64: dense, sketched or by products."
    )

    claims_embeddings: ClassVar[bool] = True

    max_steps: Count = 60
    starts: Count = 2
    warm_iterations: Natural = 500
    damping: Positive = 1e-4
    box: bool = True
    labels: LabelPolicy = LabelPolicy.RECOVER
    steps: Steps | None = None
    peel: bool = True
    free_gates: bool = True
    max_unknowns: Count = 4096
    max_bytes: Count = 2**30
    max_jacobian_bytes: Count = 4 * 2**30
    max_plain_gradients: Positive | None = None

    @property
    def pace(self) -> float:
        """Many columns come at the price of few, and a search that succeeds ends long before 60 steps."""
        return 0.25 * min(1.0, 25 / self.max_steps)

    def brief(self, steps: int) -> GaussNewton:
        """One start of at most so many steps."""
        return replace(self, max_steps=min(steps, self.max_steps), starts=1)

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients of one start that takes all its steps, without free gates, or the limit if less.

        Raises:
            KnowledgeError: if a fact that it depends on is not disclosed.
            UnsupportedError: if the named steps do not fit the memory.
        """
        knowledge.require(NEEDS, asker="the cost of gauss_newton")
        told, told_by_words = knowledge, has_sentences(knowledge) and foretold(knowledge)
        knowledge = as_numbers(knowledge)
        assert knowledge.objective is not None
        assert knowledge.domain is not None
        assert knowledge.batch_size is not None
        entries, unknowns = knowledge.objective.size, knowledge.domain.size * knowledge.batch_size
        products = self._choose(entries, unknowns).steps.products(entries, unknowns)
        release = release_cost(knowledge)
        whole = self.max_steps * release * (PLAIN_GRADIENTS_PER_PRODUCT * products + 3)
        if told_by_words:
            whole += TAG(iterations=self._matching_steps(told)).estimate(told)
        return whole if self.max_plain_gradients is None else min(whole, self.max_plain_gradients)

    def _choose(self, entries: int, unknowns: int) -> Choice:
        return choose_steps(
            self.steps,
            entries=entries,
            unknowns=unknowns,
            max_unknowns=self.max_unknowns,
            max_bytes=self.max_jacobian_bytes,
        )

    def _check(self, knowledge: Knowledge) -> None:
        """Refuse defenses that can be neither followed nor read backward, and labels that nobody can have."""
        refuse_rule(knowledge)
        check_labels(knowledge, LabelPolicy(self.labels))
        knowledge = as_numbers(knowledge)
        readable(knowledge)
        limit = self.max_plain_gradients
        if limit is not None and limit < release_cost(knowledge):
            raise UnsupportedError(
                f"gauss_newton: one look at a guess costs {release_cost(knowledge):g} plain gradients here, more than "
                f"max_plain_gradients={limit:g}; raise it, or set None"
            )
        if spectral_noise(knowledge) is not None:
            shared = self._shared_limit(knowledge)
            if shared.limit is not None and shared.limit < shared.least:
                raise UnsupportedError(
                    "gauss_newton: undoing spectral noise takes three searches and two spectra, at least "
                    f"{shared.least:,.0f} plain gradients, more than max_plain_gradients={shared.limit:g}; raise it, or set "
                    "None"
                )

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        if spectral_noise(knowledge) is None:
            return self._search(update, knowledge, generator, monitor)

        def read(seen: Update, known: Knowledge, most: float | None) -> Reconstruction:
            free = replace(self, box=False, max_plain_gradients=most)
            return free._search(seen, known, generator, monitor)

        def go_on(seen: Update, known: Knowledge, guess: Batch, most: float | None) -> Reconstruction:
            return search_from(replace(self, max_plain_gradients=most), seen, known, guess, generator, monitor)

        return without_spectral_noise(read, go_on, update, knowledge, generator, self._shared_limit(knowledge))

    def _shared_limit(self, knowledge: Knowledge) -> SharedLimit:
        """The limit of the searches that undo spectral noise."""
        step = replace(self, max_steps=1, max_plain_gradients=None).estimate(knowledge)
        return SharedLimit.of(knowledge, limit=self.max_plain_gradients, step=step, release=release_cost(knowledge))

    def _search(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        """From random starts, or from what gradient matching finds of a language model's words."""
        if has_sentences(knowledge) and foretold(knowledge):
            return self._from_matching(update, knowledge, generator, monitor)
        pixels: Variables = Embeddings(box=self.box) if has_sentences(knowledge) else Pixels(box=self.box)
        problem = Problem.pose(update, knowledge, pixels=pixels, policy=self.labels, dtype=torch.float64)
        if not bool(problem.target.any()):
            return problem.nothing_to_match()
        if not problem.unknowns:
            # Special tokens at every place: what is claimed is what was known.
            return TAG(iterations=1).compose()._recover(update, knowledge, generator, monitor)
        return _Attempt(self, problem, update, knowledge, generator, monitor).run()

    def _from_matching(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        """From embeddings and targets that gradient matching finds, up to `starts` times."""
        matching = TAG(iterations=self._matching_steps(knowledge)).compose()
        step, limit, spent = matching.estimate(knowledge), self.max_plain_gradients, 0.0
        claims: list[Reconstruction] = []
        for _ in range(self.starts):
            if claims and limit is not None and spent + 2 * step > limit:
                break
            found = matching._recover(update, knowledge, generator, Monitor())
            spent += found.plain_gradients
            found, spent, ended = self._from_words(found, spent, update, knowledge, generator, monitor)
            claims.append(found)
            if ended:
                break
        best = min(claims, key=lambda claim: math.inf if claim.loss is None else claim.loss)
        return replace(best, plain_gradients=spent)

    def _from_words(
        self,
        found: Reconstruction,
        spent: float,
        update: Update,
        knowledge: Knowledge,
        generator: torch.Generator,
        monitor: Monitor,
    ) -> tuple[Reconstruction, float, bool]:
        """The claim from another's embeddings, its words as targets, and again while that changes words; cost so far; the end?"""
        config = replace(self, free_gates=False, starts=1)
        for _ in range(READINGS):
            if found.tokens is None or found.inputs is None:
                break
            targets = found.tokens.masked_fill(found.tokens == NO_TOKEN, -100)
            variables = Embeddings(box=self.box)
            problem = Problem.pose(
                update, knowledge, pixels=variables, policy=self.labels, dtype=torch.float64, words=targets
            )
            if not problem.unknowns:
                break
            attempt = _Attempt(config, problem, update, knowledge, generator, monitor)
            attempt.cost.warm = spent
            point = variables.encode(problem.space, found.inputs, targets)
            before, found = found, attempt.run(point.clamp(attempt.system.low, attempt.system.high))
            spent = found.plain_gradients
            if found.details["at_floor"] or attempt.is_spent:
                return found, spent, True
            if found.tokens is None or before.tokens is None or torch.equal(found.tokens, before.tokens):
                break
        return found, spent, False

    def _matching_steps(self, knowledge: Knowledge) -> int:
        """Iterations of gradient matching before the first step: at most a third of the limit."""
        steps, limit = max(self.warm_iterations, 1), self.max_plain_gradients
        return steps if limit is None else max(1, min(steps, int(limit / (9 * release_cost(knowledge))) - 1))


def search_from(
    config: GaussNewton,
    update: Update,
    knowledge: Knowledge,
    guess: Batch,
    generator: torch.Generator,
    monitor: Monitor,
) -> Reconstruction:
    """The claim of one start at a guess (targets as class indices or soft labels) in place of a random one; no free gates."""
    given = replace(knowledge, targets=guess.targets) if not guess.targets.is_floating_point() else knowledge
    problem = Problem.pose(update, given, pixels=Pixels(box=config.box), policy=config.labels, dtype=torch.float64)
    attempt = _Attempt(replace(config, free_gates=False), problem, update, given, generator, monitor)
    point = problem.variables.encode(problem.space, guess.inputs.to(torch.float64), guess.targets)
    run = attempt._descent(attempt.system, point.clamp(attempt.system.low, attempt.system.high))
    attempt._descend([run])
    return attempt._end([run])


class _Attempt:
    """One call of the attack: its starts, in order, and what is claimed of them."""

    def __init__(
        self,
        config: GaussNewton,
        problem: Problem,
        update: Update,
        knowledge: Knowledge,
        generator: torch.Generator,
        monitor: Monitor,
    ) -> None:
        self.config = config
        self.problem = problem
        self.update = update
        self.knowledge = knowledge
        self.generator = generator
        self.monitor = monitor
        release = problem.release_cost
        # One release is kept back, so that where the budget ends before a first step the start itself can be claimed.
        self.cost = Cost(release_cost=release, limit=config.max_plain_gradients, reserve=release)
        self.is_spent = False
        self.system = ResidualSystem(problem, config.max_bytes, self.cost)
        self.choice = config._choose(self.system.entries, self.system.unknowns)
        self.stretches: list[Descent] = []
        self.gates: GateSystem | None = None
        self.done = 0
        self.random, self.peeled = True, False

    def run(self, first: Tensor | None = None) -> Reconstruction:
        """Start until the update is explained, at first at unknowns (n,) or at random."""
        config = self.config
        if first is None and config.peel:
            first = read_start(self.system, self.update, self.knowledge, config.max_unknowns)
            self.peeled = first is not None
        self.random = first is None
        runs: list[Descent] = []
        if config.free_gates:
            try:
                self.gates = self._gate_system()
            except OutOfBudgetError:
                self.is_spent = True
        for group in self._groups():
            again = bool(runs)
            count = min(group, self._affordable()) if again else group
            if count == 0:
                self.is_spent = True
                break
            if first is not None and not again:
                points = first[None]
            else:
                points = self._warm(count) if again and config.warm_iterations > 0 else self._uniform(count)
            if self.gates is not None and (again or first is None):
                points = torch.stack([self._through_gates(point) for point in points])
            fresh = [self._descent(self.system, point) for point in points]
            runs += fresh
            self._descend(fresh)
            runs += self._from_words(fresh)
            if self.is_spent or any(run.at_floor for run in runs):
                break
        return self._end(runs)

    def _from_words(self, runs: Sequence[Descent]) -> list[Descent]:
        """A run from the words of the best of these, where they explain the update better than it does."""
        onward: list[Descent] = []
        with suppress(OutOfBudgetError):
            point = better_words(self.system, runs)
            onward = [] if point is None else [self._descent(self.system, point)]
            self._descend(onward)
        return onward

    def _end(self, runs: Sequence[Descent]) -> Reconstruction:
        """The claim; of the bare first start where the budget held no step."""
        self.cost.reserve = 0.0
        if self.is_spent and all(run.best is None and not run.note for run in runs):
            with suppress(OutOfBudgetError):
                runs[0].look()
        return Ended(
            system=self.system,
            choice=self.choice,
            runs=runs,
            stretches=self.stretches,
            gates=self.gates,
            is_spent=self.is_spent,
            generator=self.generator,
            random=self.random,
            peeled=self.peeled,
        ).claim()

    def _affordable(self) -> int:
        """Number of further starts that the budget still holds, each to its first trial at least."""
        cost = self.cost
        if cost.limit is None:
            return self.config.starts
        step = cost.price(3, self.choice.steps.products(self.system.entries, self.system.unknowns))
        warm = self._warm_attack().estimate(self.knowledge) if self.config.warm_iterations > 0 else 0.0
        return max(0, int(cost.left // (warm + step)))

    def _groups(self) -> Iterator[int]:
        """Numbers of starts that go side by side: one first, then as many as fit."""
        yield 1
        left = self.config.starts - 1
        size = self.system.unknowns
        most = min(max(1, LOCKSTEP_UNKNOWNS // size), self.system.side_by_side(size))
        if not self.choice.steps.side_by_side or self.gates is not None:
            most = 1
        while left > 0:
            yield min(most, left)
            left -= most

    def _uniform(self, count: int) -> Tensor:
        return self.problem.variables.initialize(self.problem.space, count, self.generator)

    def _warm(self, count: int) -> Tensor:
        """Starts that signed Adam finds from random ones, as unknowns (s, n)."""
        problem = self.problem
        adam = self._warm_attack()
        generators = [self._generator() for _ in range(count)]
        found = adam._recover_many([self.update] * count, [self.knowledge] * count, generators, Monitor())
        points = self._uniform(count)
        for place, claim in enumerate(found):
            self.cost.warm += claim.plain_gradients
            if claim.inputs is not None and claim.targets is not None:
                points[place] = problem.variables.encode(problem.space, claim.inputs, claim.targets)
        return points.clamp(self.system.low, self.system.high)

    def _warm_attack(self) -> Inversion:
        preset = TAG if self.problem.space.sentences is not None else InvertingGradients
        return replace(preset(iterations=self.config.warm_iterations).compose(), labels=self.config.labels)

    def _gate_system(self) -> GateSystem | None:
        config, system = self.config, self.system
        most = config.max_unknowns if self.choice.steps.needs_matrix else system.entries
        return gate_system(self.problem, config.max_bytes, self.cost, most)

    def _through_gates(self, point: Tensor) -> Tensor:
        """Unknowns after a stretch with free gates, without the gates."""
        assert self.gates is not None
        self.gates.restart()
        run = self._descent(self.gates, point)
        self.stretches.append(run)
        self._descend([run])
        return self.gates.plain_part(run.point)

    def _descent(self, system: ResidualSystem, point: Tensor) -> Descent:
        return Descent(
            system=system,
            steps=self.choice.steps,
            point=point,
            damping=self.config.damping,
            generator=self._generator(),
        )

    def _generator(self) -> torch.Generator:
        """A stream of its own, so that what one start draws does not move the next."""
        seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
        return torch.Generator(device=self.generator.device).manual_seed(int(seed))

    def _descend(self, runs: Sequence[Descent]) -> None:
        planned = self.config.starts * self.config.max_steps * (1 if self.gates is None else 2)
        for _ in range(self.config.max_steps):
            live = sum(run.outcome is None for run in runs)
            if not live:
                return
            try:
                advance(runs)
            except OutOfBudgetError:
                self.is_spent = True
                return
            self.done += live
            self.monitor(self.done, self._planned(planned), min(run.loss for run in runs))

    def _planned(self, most: int) -> int:
        """The steps that are to be expected: `most`, or as many as the limit holds of such as were taken."""
        limit, spent = self.cost.limit, self.cost.plain_gradients
        if limit is None or not spent > 0:
            return most
        return min(most, max(self.done, round(self.done * limit / spent)))

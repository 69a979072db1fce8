"""One lockstep loop over targets and starts: gradient inversion as a composition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradleak.attacks.attack import Attack, Progress
from gradleak.attacks.inversion.matching import CosineDistance, Matching
from gradleak.attacks.inversion.optimizers import Adam, Optimizer, Steps
from gradleak.attacks.inversion.priors import Prior
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy, Problem
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import GEIPING_2020, Citation, InputError, Outcome

PLAIN_GRADIENTS_PER_EVALUATION = 3.0
"""One gradient of a matching loss: a forward and backward pass for g, and about two more to differentiate it."""

MAX_ITERATIONS = 10**8
"""More than any search can be meant to take."""

MAX_RECOVERIES = 10
"""How often a start may return from non-finite numbers before it is given up."""

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class SearchStage:
    """One stretch of a search with one optimizer.

    Attributes:
        optimizer: how it steps.
        iterations: iterations of that optimizer, each of `optimizer.evaluations` gradients.
    """

    optimizer: Optimizer
    iterations: int

    def __post_init__(self) -> None:
        """Check the count."""
        if not 1 <= self.iterations <= MAX_ITERATIONS:
            raise InputError(f"SearchStage.iterations: expected 1 to {MAX_ITERATIONS:,}, got {self.iterations}")

    @property
    def evaluations(self) -> int:
        """Gradients of the objective a start takes in this stage."""
        return self.iterations * self.optimizer.evaluations


@dataclass(frozen=True, kw_only=True)
class Inversion(Attack):
    """Inputs (and labels) found by minimizing matching + priors from random starts, in lockstep.

    A guess z gives inputs and labels, these the released mean g (known defenses included), and z moves down the
    gradient of matching(g, g*) + Σ prior(inputs), inside the box where the variables ask for one. Per start the iterate
    with the smallest matching loss is kept; over starts, too. No error against the truth exists here.

    A start that meets NaN or infinity goes back to its best iterate with half the step and a fresh optimizer state; if
    it never had a finite value it cannot be saved, and if no start had one the outcome is `not_finite`.

    Outcomes: `converged` where the matching loss is at round-off (the guess explains the update), `plateau` where
    `patience` ran out, else `budget_spent`. None of them says that the inputs are right, and only the first that the
    update is explained; `details["relative_residual"]` says how well it is.

    **Cost**: 3 plain gradients an evaluation and start (forward and backward pass for g, and differentiating both):
    this rule is what `plain_gradients` counts, whatever the machine needed. In lockstep it is less: on the
    28×28 LeNet of the I²F paper 0.4 to 0.65 plain gradients at 64 starts (4 for one start alone, which is overhead).
    Double backward under vmap was the fastest of three routes measured there; forward over reverse takes 7 % more.
    Memory: about 8 updates a start.

    Attributes:
        matching: distance of updates.
        variables: how inputs are searched; unknown labels are added to it.
        priors: penalties on the guess.
        stages: stretches of the search, in order; each begins at the best iterates of the one before.
        restarts: starts a target.
        labels: what is done about labels that are not disclosed.
        patience: stop after so many evaluations in which no start of the group improved by 1e-3 relative; None never.
        max_bytes: memory for updates in lockstep; more starts than fit are done in chunks of the same loop.
    """

    name: ClassVar[str] = "inversion"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (GEIPING_2020,)
    summary: ClassVar[str] = "Gradient inversion composed by hand from matching, variables, priors and optimizers."

    matching: Matching = field(default_factory=CosineDistance)
    variables: Pixels = field(default_factory=Pixels)
    priors: Sequence[Prior] = ()
    stages: Sequence[SearchStage] = field(
        default_factory=lambda: (SearchStage(optimizer=Adam(signed=True), iterations=1000),)
    )
    restarts: int = 1
    labels: LabelPolicy = LabelPolicy.RECOVER
    patience: int | None = None
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.restarts < 1 or not self.stages:
            raise InputError(
                f"{type(self).__name__}: expected at least one start and one stage, got {self.restarts} and "
                f"{len(self.stages)}"
            )

    @property
    def evaluations(self) -> int:
        """Gradients of the objective a start takes, without the last value."""
        return sum(stage.evaluations for stage in self.stages)

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients if no start stops early."""
        return PLAIN_GRADIENTS_PER_EVALUATION * self.restarts * (self.evaluations + len(self.stages))

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, progress: Progress | None
    ) -> Reconstruction:
        return self._recover_many([update], [knowledge], [generator], progress)[0]

    def _recover_many(
        self,
        updates: Sequence[Update],
        knowledge: Sequence[Knowledge],
        generators: Sequence[torch.Generator],
        progress: Progress | None,
    ) -> list[Reconstruction]:
        problems = [
            Problem.pose(update, facts, pixels=self.variables, policy=self.labels)
            for update, facts in zip(updates, knowledge, strict=True)
        ]
        groups: dict[object, list[int]] = {}
        for place, problem in enumerate(problems):
            groups.setdefault(_group_key(problem), []).append(place)
        results: dict[int, Reconstruction] = {}
        for places in groups.values():
            search = _Search(self, [problems[place] for place in places], progress)
            starts = [
                problems[place].variables.initialize(problems[place].space, self.restarts, generators[place])
                for place in places
            ]
            results |= dict(zip(places, search.run(torch.cat(starts)), strict=True))
        return [results[place] for place in range(len(problems))]


def _group_key(problem: Problem) -> object:
    """Problems that differ in nothing but target and label values run in one lockstep group."""
    shape = None if problem.labels is None else (tuple(problem.labels.shape), problem.labels.dtype)
    release = (problem.release.protocol, tuple(problem.release.defenses))
    return (id(problem.objective), repr(release), problem.space.domain, problem.space.batch_size, shape)


class _Search:
    """The state of one lockstep run: rows are targets × starts, a target's starts side by side."""

    def __init__(self, config: Inversion, problems: Sequence[Problem], progress: Progress | None) -> None:
        self.config = config
        self.problems = problems
        self.problem = problems[0]
        self.progress = progress
        self.evaluations = 0
        self.lockstep = True
        low, high = self.problem.variables.bounds(self.problem.space)
        self.low, self.high = low, high

    def run(self, start: Tensor) -> list[Reconstruction]:
        """Search from rows (s, n) and claim the best of each target."""
        rows = len(start)
        # A single row is 1.35 times faster without vmap (28x28 LeNet).
        self.lockstep = rows > 1
        evaluate = self._evaluator(rows)
        self.best = start.clamp(self.low, self.high)
        self.best_loss = torch.full((rows,), torch.inf, dtype=start.dtype, device=start.device)
        self.recoveries = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self.shrink = torch.ones(rows, dtype=start.dtype, device=start.device)
        self.history: list[Tensor] = []
        self.floor = self._floor()
        self.planned = self.config.evaluations + len(self.config.stages)
        ending = Outcome.BUDGET_SPENT
        for stage in self.config.stages:
            ending = self._stage(stage, evaluate)
            if ending is not Outcome.BUDGET_SPENT:
                break
        self._report(force=True)
        return [self._claim(place, ending) for place in range(len(self.problems))]

    def _stage(self, stage: SearchStage, evaluate: Evaluate) -> Outcome:
        place = self.best
        steps = stage.optimizer.begin(place, stage.evaluations)
        stale, reference = 0, self.best_loss
        for evaluation in range(stage.evaluations + 1):
            gradient, matching, finite = evaluate(place)
            self.evaluations += 1
            better = finite & (matching < self.best_loss)
            self.best = torch.where(better[:, None], place, self.best)
            self.best_loss = torch.where(better, matching, self.best_loss)
            self.history.append(torch.where(finite, matching, self.best_loss))
            self._report()
            if bool((self.best_loss <= self.floor).all()):
                return Outcome.CONVERGED
            if not bool(finite.all()):
                place = self._return(place, finite)
                if bool((self.recoveries > MAX_RECOVERIES).all()):
                    return Outcome.PLATEAU
            improved = bool((self.best_loss < reference * (1 - 1e-3)).any())
            stale = 0 if improved else stale + 1
            reference = torch.minimum(reference, self.best_loss) if improved else reference
            if self.config.patience is not None and stale >= self.config.patience:
                return Outcome.PLATEAU
            if evaluation == stage.evaluations:
                break
            place = self._step(place, gradient, finite, steps, evaluation)
        return Outcome.BUDGET_SPENT

    def _step(self, place: Tensor, gradient: Tensor, finite: Tensor, steps: Steps, evaluation: int) -> Tensor:
        change = steps.direction(torch.where(finite[:, None], gradient, 0.0), evaluation)
        change = torch.where(finite[:, None], change, 0.0) * self.shrink[:, None]
        target = (place + change).clamp(self.low, self.high)
        target = torch.where(torch.isfinite(target).all(dim=1, keepdim=True), target, place)
        steps.moved(target - place)
        if not bool(finite.all()):
            steps.reset(~finite)
        return target

    def _return(self, place: Tensor, finite: Tensor) -> Tensor:
        """Rows without finite numbers go back to their best iterate; their next steps are half as long."""
        self.recoveries = self.recoveries + (~finite).long()
        self.shrink = torch.where(finite, self.shrink, self.shrink / 2)
        return torch.where(finite[:, None], place, self.best)

    def _evaluator(self, rows: int) -> Evaluate:
        """Gradient (s, n), matching loss (s,) and whether both are finite (s,), of rows (s, n)."""
        problem, config = self.problem, self.config
        starts = rows // len(self.problems)
        single = len(self.problems) == 1
        targets = problem.target if single else torch.stack([p.target for p in self.problems])
        labels = problem.labels
        if labels is not None and not single:
            labels = torch.stack([p.labels for p in self.problems if p.labels is not None])
        if not single:
            index = torch.arange(len(self.problems), device=targets.device).repeat_interleave(starts)
            targets = targets[index]
            labels = None if labels is None else labels[index]

        def total(flat: Tensor, target: Tensor, given: Tensor | None) -> tuple[Tensor, Tensor]:
            inputs, classes = problem.variables.decode(problem.space, flat, given)
            matching = config.matching(problem.released(inputs, classes), target)
            penalty = sum((prior(inputs, problem.space.domain) for prior in config.priors), start=0.0)
            return matching + penalty, matching

        derivative = torch.func.grad_and_value(total, has_aux=True)
        over = None if single else 0
        entry = problem.target.numel() * problem.target.element_size()
        chunk = max(1, config.max_bytes // (8 * entry))
        batched = torch.func.vmap(
            derivative,
            in_dims=(0, over, None if labels is None else over),
            randomness="same",
            chunk_size=chunk if chunk < rows else None,
        )

        def loop(flat: Tensor) -> tuple[Tensor, Tensor]:
            found = [
                derivative(
                    row,
                    targets if single else targets[number],
                    labels if single or labels is None else labels[number],
                )
                for number, row in enumerate(flat)
            ]
            return torch.stack([g for g, _ in found]), torch.stack([aux for _, (_, aux) in found])

        def lockstep(flat: Tensor) -> tuple[Tensor, Tensor]:
            try:
                gradient, (_, matching) = batched(flat, targets, labels)
            except (RuntimeError, NotImplementedError):
                # No batching rule, or an in-place change that vmap refuses: the same numbers, row by row. An error of
                # the model itself comes again there.
                if self.evaluations > 0:
                    raise
                self.lockstep = False
                return loop(flat)
            return gradient, matching

        def evaluate(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # Fused attention has no double backward.
            with sdpa_kernel(SDPBackend.MATH):
                return derive(flat)

        def derive(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            gradient, matching = lockstep(flat) if self.lockstep else loop(flat)
            finite = torch.isfinite(matching) & torch.isfinite(gradient).all(dim=1)
            return gradient.detach(), matching.detach(), finite

        return evaluate

    def _floor(self) -> float:
        """The matching loss that round-off alone leaves; both losses are squares of a relative residual."""
        return max(problem.round_off for problem in self.problems) ** 2

    def _report(self, *, force: bool = False) -> None:
        if self.progress is not None and (force or self.evaluations % 10 == 1):
            best = self.best_loss[torch.isfinite(self.best_loss)]
            self.progress(self.evaluations, self.planned, float(best.min()) if len(best) else float("inf"))

    def _claim(self, place: int, ending: Outcome) -> Reconstruction:
        problem, starts = self.problems[place], self.config.restarts
        rows = slice(place * starts, (place + 1) * starts)
        losses = self.best_loss[rows]
        chosen = place * starts + int(losses.argmin())
        loss = float(self.best_loss[chosen])
        cost = PLAIN_GRADIENTS_PER_EVALUATION * self.evaluations * starts
        details = {
            **problem.facts(),
            "route": "lockstep" if self.lockstep else "loop",
            "group": len(self.problems),
            "starts": starts,
            "chosen_start": chosen - place * starts,
            "start_losses": [float(value) if torch.isfinite(value) else None for value in losses],
            "non_finite": int(self.recoveries[rows].sum()),
            "stopped": ending.label,
        }
        if not torch.isfinite(self.best_loss[chosen]):
            return Reconstruction(
                inputs=None,
                targets=None,
                loss=None,
                outcome=Outcome.NOT_FINITE,
                iterations=self.evaluations,
                plain_gradients=cost,
                note="the matching loss was never finite",
                details=details,
            )
        best = self.best[chosen]
        inputs, targets = problem.variables.decode(problem.space, best, problem.labels)
        outcome = Outcome.CONVERGED if loss <= self.floor else ending
        return Reconstruction(
            inputs=inputs.clone(),
            targets=targets.clone(),
            loss=loss,
            outcome=outcome,
            iterations=self.evaluations,
            plain_gradients=cost,
            history=[float(values[chosen]) for values in self.history if torch.isfinite(values[chosen])],
            note=problem.note,
            details={**details, "relative_residual": problem.relative_residual(best)},
        )

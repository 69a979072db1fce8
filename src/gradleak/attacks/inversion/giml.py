"""GIML: a generator that is meta-learned from shared gradients alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.attack import Progress
from gradleak.attacks.inversion.evaluation import LOCKSTEP_ENTRIES, PLAIN_GRADIENTS_PER_EVALUATION
from gradleak.attacks.inversion.matching import CosineDistance, Matching
from gradleak.attacks.inversion.priors import Guess, Prior, TotalVariation
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy, Problem
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import HALF, ImageGenerator, Knowledge, Objective, Update
from gradleak.operators.kernels import differentiable_kernels
from gradleak.results import (
    FANG_2024,
    JEON_2021,
    NICHOL_2018,
    Citation,
    Count,
    InputError,
    NonNegative,
    Outcome,
    Positive,
    Settings,
    ShareOrAll,
)

Weights = Mapping[str, Tensor]
Loss = Callable[[Tensor, Weights], tuple[Tensor, Tensor]]
"""Of latents (k, b, ...) and weights: the sum over k tasks of matching and penalties, and the matching losses (k,)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MetaLearned:
    """Generator that GIML made of the updates; no example was seen, and none is in here.

    Attributes:
        generator: the generator, or None where the outcome is `no_signal` or `not_finite`.
        outcome: `budget_spent` after the rounds that were asked for; `no_signal` where no update had anything to match
            with labels that could be found; `not_finite` where every round was dropped.
        rounds: rounds whose weights were finite and were taken over.
        lost: rounds that were dropped since weights or losses were not finite.
        used: updates that were matched at least once.
        skipped: updates that were zero, or whose labels were neither disclosed nor recovered.
        plain_gradients: the cost in gradients of the model on one client's batch, counted by the rule of `Inversion`.
        history: mean matching loss of each round's tasks after the latents were found and before the weights moved: what
            the generator of that round can do. Latents and weights of one round fit better at its end.
    """

    generator: ImageGenerator | None
    outcome: Outcome
    rounds: int
    lost: int
    used: int
    skipped: int
    plain_gradients: float
    history: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class GIML(Settings):
    """A generator fitted to many updates through the model alone: what an adversary without any public images can have.

    A round takes `tasks` updates, draws fresh latents from N(0, I) and keeps the weights w for `latent_iterations` Adam
    steps on the latents; then `weight_iterations` Adam steps move a copy w′ of the weights, one for all tasks of the
    round, with the latents fixed. The generator then moves towards the copy:

        w ← w + outer_rate · (w′ − w).

    Updates come in a random order, epoch by epoch. Nothing but updates and knowledge goes in; which of the losses are
    small is all that is known of how well it went. The result is public knowledge of the adversary in later rounds
    (`HonestButCurious(generator=...)`), but it carries what the updates gave away: it is private data.

    **Assumptions**: updates of one model (or of several, each with its own `Knowledge`) of one domain. Where the model
    tells images apart poorly (deep networks, batches), a generator learns averages and textures.

    **Cost**: 3 plain gradients a task and iteration, times what the protocol's release costs. Passes through the
    generator are not counted.

    **Source**: Jeon et al. 2021 (GIML) as Fang et al. 2024 use it for CIFAR-10 and FFHQ, with the outer step of Reptile
    (Nichol et al. 2018, algorithm 2). The published code has 4 images a round with one copy of the weights, 1,000 and
    500 iterations, rates 3e-2 and 1e-3, TV 1e-4 and a latent penalty of 1e-3. Deviations: its outer step is Adam with
    rate 1e-2 on the gradient 2 (w − w′); the target model stays as it is where its script moves it every 50 rounds;
    iterations are fewer, tasks more and the rate of the weights lower by default, since larger steps leave a generator
    whose weights hardly give way to a single update any more; rates fall nowhere; a task's latents are the best on their
    way by matching loss, where that code goes on from the last ones.

    Attributes:
        rounds: outer steps.
        tasks: updates a round.
        latent_iterations: Adam steps on the latents, a round.
        weight_iterations: Adam steps on the copy of the weights, a round.
        latent_rate: of Adam on the latents.
        weight_rate: of Adam on the weights.
        outer_rate: how far the generator follows, in (0, 1].
        latent_weight: of mean z², which holds latents to the prior they are drawn from.
        matching: distance of updates.
        priors: penalties on the images.

    Raises:
        InputError: for counts below 1 or rates out of range.
    """

    name: ClassVar[str] = "giml"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (JEON_2021, NICHOL_2018, FANG_2024)
    summary: ClassVar[str] = "A generator meta-learned from shared gradients alone (Jeon et al. 2021)."

    rounds: Count = 50
    tasks: Count = 10
    latent_iterations: Count = 20
    weight_iterations: Count = 20
    latent_rate: Positive = 3e-2
    weight_rate: Positive = 2e-4
    outer_rate: ShareOrAll = 1.0
    latent_weight: NonNegative = 1e-3
    matching: Matching = field(default_factory=CosineDistance)
    priors: Sequence[Prior] = (TotalVariation(weight=1e-4),)

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if any(prior.reads_layers for prior in self.priors):
            raise InputError("GIML.priors: expected penalties on images, got one that reads BatchNorm layers")

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients, before anything is computed."""
        knowledge.require(("protocol", "batch_size"), asker=f"the cost of {self.name}")
        assert knowledge.protocol is not None
        assert knowledge.batch_size is not None
        release = knowledge.protocol.plain_gradients(knowledge.batch_size)
        return PLAIN_GRADIENTS_PER_EVALUATION * release * self._evaluations * self.rounds

    @property
    def _evaluations(self) -> int:
        """A round's: the latents are looked at once more after their last step."""
        return self.tasks * (self.latent_iterations + 1 + self.weight_iterations)

    def fit(
        self,
        updates: Sequence[Update],
        knowledge: Knowledge | Sequence[Knowledge],
        initial: ImageGenerator,
        *,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> MetaLearned:
        """The generator that these updates teach.

        Args:
            updates: of clients, one a task; nothing else of them is looked at.
            knowledge: one for all, or one an update.
            initial: where the weights begin, usually a network that was never trained; it is not changed.
            generator: the only source of randomness: order of updates, and latents.
            progress: called with (rounds done, planned, mean matching loss of the round).

        Returns:
            See `MetaLearned`.

        Raises:
            InputError: for other counts of knowledge than of updates, examples of another shape than the generator's, or
                a generator without weights.
            KnowledgeError: naming what is needed and not disclosed.
            InconsistentUpdateError: if an update does not fit the model.
        """
        known = list(knowledge) if isinstance(knowledge, Sequence) else [knowledge] * len(updates)
        if len(known) != len(updates) or not updates:
            raise InputError(f"GIML.fit: expected a knowledge an update, got {len(known)} for {len(updates)} updates")
        if not initial.weights:
            raise InputError("GIML.fit: expected a generator with weights to learn, got one without parameters")
        wide: dict[int, Objective] = {}
        posed = [self._pose(*pair, wide) for pair in zip(updates, known, strict=True)]
        problems = [problem for problem in posed if problem is not None]
        if not problems:
            return MetaLearned(
                generator=None, outcome=Outcome.NO_SIGNAL, rounds=0, lost=0, used=0, skipped=len(updates),
                plain_gradients=0.0, history=(),
            )  # fmt: skip
        space = problems[0].space
        start = initial.in_domain(space.domain).to(space.dtype).to(space.device)
        run = _Run(self, problems, start, generator)
        weights: Weights = start.weights
        for number in range(self.rounds):
            weights = run.round(weights)
            if progress is not None:
                progress(number + 1, self.rounds, run.history[-1] if run.history else float("inf"))
        if not run.taken:
            return MetaLearned(
                generator=None, outcome=Outcome.NOT_FINITE, rounds=0, lost=self.rounds, used=0,
                skipped=len(updates) - len(problems), plain_gradients=run.cost, history=(),
            )  # fmt: skip
        text = f"GIML on {run.used} shared updates, {run.taken} rounds, from: {initial.source}"
        return MetaLearned(
            # What no image had trained before is no longer untrained.
            generator=replace(start.with_weights(weights), source=text, training_images=start.training_images or None),
            outcome=Outcome.BUDGET_SPENT,
            rounds=run.taken,
            lost=self.rounds - run.taken,
            used=run.used,
            skipped=len(updates) - len(problems),
            plain_gradients=run.cost,
            history=tuple(run.history),
        )

    def _pose(self, update: Update, knowledge: Knowledge, wide: dict[int, Objective]) -> Problem | None:
        """The problem of one update; None where it is zero or its labels are unknown.

        Half precision has no second derivatives: such a model is searched in float32, the same copy for all updates.
        """
        knowledge.require(self.needs, asker=self.name)
        assert knowledge.objective is not None
        aligned = update.align(knowledge.objective)
        if len(aligned.zero_tensors()) == len(aligned.tensors):
            return None
        objective = knowledge.objective
        if objective.dtype in HALF:
            knowledge = replace(knowledge, objective=wide.setdefault(id(objective), objective.to(torch.float32)))
        problem = Problem.pose(aligned, knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER)
        return None if problem.labels is None else problem


class _Run:
    """The rounds of one fit."""

    def __init__(
        self, config: GIML, problems: Sequence[Problem], start: ImageGenerator, generator: torch.Generator
    ) -> None:
        self.config = config
        self.problems = problems
        self.start = start
        self.generator = generator
        self.history: list[float] = []
        self.taken = 0
        self.cost = 0.0
        self._order: list[int] = []
        self._seen: set[int] = set()
        self._together = all(_alike(problem, problems[0]) for problem in problems)
        self._together = self._together and problems[0].target.numel() <= LOCKSTEP_ENTRIES

    @property
    def used(self) -> int:
        """Number of updates that were matched."""
        return len(self._seen)

    def round(self, weights: Weights) -> Weights:
        """The weights after one round; the same where something was not finite."""
        config = self.config
        chosen = self._next()
        problems = [self.problems[place] for place in chosen]
        loss = self._loss(problems)
        size = problems[0].space.batch_size
        drawn = self.start.draw(size * len(problems), self.generator)
        latents = drawn.reshape(len(problems), size, *self.start.latent_shape)
        with differentiable_kernels():
            latents, matching = self._latents(loss, latents, weights)
            moved = self._weights(loss, latents, weights)
        # After the first evaluation: it settles whether tasks go side by side.
        release = sum(problem.release_cost for problem in problems)
        each = config.latent_iterations + 1 + config.weight_iterations
        self.cost += PLAIN_GRADIENTS_PER_EVALUATION * release * each
        if not bool(torch.isfinite(matching).all()) or not all(bool(w.isfinite().all()) for w in moved.values()):
            return weights
        self.taken += 1
        self._seen.update(chosen)
        self.history.append(float(matching.mean()))
        return {name: w + config.outer_rate * (moved[name] - w) for name, w in weights.items()}

    def _next(self) -> list[int]:
        """Places of the next tasks; a new order begins where the last is used up."""
        chosen: list[int] = []
        while len(chosen) < min(self.config.tasks, len(self.problems)):
            if not self._order:
                self._order = torch.randperm(len(self.problems), generator=self.generator).tolist()
            place = self._order.pop()
            if place not in chosen:
                chosen.append(place)
        return chosen

    def _latents(self, loss: Loss, latents: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
        """The latents with the smallest matching loss on the way, task by task, and those losses."""
        config = self.config
        z = latents.clone().requires_grad_()
        optimizer = torch.optim.Adam([z], lr=config.latent_rate)
        best, least = (
            latents.clone(),
            torch.full((len(latents),), torch.inf, dtype=latents.dtype, device=latents.device),
        )
        for step in range(config.latent_iterations + 1):
            total, matching = loss(z, weights)
            better = matching.detach() < least
            least = torch.where(better, matching.detach(), least)
            best = torch.where(better.reshape(-1, *[1] * (z.dim() - 1)), z.detach(), best)
            if step < config.latent_iterations:
                (z.grad,) = torch.autograd.grad(total, [z])
                optimizer.step()
        return best, least

    def _weights(self, loss: Loss, latents: Tensor, weights: Weights) -> Weights:
        """A copy of the weights after its steps."""
        copy = {name: tensor.detach().clone().requires_grad_() for name, tensor in weights.items()}
        leaves = list(copy.values())
        optimizer = torch.optim.Adam(leaves, lr=self.config.weight_rate)
        for _ in range(self.config.weight_iterations):
            total, _ = loss(latents, copy)
            # The mean over tasks: with Adam the step does not depend on how many there are.
            slopes = torch.autograd.grad(total / len(latents), leaves, allow_unused=True)
            for leaf, slope in zip(leaves, slopes, strict=True):
                leaf.grad = slope
            optimizer.step()
        return {name: tensor.detach() for name, tensor in copy.items()}

    def _loss(self, problems: Sequence[Problem]) -> Loss:
        first = problems[0]

        def one(z: Tensor, weights: Weights, target: Tensor, labels: Tensor, problem: Problem) -> tuple[Tensor, Tensor]:
            given = labels if self.start.conditional else None
            images = self.start(z, labels=given, weights=weights)
            matching = problem.reading.matching(problem.likely(self.config.matching))
            distance = matching(problem.released(images, labels), target)
            guess = Guess(inputs=images, domain=problem.space.domain)
            penalty = self.config.latent_weight * z.square().mean()
            for prior in self.config.priors:
                penalty = penalty + prior(guess)
            return distance + penalty, distance

        def together(z: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
            targets = torch.stack([problem.target for problem in problems])
            labels: Any = torch.stack([problem.labels for problem in problems if problem.labels is not None])

            def row(z: Tensor, weights: Weights, target: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
                return one(z, weights, target, labels, first)

            side_by_side = torch.func.vmap(row, in_dims=(0, None, 0, 0), randomness="same")
            totals, distances = side_by_side(z, weights, targets, labels)
            return totals.sum(), distances

        def apart(z: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
            found = []
            for row, problem in zip(z, problems, strict=True):
                assert problem.labels is not None
                found.append(one(row, weights, problem.target, problem.labels, problem))
            return torch.stack([total for total, _ in found]).sum(), torch.stack([d for _, d in found])

        def either(z: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
            if not self._together:
                return apart(z, weights)
            try:
                return together(z, weights)
            except (RuntimeError, NotImplementedError):
                # No batching rule; an error of the model itself comes again one by one.
                self._together = False
                return apart(z, weights)

        return either


def _alike(one: Problem, other: Problem) -> bool:
    """True if two problems differ in the values of update and labels alone, and are held against them as they are."""
    return (
        one.objective is other.objective
        and repr(one.release) == repr(other.release)
        and not one.reading.last
        and not other.reading.last
        and one.space.batch_size == other.space.batch_size
        and one.labels is not None
        and other.labels is not None
        and (one.labels.shape, one.labels.dtype) == (other.labels.shape, other.labels.dtype)
    )

"""Matching loss and gradient of many guesses at once, by the cheapest route that the model supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.inversion.matching import Matching, Slope
from gradleak.attacks.inversion.priors import Guess, Prior
from gradleak.attacks.inversion.problem import Problem
from gradleak.attacks.inversion.variables import Code
from gradleak.core import Batch, LayerStatistics, watch_batch_norm
from gradleak.operators.kernels import AffineBatchNorm, differentiable_kernels
from gradleak.results import UnsupportedError

PLAIN_GRADIENTS_PER_EVALUATION = 3.0
"""One gradient of a matching loss: a forward and backward pass for g, and about two more to differentiate it."""

LOCKSTEP_ENTRIES = 2**18
"""Beyond so many shared entries rows are done one by one: a vmapped convolution with weights that differ by row (their
gradients do) is slower there than a loop, and memory is."""


class Route(StrEnum):
    """Way in which a gradient of the matching loss is computed.

    LOCKSTEP is double backward under vmap over all rows, LOOP the same row by row. GRAPH keeps the graph of the
    parameter gradient g of one row, takes the derivative u of the matching loss by g from its formula, and pulls u back
    through the graph: it makes no flat copy of an update. COMPILED is LOOP or LOCKSTEP through `torch.compile`, where that
    was asked for and pays: on a processor GRAPH is the faster one for a model beyond `LOCKSTEP_ENTRIES`.
    """

    LOCKSTEP = "lockstep"
    LOOP = "loop"
    GRAPH = "graph"
    COMPILED = "compiled"


class Evaluation(NamedTuple):
    """Values, gradients and residuals of rows (s, n).

    Attributes:
        gradient: of matching loss plus penalties, (s, n).
        matching: the matching loss alone, (s,).
        finite: whether both are finite, (s,).
    """

    gradient: Tensor
    matching: Tensor
    finite: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """Objective of the search, and ways in which it may be computed.

    Attributes:
        matching: bound to the model.
        priors: penalties.
        max_bytes: memory for updates in lockstep; more rows than fit are done in chunks.
        compile: whether `torch.compile` is used where it pays.
    """

    matching: Matching
    priors: Sequence[Prior]
    max_bytes: int
    compile: bool


class Evaluator:
    """Evaluations of rows z (s, n): a target's starts side by side, targets one after the other.

    Args:
        problems: of one lockstep group; they differ in target and label values alone.
        rules: what is minimized.
        rows: how many rows there will be.
    """

    def __init__(self, problems: Sequence[Problem], rules: Rules, rows: int) -> None:
        self._problems = problems
        self._problem = problems[0]
        self._rules = rules
        self._matching = self._problem.reading.matching(rules.matching)
        self._starts = rows // len(problems)
        self._rows = rows
        self._expected: Mapping[str, LayerStatistics] = {}
        for prior in rules.priors:
            self._expected = {**self._expected, **prior.expected(self._problem)}
        self._watches = any(prior.reads_layers for prior in rules.priors) and bool(self._expected)
        after = self._problem.after_gradient
        plain = not self._problem.release.defenses and self._problem.release.protocol.shares_gradient
        self._after = None if plain else after
        # Weights of a generator differ by row, too.
        space, variables = self._problem.space, self._problem.variables
        self._unknowns = variables.size(space) if variables.needs_generator else 0
        self._small = max(self._problem.target.numel(), self._unknowns) <= LOCKSTEP_ENTRIES
        # Measured on ResNet-18: 2.6 plain gradients an iteration by the kept graph, 3.1 compiled. Not known of accelerators.
        on_processor = self._problem.target.device.type == "cpu"
        pays = self._small or not on_processor
        self._graph_allowed = after is not None and not (rules.compile and pays)
        self._slopes: dict[int, Slope] = {}
        self._first = True
        # Beyond that the weight gradients that differ by candidate cost as much together as one by one.
        self.batches_values = self._problem.target.numel() <= LOCKSTEP_ENTRIES or not on_processor
        self.route = self._choose()
        self._functional = _Functional(self)

    def __call__(self, flat: Tensor, consensus: Tensor | None = None) -> Evaluation:
        """Evaluate rows (s, n).

        Args:
            flat: the rows.
            consensus: what each row is pulled to, (s, b · d), for `GroupConsistency`.
        """
        with differentiable_kernels():
            gradient, matching = self._dispatch(flat, consensus)
        self._first = False
        finite = torch.isfinite(matching) & torch.isfinite(gradient).all(dim=1)
        return Evaluation(gradient.detach(), matching.detach(), finite)

    def values(
        self, row: Tensor, place: int, candidates: Code, consensus: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Matching loss plus penalties, and the matching loss, of candidates for the latents of one row: (K,) each.

        All candidates in one vmapped call, in chunks where memory asks for it; one by one for a large model on a processor.
        No derivative of the matching loss is taken by the unknowns.

        Args:
            row: the row (n,), whose other unknowns are held.
            place: of its target.
            candidates: latents (K, b, k) and, where labels are unknowns, logits (K, b, c).
            consensus: as in `__call__`, (b · d,).
        """
        problem = self._problems[place]
        held = problem.variables.split(problem.space, row)

        def one(latents: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor]:
            code = held._replace(latents=latents, logits=logits)
            made = problem.variables.make(problem.space, code, problem.labels)
            return self._values(*made, problem.target, code, consensus)

        assert candidates.latents is not None
        over = (0, None if candidates.logits is None else 0)
        entry = problem.target.numel() * problem.target.element_size()
        chunk = max(1, self._rules.max_bytes // (4 * entry))
        with torch.no_grad():
            if self.batches_values:
                try:
                    batched = torch.func.vmap(one, in_dims=over, randomness="same", chunk_size=chunk)
                    total, matching = batched(candidates.latents, candidates.logits)
                    return total.detach(), matching.detach()
                except (RuntimeError, NotImplementedError):
                    # As in `_dispatch`: the same numbers one by one; an error of the model itself comes again there.
                    self.batches_values = False
            found = [
                self._value(place, held._replace(latents=latents, logits=logits), consensus)
                for latents, logits in zip(
                    candidates.latents,
                    [None] * len(candidates.latents) if candidates.logits is None else candidates.logits,
                    strict=True,
                )
            ]
        return torch.stack([total for total, _ in found]), torch.stack([matching for _, matching in found])

    def _value(self, place: int, code: Code, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        """Total and matching loss of one code, without a flat copy of its release."""
        problem = self._problems[place]
        inputs, classes = problem.variables.make(problem.space, code, problem.labels)
        made = problem.released_tensors(inputs, classes)
        matching, _ = self._slope_against(place)([made[name] for name in problem.objective.params])
        return matching + self.penalty(inputs, self._moments(inputs), consensus, code), matching

    def _slope_against(self, place: int) -> Slope:
        """The matching loss against the update of one target, made once."""
        if place not in self._slopes:
            problem = self._problems[place]
            self._slopes[place] = self._matching.against(list(problem.objective.unflatten(problem.target).values()))
        return self._slopes[place]

    def _moments(self, inputs: Tensor) -> Mapping[str, LayerStatistics]:
        """Moments that inputs leave in BatchNorm layers, where a prior reads them."""
        if not self._watches:
            return {}
        objective = self._problem.objective
        with watch_batch_norm(objective) as layers:
            objective.outputs(objective.params, inputs)
        return layers

    def _choose(self) -> Route:
        if self._rows > 1 and self._small and not self._rules.compile:
            return Route.LOCKSTEP
        return Route.GRAPH if self._graph_allowed else self._row_by_row

    @property
    def _row_by_row(self) -> Route:
        return Route.COMPILED if self._rules.compile else Route.LOOP

    def _dispatch(self, flat: Tensor, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        """By the route; one that the model does not support is exchanged at the first evaluation for the next."""
        while True:
            try:
                return self._by_route(flat, consensus)
            except (RuntimeError, NotImplementedError):
                # No batching rule, an in-place change that vmap refuses, a backward pass without a second derivative:
                # the same numbers by another way. An error of the model itself comes again there.
                if not self._first or self.route not in (Route.LOCKSTEP, Route.GRAPH):
                    raise
                lockstep = self.route is Route.LOCKSTEP
                self.route = Route.GRAPH if lockstep and self._graph_allowed else self._row_by_row

    def _by_route(self, flat: Tensor, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        match self.route:
            case Route.LOCKSTEP:
                return self._functional.lockstep(flat, consensus)
            case Route.LOOP:
                return self._functional.loop(flat, consensus)
            case Route.GRAPH:
                return self._by_graph(flat, consensus)
            case Route.COMPILED:
                return self._functional.compiled(flat, consensus)

    def penalty(
        self, inputs: Tensor, layers: Mapping[str, LayerStatistics], consensus: Tensor | None, code: Code
    ) -> Tensor:
        """The sum of the priors for one guess (b, *shape) and its code."""
        guess = Guess(
            inputs=inputs,
            domain=self._problem.space.domain,
            layers=layers,
            expected=self._expected,
            consensus=None if consensus is None else consensus.reshape(inputs.shape),
            latents=code.latents,
            changes=code.weights,
        )
        total = inputs.new_zeros(())
        for prior in self._rules.priors:
            total = total + prior(guess)
        return total

    def total(self, flat: Tensor, target: Tensor, given: Tensor | None, consensus: Tensor | None) -> Any:
        """Matching loss plus penalties of one row, and the matching loss; pure, for torch.func."""
        problem = self._problem
        inputs, classes = problem.variables.decode(problem.space, flat, given)
        return self._values(inputs, classes, target, problem.variables.split(problem.space, flat), consensus)

    def _values(
        self, inputs: Tensor, classes: Tensor, target: Tensor, code: Code, consensus: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        problem = self._problem
        if self._rules.compile:
            seen = problem.objective.unflatten(target)
            made = problem.released_tensors(inputs, classes)
            matching = self._matching.between([made[name] for name in seen], list(seen.values()))
        else:
            matching = self._matching(problem.released(inputs, classes), target)
        return matching + self.penalty(inputs, self._moments(inputs), consensus, code), matching

    def _by_graph(self, flat: Tensor, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        found = [
            self._row(number // self._starts, row, None if consensus is None else consensus[number])
            for number, row in enumerate(flat)
        ]
        return torch.stack([gradient for gradient, _ in found]), torch.stack([matching for _, matching in found])

    def _row(self, place: int, row: Tensor, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        problem = self._problems[place]
        objective = problem.objective
        names = list(objective.params)
        leaves = [tensor.detach().requires_grad_() for tensor in objective.params.values()]
        z = row.detach().requires_grad_()
        with torch.enable_grad():
            # Of a clone: a layer that works in place may not change a leaf or a view of one.
            inputs, classes = problem.variables.decode(problem.space, z.clone(), problem.labels)
            watch: AbstractContextManager[Mapping[str, LayerStatistics]]
            watch = watch_batch_norm(objective) if self._watches else nullcontext({})
            with AffineBatchNorm(), watch as layers:
                loss = objective.loss(dict(zip(names, leaves, strict=True)), Batch(inputs, classes))
            first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
            penalty = self.penalty(inputs, layers, consensus, problem.variables.split(problem.space, z))
        gradient = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, first, strict=True)]
        matching, slope = self._slope(place, [entry.detach() for entry in gradient])
        live = [number for number, entry in enumerate(gradient) if entry.requires_grad]
        outputs, weights = [gradient[number] for number in live], [slope[number] for number in live]
        if penalty.requires_grad:
            outputs.append(penalty)
            weights.append(torch.ones_like(penalty))
        if not outputs:
            return torch.zeros_like(row), matching
        pulled = torch.autograd.grad(outputs, z, weights, allow_unused=True)[0]
        return torch.zeros_like(row) if pulled is None else pulled, matching

    def _slope(self, place: int, gradient: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The matching loss and its derivative by the plain gradient, through the defenses."""
        if self._after is None:
            return self._slope_against(place)(gradient)
        names = list(self._problem.objective.params)
        released, pull = torch.func.vjp(self._after, dict(zip(names, gradient, strict=True)))[:2]
        value, slope = self._slope_against(place)([released[name] for name in names])
        moved = pull(dict(zip(names, slope, strict=True)))[0]
        return value, [moved[name] for name in names]


class _Functional:
    """Routes by torch.func: of a pure function of one row, under vmap, in a loop, or compiled."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        problems, rules = evaluator._problems, evaluator._rules
        self._derivative = torch.func.grad_and_value(evaluator.total, has_aux=True)
        single = len(problems) == 1
        self._single = single
        labels = [problem.labels for problem in problems]
        self._targets = problems[0].target
        self._labels = labels[0]
        if not single:
            index = torch.arange(len(problems), device=self._targets.device)
            index = index.repeat_interleave(evaluator._starts)
            self._targets = torch.stack([problem.target for problem in problems])[index]
            given = [entry for entry in labels if entry is not None]
            self._labels = torch.stack(given)[index] if given else None
        problem = problems[0]
        entry = (problem.target.numel() + evaluator._unknowns) * problem.target.element_size()
        self._chunk = max(1, rules.max_bytes // (8 * entry))
        self._compiled: dict[bool, Any] = {}

    def lockstep(self, flat: Tensor, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        gradient, (_, matching) = self._batched(consensus is not None)(flat, self._targets, self._labels, consensus)
        return gradient, matching

    def loop(self, flat: Tensor, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        found = [self._derivative(*self._arguments(number, flat, consensus)) for number in range(len(flat))]
        return torch.stack([g for g, _ in found]), torch.stack([aux for _, (_, aux) in found])

    def compiled(self, flat: Tensor, consensus: Tensor | None) -> tuple[Tensor, Tensor]:
        """One compiled function for all rows; a consensus that appears in the middle of a run makes another."""
        single = len(flat) == 1
        kind = consensus is not None
        first = kind not in self._compiled
        if first:
            # As one graph: otherwise what cannot be compiled would run as before, in silence and slower.
            self._compiled[kind] = torch.compile(self._derivative if single else self._batched(kind), fullgraph=True)
        arguments = self._arguments(0, flat, consensus) if single else (flat, self._targets, self._labels, consensus)
        try:
            gradient, (_, matching) = self._compiled[kind](*arguments)
        except (RuntimeError, NotImplementedError) as error:
            if not first:
                raise
            raise UnsupportedError(
                f"compile=True: torch.compile failed on the derivative of this attack ({_reason(error)}); run it with "
                "compile=False, which needs no compiler and gives the same numbers up to round-off"
            ) from error
        return (gradient[None], matching[None]) if single else (gradient, matching)

    def _batched(self, with_consensus: bool) -> Any:
        over = None if self._single else 0
        return torch.func.vmap(
            self._derivative,
            in_dims=(0, over, None if self._labels is None else over, 0 if with_consensus else None),
            randomness="same",
            chunk_size=self._chunk if self._chunk < self._evaluator._rows else None,
        )

    def _arguments(self, number: int, flat: Tensor, consensus: Tensor | None) -> tuple[Any, ...]:
        return (
            flat[number],
            self._targets if self._single else self._targets[number],
            self._labels if self._single or self._labels is None else self._labels[number],
            None if consensus is None else consensus[number],
        )


def _reason(error: Exception) -> str:
    """Class and first line of an error of the compiler."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__

"""Starts that ended: the best of them, whether other inputs explain the update too, and the claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from gradleak.attacks.inversion.gauss_newton.descent import Descent
from gradleak.attacks.inversion.gauss_newton.gates import GateSystem, identifiability, judged, order_note
from gradleak.attacks.inversion.gauss_newton.krylov_steps import Choice
from gradleak.attacks.inversion.gauss_newton.residual_system import OutOfBudgetError, ResidualSystem
from gradleak.attacks.inversion.gauss_newton.words import Words, read_words
from gradleak.core import Reconstruction, describe
from gradleak.results import Outcome

RANK_IS_OPEN = "the update is explained; the limit left no room to look for other inputs that explain it"

ENDED_BY_LIMIT = "ended by max_plain_gradients"
"""Note of a claim whose search could not go on."""


class _Judgment(NamedTuple):
    """Outcome of the best start, with the reasons for it."""

    outcome: Outcome
    notes: Sequence[str]
    facts: Mapping[str, Any] = MappingProxyType({})
    words: Words | None = None
    is_spent: bool = False


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Starts of one call of the attack.

    Attributes:
        system: the residual.
        choice: how steps were computed, and why.
        runs: one a start, in order.
        stretches: with free gates, before them.
        gates: system of these, or None.
        is_spent: whether the limit ended the search.
        generator: of what the look at the rank draws.
        random: whether the first start is random.
        peeled: whether it was read layer by layer.
    """

    system: ResidualSystem
    choice: Choice
    runs: Sequence[Descent]
    stretches: Sequence[Descent]
    gates: GateSystem | None
    is_spent: bool
    generator: torch.Generator
    random: bool = True
    peeled: bool = False

    @cached_property
    def best(self) -> Descent:
        """The start of the least residual."""
        return min(self.runs, key=lambda run: run.loss)

    @property
    def at_floor(self) -> bool:
        """True if the residual of the best is at the floor."""
        return math.isfinite(self.best.loss) and self.system.explained(self.best.loss * self.system.scale**2)

    def claim(self) -> Reconstruction:
        """The claim of the best start.

        Cost: the look at the rank, within the limit.
        """
        run, problem = self.best, self.system.problem
        taken = sum(one.taken for one in [*self.runs, *self.stretches])
        details = self._details()
        if run.best is None:
            too_little = self.is_spent and not run.note
            return Reconstruction(
                inputs=None,
                targets=None,
                loss=None,
                outcome=Outcome.BUDGET_SPENT if too_little else Outcome.NOT_FINITE,
                iterations=taken,
                plain_gradients=self.system.cost.plain_gradients,
                note=ENDED_BY_LIMIT if too_little else run.note or "the residual was never finite",
                details={**details, **self._counts()},
            )
        found = self._judge()
        read = "its start was read layer by layer" if self.peeled and run is self.runs[0] else ""
        outcome, notes = found.outcome, [problem.note, read, run.note, *found.notes]
        if (self.is_spent or found.is_spent) and outcome in (Outcome.BUDGET_SPENT, Outcome.PLATEAU):
            notes.append(ENDED_BY_LIMIT)
            if len(run.history) == 1 and not any(one.history for one in self.stretches):
                notes.append(f"no step fitted: what is claimed is the {'first' if self.peeled else 'random'} start")
        if outcome is not Outcome.CONVERGED and run.stationary:
            notes.append("a stationary point that does not explain the update: a local minimum, or noise not known")
        if outcome is Outcome.CONVERGED:
            notes.append(order_note(problem))
        inputs, targets = problem.variables.decode(problem.space, run.best, problem.labels)
        words = found.words
        if words is None and problem.space.sentences is not None:
            words = read_words(self.system, run.model, run.best, check=False)
        return Reconstruction(
            inputs=inputs.clone(),
            targets=targets.clone(),
            loss=run.loss,
            outcome=outcome,
            iterations=taken,
            plain_gradients=self.system.cost.plain_gradients,
            history=run.history,
            note="; ".join(note for note in notes if note),
            details={
                **details,
                **found.facts,
                **self._counts(),
                "relative_residual": problem.relative_residual(run.best),
            },
            **({} if words is None else words.claim),
        )

    def _judge(self) -> _Judgment:
        """The outcome of the best start: does something else explain the update as well, where it does?"""
        run, system = self.best, self.system
        assert run.best is not None
        # Without a model nobody looked at the rank: the bare start of a search whose limit held no step.
        fits = self.at_floor and run.model is not None
        outcome = run.outcome or (Outcome.CONVERGED if fits else Outcome.BUDGET_SPENT)
        first = next(one.history for one in [*self.stretches, *self.runs] if one.history)
        if self.random and system.explained(first[0] * system.scale**2):
            # When a random start fits, the update does not tell inputs apart.
            note = "a random input already explains the update to within its noise or round-off"
            return _Judgment(Outcome.NOT_IDENTIFIABLE, [note])
        if outcome is not Outcome.CONVERGED or run.model is None:
            return _Judgment(outcome, [RANK_IS_OPEN] if self.at_floor and run.model is None else [])
        try:
            if system.problem.space.sentences is None:
                found = identifiability(system, run.model, run.best, self.generator)
                outcome, note = judged(found, system.noisy)
                return _Judgment(outcome, [note], found.facts)
            words = read_words(system, run.model, run.best, check=True)
            outcome, note = words.judged
            return _Judgment(outcome, [note], words.facts, words)
        except OutOfBudgetError:
            return _Judgment(Outcome.BUDGET_SPENT, [RANK_IS_OPEN], is_spent=True)

    def _details(self) -> dict[str, Any]:
        run, system = self.best, self.system
        return {
            **system.problem.facts(),
            "steps": describe(self.choice.steps),
            "steps_because": self.choice.reason,
            "starts": len(self.runs),
            "chosen_start": next(place for place, one in enumerate(self.runs) if one is run),
            "start_losses": [one.loss if math.isfinite(one.loss) else None for one in self.runs],
            "at_floor": self.at_floor,
            "floor": (system.floor / system.scale) ** 2,
            "stationary": run.stationary,
            "rejected_steps": run.rejected,
            "renewed": run.renewed,
            "unknowns": system.unknowns,
            "entries": system.entries,
            "free_gates": None if self.gates is None else self.gates.most_gates,
            "gate_steps": sum(one.taken for one in self.stretches),
        }

    def _counts(self) -> dict[str, float]:
        cost = self.system.cost
        return {"releases": cost.releases, "products": cost.products, "warm_plain_gradients": cost.warm}

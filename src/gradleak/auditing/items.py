"""What the groups of an audit share: the lines of a record, and the updates that the plan is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gradleak.auditing.plan import Plan, Scenario
from gradleak.core import (
    Batch,
    DiagonalGaussian,
    Domain,
    HonestButCurious,
    Update,
    computed_in_half,
    derive_generator,
    describe,
    whole_precision,
)
from gradleak.results import Score
from gradleak.scoring import chance_pixel_rmse

Line = dict[str, Any]


def released(plan: Plan, scenario: Scenario, index: int) -> Update:
    """The update of one batch under one scenario: the one that was given, else drawn; the same in every process."""
    if index in scenario.updates:
        return scenario.updates[index].align(plan.objective)
    generator = derive_generator(plan.seed, "release", scenario.name, f"example {index}", device=plan.objective.device)
    return scenario.release(plan.objective, plan.batches[index], generator)


def domain_of(batch: Batch) -> Domain:
    """The stated domain of a batch, or one guessed from its data."""
    return batch.domain or Domain.guess(batch.inputs)


def luck(plan: Plan, batch: Batch, name: str) -> list[Score]:
    """What blind guesses reach by luck on a batch of few entries, none where that is nothing; the same wherever asked.

    Args:
        plan: of the audit; its public rows are among the guesses.
        batch: the truth.
        name: of the batch in the plan.
    """
    public = plan.threat.public if isinstance(plan.threat, HonestButCurious) else None
    rows = None if public is None else public.inputs
    generator = derive_generator(plan.seed, "chance", name)
    score = chance_pixel_rmse(batch, domain_of(batch), rows, generator=generator, within=plan.thresholds.pixel_rmse)
    return [] if score is None else [score]


def precision_facts(update: Update) -> dict[str, Any]:
    """What the number formats of an update did to it, JSON-ready: shares over all entries, and by tensor."""
    parts = update.precision()
    made_in = computed_in_half(update.tensors.values())
    return {
        **asdict(whole_precision(parts)),
        "made_in": None if made_in is None else describe(made_in),
        "tensors": {name: asdict(part) for name, part in parts.items() if part.flushed or part.non_finite},
    }


def uniform_std(noise: DiagonalGaussian) -> float | None:
    """The standard deviation of noise that is the same on every tensor, else None."""
    values = set(noise.std.values())
    return values.pop() if len(values) == 1 else None


def item_line(item: str, kind: str, scenario: str | None, example: int | None, *, seconds: float = 0.0) -> Line:
    """A line of type item that is done and has no outcome yet."""
    return {
        "type": "item",
        "item": item,
        "kind": kind,
        "scenario": scenario,
        "example": example,
        "status": "done",
        "outcome": None,
        "note": "",
        "seconds": seconds,
    }


def score_lines(scores: Sequence[Score], owner: Mapping[str, Any]) -> list[Line]:
    """The scores of an item, with its place."""
    place = {key: owner.get(key) for key in ("item", "scenario", "example", "attack")}
    return [{"type": "score", **place, **score.to_dict()} for score in scores]

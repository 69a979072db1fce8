"""Crafted records: against a case whose optimum is known, and against what they promise."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from tests.privacy.setting import COLOR, SEX, dp_sgd, objective, perceptron, table
from torch import Tensor, nn

from gradleak.core import Batch, Objective
from gradleak.privacy import (
    AttributePair,
    Canary,
    CraftedRecords,
    GaussianPair,
    RecordConstraints,
    random_records,
    total_epsilons,
)
from gradleak.results import InputError, Outcome

TARGETS = torch.tensor([0, 1])
LIKE = Batch(torch.zeros(2, 7, dtype=torch.float64), TARGETS)


def crafted(canary: Canary, seed: int = 0, **changes: Any) -> CraftedRecords:
    given: dict[str, Any] = {"objective": objective(), "release": dp_sgd(), "attribute": SEX, "like": LIKE} | changes
    return canary.craft(
        given["objective"],
        given["release"],
        given["attribute"],
        like=given["like"],
        generator=torch.Generator().manual_seed(seed),
    )


def distance(made: CraftedRecords, place: int = 0) -> float:
    pair = AttributePair(objective=objective(), release=dp_sgd(), record=made.records.example(place), attribute=SEX)
    return max(pair.facts["distances"])


def test_worth_is_the_mean_squared_distance_of_released_gradients() -> None:
    made = crafted(Canary(iterations=3, starts=3))
    for place in range(3):
        assert float(made.worth[place]) == pytest.approx(distance(made, place) ** 2 / objective().size, rel=1e-9)
    assert made.worth.tolist() == sorted(made.worth.tolist(), reverse=True)
    mixed = crafted(Canary(iterations=2, starts=2), attribute=COLOR)
    pair = AttributePair(objective=objective(), release=dp_sgd(), record=mixed.records.example(0), attribute=COLOR)
    squares = [length**2 for length in pair.facts["distances"]]
    assert float(mixed.worth[0]) == pytest.approx(sum(squares) / 2 / objective().size, rel=1e-9)


def test_worth_by_angle_is_one_minus_the_cosine() -> None:
    made = crafted(Canary(objective="cosine", iterations=5, starts=2))
    pair = AttributePair(objective=objective(), release=dp_sgd(), record=made.records.example(0), attribute=SEX)
    assert isinstance(pair.law, GaussianPair)
    null, moved = pair.law.null, pair.law.alternatives[0]
    assert float(made.worth[0]) == pytest.approx(1 - float(null @ moved / null.norm() / moved.norm()), rel=1e-9)


def test_a_canary_turns_a_gradient_around_where_the_residual_changes_sign() -> None:
    # Of a linear regression the gradient is 2 (⟨w, x⟩ − y)(x, 1): the sex decides the sign of the residual, and clipped
    # gradients point in opposite directions. Their distance is 2C, more than the bound C that the paper puts for it.
    clip = 0.5
    model = nn.Linear(7, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, 0.1, -0.2, 0.4, 1.0, -1.0, 0.2]]))
        model.bias.zero_()
    known = Objective.from_module(model, loss="mse")
    like = Batch(torch.zeros(1, 7, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
    made = crafted(Canary(iterations=250, starts=4), objective=known, like=like, release=dp_sgd(clip=clip, std=0.1))
    pair = AttributePair(
        objective=known, release=dp_sgd(clip=clip, std=0.1), record=made.records.example(0), attribute=SEX
    )
    (length,) = pair.facts["distances"]
    assert 1.9 * clip < length < 2 * clip
    exact = pair.theory(delta=1e-5)[0].value
    total = {s.name: s.value for s in total_epsilons(pair.release, known, examples=1, attributes=None, delta=1e-5)}
    assert total["gaussian_epsilon"] < exact < total["replaced_gaussian_epsilon"]  # type: ignore[operator]


def test_crafting_beats_its_starts_and_random_records() -> None:
    # From normal vectors Adam ends in one of several local maxima, so that a few starts are needed.
    start, made = crafted(Canary(iterations=1, starts=8), seed=1), crafted(Canary(iterations=150, starts=8), seed=1)
    assert float(made.worth[0]) > 1.2 * float(start.worth[0])
    assert distance(made) > max(_of_people())
    assert len(made.trace) == 2
    assert made.outcome is Outcome.BUDGET_SPENT


def test_valid_canaries_are_records_that_could_stand_in_the_table() -> None:
    rows, _ = table().inputs(without=["paid"])
    rules = RecordConstraints.of(table(), without=["paid"], rows=rows)
    made = crafted(Canary(iterations=20, starts=4, valid=rules))
    assert rules.holds(made.records.inputs)
    assert distance(made) > sorted(_of_people())[20]


def _of_people() -> list[float]:
    """The distances of 40 random records of the table, of either target."""
    rows, _ = table().inputs(without=["paid"])
    people = Batch(rows.double(), torch.arange(400) % 2)
    drawn = random_records(people, 40, generator=torch.Generator().manual_seed(0))
    return [
        AttributePair(objective=objective(), release=dp_sgd(), record=drawn.example(number), attribute=SEX).facts[
            "distances"
        ][0]
        for number in range(40)
    ]


def test_starts_in_lockstep_are_those_alone() -> None:
    together = crafted(Canary(iterations=10, starts=3), seed=5)
    draws = torch.Generator().manual_seed(5)
    first = torch.randn(3, 7, generator=draws, dtype=torch.float64)[:1].requires_grad_()
    adam = torch.optim.Adam([first], lr=0.05)
    known, best = objective(), 0.0

    def worth(inputs: Tensor) -> Tensor:
        released = [
            known.flatten(dp_sgd().mean(known, known.params, Batch(SEX.with_value(inputs, value), TARGETS[:1])))
            for value in (0, 1)
        ]
        return (released[1] - released[0]).square().mean()

    for _ in range(11):
        value = worth(first)
        best = max(best, float(value.detach()))
        first.grad = -torch.autograd.grad(value, first)[0]
        adam.step()
    assert any(found == pytest.approx(best, rel=1e-6) for found in together.worth.tolist())


def test_values_and_targets_are_taken_in_turn() -> None:
    made = crafted(Canary(iterations=1, starts=4))
    assert sorted(zip(made.values, made.records.targets.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for place in range(4):
        assert SEX.value_of(made.records.inputs[place]) == made.values[place]
    assert json.dumps(dict(made.facts))


class Fragile(nn.Module):
    """A model that returns NaN for inputs of which the first entry is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron(torch.Generator().manual_seed(0)).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs) * torch.where(inputs[:, :1] < 0, math.nan, 1.0)


def test_starts_that_are_no_numbers_are_left_out_and_counted() -> None:
    known = Objective.from_module(Fragile())
    made = crafted(Canary(iterations=1, starts=8), objective=known)
    assert 0 < made.lost < 8
    assert len(made.worth) == made.records.size == 8 - made.lost
    assert bool(torch.isfinite(made.worth).all())
    assert bool((made.records.inputs[:, 0] >= 0).all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "l1"}, "mse, cosine"),
        ({"iterations": 0}, "iterations"),
        ({"starts": 0}, "starts"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Canary(**changes)


def test_constraints_of_another_table_are_refused() -> None:
    with pytest.raises(InputError, match="constraints on 7 entries, got 3"):
        crafted(Canary(valid=RecordConstraints(low=torch.zeros(3), high=torch.ones(3))))
    with pytest.raises(InputError, match="at most 2 records"):
        random_records(LIKE, 3, generator=torch.Generator())

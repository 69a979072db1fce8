"""Pairs of hypotheses and a table that plan files of the tests name by import path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from gradleak.core import Objective, Release
from gradleak.data import Column, Table
from gradleak.privacy import HypothesisPair
from gradleak.privacy.lower_bounds import TrialScores


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomizedResponse(HypothesisPair):
    """A truthful answer with probability e^ε/(1 + e^ε): (ε, 0)-private exactly."""

    epsilon: float = 2.0

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        honest = np.exp(self.epsilon) / (1 + np.exp(self.epsilon))
        coins = (torch.rand(2, count, generator=generator, dtype=torch.float64) < honest).double().numpy()
        return {"answer": TrialScores(null=1 - coins[0], alternative=coins[1], name="answer")}


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedNothing(HypothesisPair):
    """The release of an all-zero gradient, shifted under H1 by `shift` in its first entry."""

    objective: Objective
    release: Release
    shift: float = 1.0

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        noise = self.release.noise(self.objective, examples=1)
        std = max(getattr(noise, "std", {"none": 0.0}).values())
        draws = std * torch.randn(2, count, generator=generator, dtype=torch.float64).numpy()
        return {"entry": TrialScores(null=draws[0], alternative=draws[1] + self.shift, name="entry")}


class NoScores(HypothesisPair):
    """Gives lists in place of scores."""

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        return {"list": [0.0] * count}  # type: ignore[dict-item]


class Stubborn(HypothesisPair):
    """Always gives five trials."""

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        values = torch.rand(5, generator=generator, dtype=torch.float64).numpy()
        return {"five": TrialScores(null=values, alternative=values, name="five")}


class Crashing(HypothesisPair):
    """Goes wrong at its first trial."""

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        raise ZeroDivisionError("no trial here")


class Faltering(HypothesisPair):
    """Goes wrong once it is asked for many."""

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        if count > 2:
            raise RuntimeError("out of luck")
        return {"x": TrialScores(null=np.zeros(count), alternative=np.zeros(count), name="x")}


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaky(HypothesisPair):
    """Tells its trials apart by their place: whoever draws the null hypothesis twice gets two different halves."""

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        values = np.arange(count, dtype=np.float64)
        return {"place": TrialScores(null=values, alternative=values, name="place")}


def small_table(*, rows: int = 240, generator: torch.Generator) -> Table:
    """An amount, a group of three values, and a target that depends on the amount."""
    number = torch.rand(rows, generator=generator)
    group = torch.randint(3, (rows,), generator=generator)
    noise = 0.1 * torch.randn(rows, generator=generator)
    columns = [
        Column(name="number", high=1.0),
        Column(name="group", kind="category", values=("a", "b", "c")),
        Column(name="paid", kind="label", values=("no", "yes")),
    ]
    cells = [
        (float(x), "abc"[int(g)], "yes" if float(x + e) > 0.5 else "no")
        for x, g, e in zip(number, group, noise, strict=True)
    ]
    return Table.from_rows(cells, columns=columns, name="small table")

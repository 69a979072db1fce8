"""Inference games in which there is nothing to find, or much: what the verdict of an audit says of each."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.attacks.inference import (
    AllEntries,
    Classifier,
    GaussianNaiveBayes,
    LinearDiscriminant,
    LogisticRegression,
    Ordinal,
    PrototypeEncoder,
    RandomForest,
)
from gradleak.auditing import Plan, run_plan
from gradleak.audits.base import Scenario, Site
from gradleak.audits.inference import InferenceAudit
from gradleak.core import Objective, Release, derive_generator, derive_seed
from gradleak.data import Population
from gradleak.defenses import GaussianNoise, Sign
from gradleak.games import AttributeGame, DistributionGame, InferenceGame, PropertyGame, UserGame
from gradleak.models import linear_model, mlp
from gradleak.protocols import FedSGD
from gradleak.results import Control
from gradleak.results.findings.inference import InferenceFinding
from gradleak.scoring.classification import ADVANTAGE
from studies.null_cells import Judged
from studies.null_releases import FixedUpdate
from studies.store import Store
from studies.study import Say

FEATURES = 6
# Of each null game there are so many, of other sizes.
ROWS = (60, 150, 300)
BATCHES = (4, 8, 16)
ADVERSARIES: Sequence[Classifier] = (
    RandomForest(trees=20),
    LogisticRegression(),
    LinearDiscriminant(),
    GaussianNaiveBayes(),
)
DROWNING = 1e4


class Nothing(StrEnum):
    """Reason why there is nothing to find."""

    SHUFFLED = "sensitive variable shuffled over the rows"
    DROWNED = "noise that drowns the update"
    FIXED = "an update that was drawn beforehand"


class Kind(StrEnum):
    """Kind of game."""

    ATTRIBUTE = "attribute"
    PROPERTY = "property"
    PROPORTION = "proportion"
    USER = "user"


@dataclass(frozen=True, kw_only=True)
class GameSetting:
    """One game.

    Attributes:
        kind: of game.
        nothing: why there is nothing to find; None for a planted leak.
        number: which one; sizes and adversary go by it.
    """

    kind: Kind
    nothing: Nothing | None
    number: int

    @property
    def group(self) -> str:
        """Row of the table."""
        return f"{self.kind} game, {self.nothing or 'undefended'}"

    def play(self, seed: int) -> Judged:
        """The verdict of an audit of this game, both controls of its own included."""
        own = derive_seed(seed, "null game", self.kind, str(self.nothing), str(self.number))
        audit = InferenceAudit(
            name="game", game=self._game(derive_generator(own, "rows")), seeds=1 + self.number % 5 // 4
        )
        site = Site(
            name="null game",
            seed=own,
            objective=Objective.from_module(linear_model(features=1, classes=2)),
            batches=(),
            scenarios=[Scenario(name="release", release=self._release(derive_generator(own, "release")), examples=())],
        )
        with tempfile.TemporaryDirectory() as folder:
            record = run_plan(Plan(site=site, audits=[audit]), folder, jobs=1)
        (verdict,) = [one for one in record.verdicts if one.item == "release/game"]
        (played,) = [one for one in record.findings if isinstance(one, InferenceFinding) and one.control is None]
        scores = {who: played.known(ADVANTAGE, who) for who in played.adversaries}
        return Judged(
            group=self.group,
            planted=self.nothing is None,
            verdict=verdict.verdict,
            reason=verdict.reason,
            control=_found([one.control for one in record.findings if one.control is not None]),
            noted={
                f"advantage, {who}": None if score is None else float(score.details["unclipped"])
                for who, score in scores.items()
            },
        )

    def _release(self, generator: torch.Generator) -> Release:
        defenses: dict[Nothing | None, list[Any]] = {
            Nothing.SHUFFLED: [Sign()] if self.number % 3 == 2 else [],
            Nothing.DROWNED: [GaussianNoise(std=DROWNING)],
            Nothing.FIXED: [FixedUpdate(tensors=dict(_perceptron(generator).named_parameters()))],
        }
        return Release(FedSGD(), defenses.get(self.nothing, []))

    def _game(self, generator: torch.Generator) -> InferenceGame:
        # What is planted has to show: an advantage over a dozen users, or 60 rows in batches of 16, is one of these alone.
        place = len(ROWS) - 1 if self.nothing is None else self.number % len(ROWS)
        rows, size = ROWS[place], BATCHES[self.number // 2 % len(BATCHES)]
        setting: dict[str, Any] = {
            "model": _perceptron,
            "rounds": 1 + self.number % 2,
            "batch_size": size,
            "trials": 300,
            "shadow_batches": 300,
            "features": AllEntries(),
        }
        if self.kind is Kind.USER:
            users = self._users(generator)
            encoder = PrototypeEncoder(epochs=10, hidden=30, embedding=10)
            sizes = {"private_users": 12 + 6 * place, "public_users": 15, "candidates": 3 + place, "batch_size": 4}
            setting |= sizes
            return UserGame(users, encoder=encoder, **setting)
        setting |= {"private_rows": rows, "public_rows": 200, "test_rows": 0}
        adversary = ADVERSARIES[self.number // 3 % len(ADVERSARIES)]
        population = self._rows(generator)
        if self.kind is Kind.PROPORTION:
            return DistributionGame(population, bins=3 + self.number % 2, adversary=Ordinal(), **setting)
        game = AttributeGame if self.kind is Kind.ATTRIBUTE else PropertyGame
        return game(population, adversary=adversary, **setting)

    def _rows(self, generator: torch.Generator) -> Population:
        """Rows of two or three groups that differ in their features, and in how often they occur."""
        values = 2 if self.kind is Kind.PROPORTION else 2 + self.number % 2
        law = torch.arange(2, values + 2).double()
        groups = torch.multinomial(law, 900, replacement=True, generator=generator)
        inputs = torch.randn(900, FEATURES, generator=generator) + 2.0 * groups[:, None]
        return self._population(inputs, groups, None, values, generator)

    def _users(self, generator: torch.Generator) -> Population:
        """Rows of users with means of their own."""
        owners = torch.arange(60).repeat_interleave(24)
        inputs = torch.randn(len(owners), FEATURES, generator=generator)
        inputs += 3.0 * torch.randn(60, FEATURES, generator=generator)[owners]
        return self._population(inputs, owners % 2, owners, 2, generator)

    def _population(
        self, inputs: Tensor, groups: Tensor, owners: Tensor | None, values: int, generator: torch.Generator
    ) -> Population:
        noise = torch.randn(len(inputs), generator=generator)
        targets = (inputs.mean(dim=1) + noise > inputs.mean()).long()
        if self.nothing is Nothing.SHUFFLED:
            order = torch.randperm(len(inputs), generator=generator)
            groups, owners = groups[order], None if owners is None else owners[order]
        return Population(
            name="numbers",
            inputs=inputs,
            targets=targets,
            sensitive=groups,
            values=[f"group {value}" for value in range(values)],
            users=owners,
            holds_sensitive={Kind.ATTRIBUTE: True, Kind.PROPERTY: False}.get(self.kind),
        )


def null_games(count: int, *, seed: int, store: Store, say: Say) -> list[Judged]:
    """Verdicts on so many games with nothing to find.

    Args:
        count: of all games.
        seed: of all draws.
        store: of single games.
        say: is told what is done.
    """
    ways = [(kind, nothing) for nothing in Nothing for kind in Kind]
    settings = [
        GameSetting(kind=kind, nothing=nothing, number=number // len(ways))
        for number, (kind, nothing) in zip(range(count), cycle(ways), strict=False)
    ]
    return _kept(settings, seed, store, say)


def planted_games(count: int, *, seed: int, store: Store, say: Say) -> list[Judged]:
    """Verdicts on so many games whose sensitive variable moves every feature, undefended.

    Args:
        count: of all games.
        seed: of all draws.
        store: of single games.
        say: is told what is done.
    """
    kinds = list(Kind)
    settings = [GameSetting(kind=kinds[n % len(kinds)], nothing=None, number=n // len(kinds)) for n in range(count)]
    return _kept(settings, seed, store, say)


def _kept(settings: Sequence[GameSetting], seed: int, store: Store, say: Say) -> list[Judged]:
    found = []
    for place, setting in enumerate(settings, 1):
        key = {"null": "game", "of": repr(setting), "seed": seed}
        found.append(store.kept(key, Judged, partial(setting.play, seed)))
        if place % 20 == 0 or place == len(settings):
            say(f"games: {place} of {len(settings)}, {sum(one.leaks for one in found)} called leaks")
    return found


def _found(controls: Sequence[Control]) -> bool:
    """True if the planted secret was found."""
    return all(one.passed is True for one in controls if one.planted)


def _perceptron(generator: torch.Generator) -> nn.Module:
    return mlp(features=FEATURES, hidden=(8,), classes=2, generator=generator)


__all__ = ["GameSetting", "Kind", "Nothing", "null_games", "planted_games"]

"""The inference games of an audit: what is played against the release of every scenario."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradleak.core import Release, derive_seed
from gradleak.games import Control, InferenceGame, PerturbedGame
from gradleak.results import GradleakError, PlanError

# Shadow and trial updates are made together, many at a price of one.
SHARED_COST = 0.1


# What a plan may give a list of: one game for each, which differ in nothing else and make a line of a plot.
SWEPT: Mapping[str, str] = {"batch_size": "k = {}", "public_rows": "{} public rows"}


def swept(name: str, spec: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The tables of the games that a table of a plan stands for, by name: one for each size where it gives a list of them.

    Args:
        name: of the table.
        spec: its keys and values.

    Raises:
        PlanError: for an empty list, or one with a size twice.
    """
    lists = {key: spec[key] for key in SWEPT if isinstance(spec.get(key), list)}
    for key, sizes in lists.items():
        if not sizes or len(set(map(str, sizes))) < len(sizes):
            raise PlanError(f"inference.{name}, {key}: expected a number, or different ones in a list, got {sizes}")
    games: dict[str, Mapping[str, Any]] = {}
    for chosen in itertools.product(*lists.values()):
        changes = dict(zip(lists, chosen, strict=True))
        told = [SWEPT[key].format(size) for key, size in changes.items()]
        games[", ".join([name, *told])] = {**spec, **changes}
    return games


@dataclass(frozen=True, kw_only=True, eq=False)
class InferencePlan:
    """One game of an audit, played against the releases of some scenarios.

    Attributes:
        game: rows, model, adversary; its own release is replaced by that of each scenario.
        seeds: how often it is played, each time with other rows, weights and batches.
        scenarios: names of those that it is played against; None for all.

    Raises:
        PlanError: for less than one seed, or a game that is a control.
    """

    game: InferenceGame
    seeds: int = 1
    scenarios: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the number of seeds, and that the game is no control."""
        if isinstance(self.seeds, bool) or not isinstance(self.seeds, int) or self.seeds < 1:
            raise PlanError(f"inference, seeds: expected a whole number of at least 1, got {self.seeds!r}")
        if self.game.control is not Control.NONE:
            raise PlanError(
                f"inference, control: expected a game, got a control of one ({self.game.control}), which would be judged as if "
                "it were; an audit plays both controls of every game"
            )

    def against(self, scenario: str) -> bool:
        """Whether it is played against the release of a scenario."""
        return self.scenarios is None or scenario in self.scenarios

    def through(self, release: Release, perturbation: PerturbedGame | None) -> InferenceGame:
        """The game against this release.

        Args:
            release: protocol and defenses.
            perturbation: the adversarial perturbation behind them, or None.
        """
        if perturbation is None:
            return replace(self.game, release=release)
        behind = replace(perturbation, protocol=release.protocol, before=release.defenses)
        return replace(self.game, release=behind)

    def seeds_of(self, seed: int, name: str) -> list[int]:
        """The seeds of its plays; the same for every scenario, so that rows and weights are too."""
        return [derive_seed(seed, "inference", name, str(number)) for number in range(self.seeds)]

    def check(self, name: str) -> None:
        """Refuse rows, model and settings that cannot be played; a few rows are released at a fresh model, nothing is trained.

        Raises:
            PlanError: with the reason.
        """
        try:
            self.game.rehearse()
        except GradleakError as refusal:
            raise PlanError(f"inference.{name}: {refusal}") from refusal
        except (TypeError, ValueError, RuntimeError, LookupError) as error:
            reason = " ".join(str(error).split())
            raise PlanError(f"inference.{name}: a first release raised {type(error).__name__}: {reason}") from error

    def estimate(self, scenarios: int) -> float:
        """The expected cost in plain gradients of a batch, for so many scenarios."""
        game = self.game
        training = game.rounds * getattr(game, "private_rows", game.population.size) / game.batch_size
        reading = SHARED_COST * len(game.seen) * len(game.playing) * (game.trials + game.shadow_batches)
        return scenarios * self.seeds * (training + reading)

    def resolved(self) -> dict[str, Any]:
        """What determines it, JSON-ready, without any data value."""
        return {"game": self.game.describe(), "seeds": self.seeds, "scenarios": self.scenarios and list(self.scenarios)}


__all__ = ["SWEPT", "InferencePlan", "swept"]

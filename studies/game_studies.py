"""Parts of the studies of inference games: games on their rows, models by width, defenses, and their shared settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from gradleak.attacks.inference import Classifier, MaxPooling, PrincipalComponents
from gradleak.core import Release, derive_seed
from gradleak.data import Encoding, Population
from gradleak.datasets import constructed_users
from gradleak.defenses import VariationalBottleneck
from gradleak.games import AttributeGame, DistributionGame, InferenceGame, Knows, PerturbedGame, PropertyGame, UserGame
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.training import MakeModel
from studies.census import census
from studies.game_cells import Cell, play
from studies.privacy_utility import ALPHA, Family, defense_of
from studies.store import Store
from studies.study import Say, Study


class RiskGame(StrEnum):
    """Games of the studies."""

    ATTRIBUTE = "attribute"
    PROPERTY = "property"
    DISTRIBUTION = "distribution"
    USER = "user"
    SPEAKER = "speaker"


# Those that are played on rows that everybody has.
FOUR = (RiskGame.ATTRIBUTE, RiskGame.PROPERTY, RiskGame.DISTRIBUTION, RiskGame.USER)
OWN_BATCH: Mapping[RiskGame, int] = {
    RiskGame.ATTRIBUTE: 16, RiskGame.PROPERTY: 16, RiskGame.DISTRIBUTION: 128, RiskGame.USER: 8, RiskGame.SPEAKER: 8,
}  # fmt: skip
BOTTLENECK_WIDTH = 16
_OF_ROWS: Mapping[RiskGame, type[AttributeGame] | type[PropertyGame] | type[DistributionGame]] = {
    RiskGame.ATTRIBUTE: AttributeGame, RiskGame.PROPERTY: PropertyGame, RiskGame.DISTRIBUTION: DistributionGame,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Perceptron:
    """Makes the perceptron of the paper, with a bottleneck before its last layer where there is one.

    Attributes:
        features: numbers an input.
        hidden: widths of the hidden layers.
        classes: logits.
        flat: whether inputs are images, which are written out in a row first.
        bottleneck: of the last hidden layer, or None.
    """

    features: int
    hidden: tuple[int, ...]
    classes: int
    flat: bool = False
    bottleneck: VariationalBottleneck | None = None

    def __call__(self, generator: torch.Generator) -> nn.Module:
        """A new model."""
        found: nn.Module = mlp(
            features=self.features, hidden=self.hidden, classes=self.classes, activation="relu", generator=generator
        )
        first: list[nn.Module] = [nn.Flatten()] if self.flat else []
        if self.bottleneck is None:
            return nn.Sequential(*first, found) if first else found
        *parts, last = found.children()
        assert isinstance(last, nn.Linear)
        decoder = nn.Linear(self.bottleneck.width, last.out_features)
        encoder = nn.Sequential(*first, *parts)
        return self.bottleneck.insert(encoder, decoder, features=last.in_features, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Play:
    """A game with what a study changes of it.

    Attributes:
        kind: which game; all but the one on speakers.
        batch_size: k; None for the game's own.
        public_rows: of the adversary, in games on rows.
        seeds: how often it is played; None for as often as the study says.
        width: of the hidden layers, in terms of the paper's.
        adversary: the classifier, in games on rows; None for the game's own forest.
        family: the defense, or None.
        value: its parameter.
        components: of a principal component analysis in place of pooling; None for pooling.
        encoding: of the census; None for the study's.
        standardized: of the census; None for the study's.
        knows: which adversaries.
    """

    kind: RiskGame
    batch_size: int | None = None
    public_rows: int = 1000
    seeds: int | None = None
    width: float = 1.0
    adversary: Classifier | None = None
    family: Family | None = None
    value: float = 0.0
    components: int | None = None
    encoding: Encoding | None = None
    standardized: bool | None = None
    knows: tuple[Knows, ...] = (Knows.STATIC,)

    @property
    def size(self) -> int:
        """Rows a batch."""
        return OWN_BATCH[self.kind] if self.batch_size is None else self.batch_size

    def hidden(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Hidden layers at the width, of those at width 1."""
        return tuple(max(1, round(self.width * units)) for units in own)


@dataclass(frozen=True, kw_only=True)
class GameStudy(Study):
    """A study of inference games: of gender on the Adult census, of users on constructed ones.

    Attributes:
        private_rows: of the games on Adult.
        trials: of the games on Adult.
        user_trials: of user inference.
        shadow_batches: a round.
        rounds: of training.
        observed: rounds that the adversary sees, from 0; empty for all of them.
        learning_rate: of the training.
        encoding: of the categories of the census, "one_hot" or "codes".
        standardized: whether its inputs have mean 0 and variance 1 over all rows; with codes, probably what the paper had.
        seeds: plays of every game.
        jobs: processes.
        seed: everything derives from it.
        cells: file that keeps every game as soon as it ends, and beside it, in a folder with its name and `_seeds`, every
            seed; both have to go when the code changes, the file alone when only scores do.
        compute: False to tabulate what `cells` has and compute nothing.
    """

    private_rows: int = 5000
    trials: int = 5000
    user_trials: int = 1000
    shadow_batches: int = 5000
    rounds: int = 10
    observed: Sequence[int] = ()
    learning_rate: float = 0.01
    encoding: Encoding = Encoding.ONE_HOT
    standardized: bool = False
    seeds: int = 3
    jobs: int = 1
    seed: int = 0
    cells: str | None = None
    compute: bool = True

    def played(self, store: Store, one: Play) -> dict[str, Cell] | None:
        """The cells of a game by adversary, kept or played; None where it may not be played."""
        count = self.seeds if one.seeds is None else one.seeds
        seeds = [derive_seed(self.seed, one.kind.value, str(number)) for number in range(count)]
        return play(store, self.game(one), seeds, jobs=self.jobs, compute=self.compute)

    def play_all(self, plays: Mapping[str, Play], say: Say) -> dict[str, Mapping[str, Cell]]:
        """The cells of games by label and adversary, without those that may not be played; a line each as it is there."""
        found: dict[str, Mapping[str, Cell]] = {}
        with Store(self.cells) as store:
            for label, one in plays.items():
                cells = self.played(store, one)
                if cells is not None:
                    found[label] = cells
                    told = (f"{who} {cell.text('auroc')}, {cell.text('advantage')}" for who, cell in cells.items())
                    seconds = max(cell.seconds for cell in cells.values())
                    say(f"{label}: AUROC, advantage {'; '.join(told)} ({seconds:.0f} s)")
        return found

    def population(self, one: Play) -> Population:
        """The rows of a game."""
        if one.kind is RiskGame.USER:
            return constructed_users(users=45, rows=128, seed=self.seed)
        return census(
            keep_sensitive=one.kind is RiskGame.ATTRIBUTE,
            encoding=self.encoding if one.encoding is None else one.encoding,
            standardized=self.standardized if one.standardized is None else one.standardized,
        )

    def game(self, one: Play) -> InferenceGame:
        """The game of a play."""
        rows = self.population(one)
        if one.kind is RiskGame.USER:
            of_users = Perceptron(features=784, hidden=one.hidden((64, 64)), classes=10, flat=True)
            return self._shielded(self.game_on(one, rows, of_users, kernel=10), of_users, one)
        model = Perceptron(features=rows.inputs.shape[1], hidden=one.hidden((32, 16)), classes=2)
        return self._shielded(self.game_on(one, rows, model, kernel=3), model, one)

    def game_on(
        self, one: Play, rows: Population, model: MakeModel, *, kernel: int, of_users: Mapping[str, Any] | None = None
    ) -> InferenceGame:
        """A game without a defense on rows with a model.

        Args:
            one: the play.
            rows: of the game.
            model: makes a model.
            kernel: of the pooling.
            of_users: further fields of a game about users, by name.
        """
        shared: dict[str, Any] = {
            "model": model,
            "batch_size": one.size,
            "rounds": self.rounds,
            "observed": tuple(self.observed) or None,
            "learning_rate": self.learning_rate,
            "shadow_batches": self.shadow_batches,
            "adversaries": one.knows,
            "features": MaxPooling(kernel=kernel)
            if one.components is None
            else PrincipalComponents(count=one.components),
        }
        if one.kind is RiskGame.USER:
            return UserGame(rows, trials=self.user_trials, **shared, **(of_users or {}))
        if one.adversary is not None:
            shared["adversary"] = one.adversary
        return _OF_ROWS[one.kind](
            rows, trials=self.trials, private_rows=self.private_rows, public_rows=one.public_rows, **shared
        )

    def _shielded(self, game: InferenceGame, model: Perceptron, one: Play) -> InferenceGame:
        """The game with its updates behind the defense."""
        match one.family:
            case None:
                return game
            case Family.ADVERSARIAL:
                alpha = ALPHA.get(one.value, 0.4 * one.value)
                # No user of a trial is known to the classifier, so that there is none to lead away from.
                target = 0 if one.kind is RiskGame.USER else None
                return replace(game, release=PerturbedGame(gamma=one.value, alpha=alpha, target=target))
            case Family.BOTTLENECK:
                defense = VariationalBottleneck(beta=one.value, width=BOTTLENECK_WIDTH)
                return replace(
                    game,
                    model=replace(model, bottleneck=defense),
                    loss=defense.loss(),
                    mode="train",
                    release=Release(FedSGD(), [defense]),
                )
            case _:
                return replace(game, release=Release(FedSGD(), [defense_of(one.family, one.value, one.size)]))


__all__ = ["FOUR", "OWN_BATCH", "GameStudy", "Perceptron", "Play", "RiskGame"]

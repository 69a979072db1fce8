"""Games for a value: of an attribute of one record, or a property of a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.attacks.inference import Classifier, RandomForest, balanced_labels, with_side
from gradleak.core import Batch, Release, derive_generator, derive_seed
from gradleak.data import Population, Split
from gradleak.games.game import Challenge, InferenceGame
from gradleak.games.reading import Draw, Read, RoundTask, digits, draw_of_one_value, labels_by_law, law_of
from gradleak.results import Count, InputError, Natural
from gradleak.training import BatchReleases, Trajectory


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueGame(InferenceGame):
    """A game about one of m values, of which a classifier of features gives posteriors.

    Attributes:
        adversary: the model that is fitted on features of shadow updates, fresh every round.
        private_rows: how many rows are private.
        public_rows: how many rows the adversary has.
        test_rows: how many judge the model, 0 for none (it is then not judged); None for as many as the private ones, but at
            most half of the rows that neither private nor public rows need.
        balanced: whether the public rows hold every value of the sensitive variable equally often.
        public: where the public rows come from, or None for the population.
        coincidences: whether rows of `public` that look like private or test ones are other rows all the same.
        prior: P(a) as the adversary takes it; None to estimate it.
    """

    inside: ClassVar[bool | None] = None

    adversary: Classifier = field(default_factory=RandomForest)
    private_rows: Count = 5000
    public_rows: Count = 1000
    test_rows: Natural | None = None
    balanced: bool = True
    public: Population | None = field(default=None, repr=False)
    coincidences: bool = False
    prior: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        for rows in (self.population, self.public):
            self._check_held(rows)
        if self.split is not None and self.public is not None:
            raise InputError(
                f"{type(self).__name__}: expected split or public, got both; a split says where its public rows come from"
            )
        if self.side and self.public is not None and self.public.side is None:
            raise InputError(
                f"{type(self).__name__}.public: expected side information too, as the population has it, got none; give both"
                " the same side"
            )

    def split_of(self, seed: int) -> Split:
        """The rows of a seed: the given split, or one drawn by the seed."""
        if self.split is not None:
            return self.split
        return Split.draw(
            self.population,
            private_rows=self.private_rows,
            public_rows=self.public_rows,
            test_rows=self.test_rows,
            balanced=self.balanced,
            public=self.public,
            coincidences=self.coincidences,
            generator=derive_generator(seed, "split"),
        )

    def _check_held(self, rows: Population | None) -> None:
        """Refuse an attribute that is outside of the inputs, and a property that is inside."""
        if rows is None or self.inside is None or rows.holds_sensitive is not (not self.inside):
            return
        if self.inside:
            raise InputError(
                f"{type(self).__name__}: expected rows whose inputs hold the sensitive variable, got {rows.name} without it: "
                "that is a property; play PropertyGame, or make the rows with keep_sensitive=True"
            )
        raise InputError(
            f"{type(self).__name__}: expected rows whose inputs do not hold the sensitive variable, got {rows.name} with it: "
            "that is an attribute; play AttributeGame, or make the rows with keep_sensitive=False"
        )

    @abstractmethod
    def shadow(self, public: Batch, generator: torch.Generator) -> Draw:
        """Batches of public rows with their labels, every value equally often.

        Args:
            public: the rows.
            generator: of the draw.
        """

    def _prior(self, estimated: Tensor) -> Tensor:
        """The adversary's prior: the given one, or the estimated."""
        if self.prior is None:
            return estimated
        given = torch.tensor(list(self.prior), dtype=torch.float64)
        if given.shape != estimated.shape or not bool((given >= 0).all()) or abs(float(given.sum()) - 1) > 1e-6:
            raise InputError(
                f"{type(self).__name__}.prior: expected {len(estimated)} probabilities that sum to 1, got {list(self.prior)}"
            )
        return given

    def _secret_of_rows(self, rows: Batch, entries: int) -> Tensor:
        values, count = values_of(rows), len(self.population.values)
        return torch.nn.functional.one_hot(values, count) if count <= entries else digits(values, count, entries)

    def _round_task(self, challenge: Challenge, training: Trajectory, number: int) -> RoundTask:
        seed = training.seed
        side = self.side
        return ValueRound(
            seed=seed,
            number=number,
            objective=training.at(number),
            release=training.releases[number],
            private=challenge.private,
            public=challenge.public,
            trials=challenge.trials,
            shadow=self.shadow(challenge.public, derive_generator(seed, "shadow", f"round {number}")),
            classes=len(challenge.values),
            adversaries=self.playing,
            features=self.features,
            adversary=self.adversary,
            private_side=challenge.split.private_side() if side else None,
            public_side=challenge.split.public_side() if side else None,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class OneValueGame(ValueGame):
    """A game in which all rows of a batch share one value of the sensitive variable: attribute and property inference.

    a is drawn by its share among the private rows, which is p* of the best blind guess. The adversary's prior is the
    share among the rows that neither train nor judge the model: the public rows before they are balanced.

    **Source**: Li et al. 2024, sections 3.2 and 5.1.4 (a prior "estimated from the population").
    """

    def shadow(self, public: Batch, generator: torch.Generator) -> Draw:
        """Batches of one value each, drawn with replacement from the public rows with that value."""
        names = list(self.population.values)
        labels = balanced_labels(self.shadow_batches, len(names), generator)
        return draw_of_one_value(
            labels,
            values_of(public),
            names,
            batch_size=self.batch_size,
            replacement=True,
            generator=generator,
            whose="public",
        )

    def _challenge(self, split: Split, generator: torch.Generator) -> Challenge:
        private, names = split.private_rows, list(self.population.values)
        values = values_of(private)
        law = law_of(values, len(names))
        if bool((law == 1.0).any()):
            raise InputError(
                f"{type(self).__name__}: expected private rows with at least two values of the sensitive variable, got "
                f"{private.size}, all with {names[int(law.argmax())]}, so that a blind guess is always right; raise private_rows"
            )
        trials = draw_of_one_value(
            labels_by_law(self.trials, law, generator),
            values,
            names,
            batch_size=self.batch_size,
            replacement=False,
            generator=generator,
            whose="private",
        )
        return Challenge(
            split=split,
            private=private,
            public=split.public_rows,
            values=names,
            trials=trials,
            law=law,
            prior=self._prior(law_of(split.known_values(), len(names))),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueRound(RoundTask):
    """One round of a game about values.

    Attributes:
        adversary: the model that is fitted.
    """

    adversary: Classifier

    def _read_by(self, known: Release, released: BatchReleases) -> Read:
        reduction, updates = self.reduced_shadow(known)
        trials = self.reduced_trials(released, reduction)
        learned = with_side(updates.numpy(), _side(self.public_side, self.shadow.rows))
        seen = with_side(trials.numpy(), _side(self.private_side, self.trials.rows))
        seed = derive_seed(self.seed, "fit", f"round {self.number}")
        fitted = self.adversary.fit(learned, self.shadow.labels.cpu().numpy(), self.classes, seed)
        details: dict[str, Any] = {"features": learned.shape[1], "notes": [*reduction.notes, *fitted.notes]}
        log_posterior, told = fitted.told(seen)
        return Read(log_posterior=log_posterior, details=details | told)


def _side(side: Tensor | None, rows: Tensor) -> NDArray[np.floating] | None:
    """The mean of what is known of the rows of each batch, (T, s); a row's own for batches of one."""
    if side is None:
        return None
    found: NDArray[np.floating] = side[rows].reshape(*rows.shape, -1).float().mean(dim=1).cpu().numpy()
    return found


def values_of(rows: Batch) -> Tensor:
    """The sensitive variable of rows that have one.

    Raises:
        InputError: if they have none.
    """
    if rows.sensitive is None:
        raise InputError("game: expected rows with their sensitive variable, got none")
    return rows.sensitive.cpu()


@dataclass(frozen=True, kw_only=True, eq=False)
class PropertyGame(OneValueGame):
    """Game about a property that the model does not see, inferred from gradients.

    All k rows of a batch share the property. The population's inputs must not hold it: remove its column
    (`Table.population(..., keep_sensitive=False)` does; rows that say they hold it are refused). What other features tell
    of it stays.

    **Source**: Li et al. 2024, section 3.2 (property inference game); there k = 16 and AUROC 0.9919 for gender on Adult.
    """

    kind: ClassVar[str] = "property"
    inside: ClassVar[bool | None] = False


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributeGame(OneValueGame):
    """Game about the value of a feature that the model sees, inferred from gradients.

    All k rows of a batch share the value. The population's inputs hold the feature
    (`Table.population(..., keep_sensitive=True)`; rows that say they do not are refused); apart from that the game is
    `PropertyGame`.

    **Source**: Li et al. 2024, section 3.2 (attribute inference game); there k = 16 and AUROC 0.9991 for gender on Adult.
    """

    kind: ClassVar[str] = "attribute"
    inside: ClassVar[bool | None] = True

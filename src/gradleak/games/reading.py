"""Batches that a game draws, and their releases as the adversary reads them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.attacks.inference import Features, Layout, Reduction
from gradleak.core import Batch, ModelDefense, Objective, Release, derive_generator
from gradleak.results import InputError
from gradleak.training import AnyRelease, BatchReleases, PerturbedRounds, releases_of
from gradleak.training.federated import Perturbation


@dataclass(frozen=True, kw_only=True, eq=False)
class Draw:
    """Batches of rows with the value of the sensitive variable that each was drawn for.

    Attributes:
        labels: a of every batch, (T,) int64.
        rows: places of its rows, (T, k) int64.
        references: in user inference, places of the reference batch of every candidate, (T, m, k); else None.
        note: what a reader has to know of the draw, or "".
    """

    labels: Tensor = field(repr=False)
    rows: Tensor = field(repr=False)
    references: Tensor | None = field(default=None, repr=False)
    note: str = ""


def labels_by_law(count: int, law: Tensor, generator: torch.Generator) -> Tensor:
    """Labels (count,) drawn independently by a law (m,)."""
    return torch.multinomial(law.cpu().double(), count, replacement=True, generator=generator)


def law_of(values: Tensor, count: int) -> Tensor:
    """The shares (m,) of the values 0 to count − 1 among these, float64."""
    return torch.bincount(values, minlength=count).double() / len(values)


def rows_without_replacement(held: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Some of the places `held` (n,), each at most once; with repetition where there are fewer than asked for."""
    if len(held) < count:
        return held[torch.randint(len(held), (count,), generator=generator)]
    return held[torch.randperm(len(held), generator=generator)[:count]]


def digits(places: Tensor, count: int, entries: int) -> Tensor:
    """Numbers 0 to count − 1 (n,) as digits (n, c) between 0 and 1, c at most `entries`: binary ones where they suffice.

    Args:
        places: the numbers.
        count: how many there are.
        entries: how many digits there is room for, at least 1.
    """
    base = 2
    while base**entries < count:
        base += 1
    width = 1
    while base**width < count:
        width += 1
    powers = base ** torch.arange(width, device=places.device)
    return (places[:, None] // powers % base).double() / (base - 1)


def draw_of_one_value(
    labels: Tensor,
    values: Tensor,
    names: Sequence[str],
    *,
    batch_size: int,
    replacement: bool,
    generator: torch.Generator,
    whose: str,
) -> Draw:
    """A batch for every label, all of whose rows have that value, uniformly among those that have it.

    Args:
        labels: (T,).
        values: the sensitive variable of the rows, (n,).
        names: of its values.
        batch_size: k.
        replacement: whether a row may stand twice in a batch; where a value has fewer than k rows it may anyway.
        generator: of the draw.
        whose: "private" or "public", for messages.

    Raises:
        InputError: for a label that no row has.
    """
    held = [(values == value).nonzero().flatten() for value in range(len(names))]
    rows = torch.empty(len(labels), batch_size, dtype=torch.int64)
    few = []
    for value, places in enumerate(held):
        asked = (labels == value).nonzero().flatten()
        if not len(asked):
            continue
        if not len(places):
            raise InputError(f"game: expected {whose} rows with {names[value]}, got none of {len(values)}")
        if replacement:
            rows[asked] = places[torch.randint(len(places), (len(asked), batch_size), generator=generator)]
            continue
        if len(places) < batch_size:
            few.append(f"{len(places)} with {names[value]}")
        for trial in asked.tolist():
            rows[trial] = rows_without_replacement(places, batch_size, generator)
    note = f"batches of {batch_size} hold rows twice: {whose} rows are {', '.join(few)}" if few else ""
    return Draw(labels=labels, rows=rows, note=note)


class ReleaseWithPublicRows(ABC):
    """Maker of a release once the public rows of a seed are known."""

    @abstractmethod
    def given(self, public: Batch, batch_size: int) -> AnyRelease:
        """The release.

        Args:
            public: the public rows, with their sensitive variable.
            batch_size: how many rows make an update.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class PerturbedGame(Perturbation, ReleaseWithPublicRows):
    """Adversarial perturbation against a classifier that is trained every round on the public rows of the game.

    These are the rows that the adversary has too, so that an adaptive one meets the very classifier.

    **Source**: Li et al. 2024, section 6.1 (3): the classifier learns from "the same as the shadow dataset".

    Attributes:
        target: the value that an update is to be taken for, or None for any but the true one. In a game about users it is
            needed, and the number of a public user: 0 to u − 1 in the order of their numbers in the population.
        updates: how many updates the classifier is trained on.
        hidden: units of its hidden layer.
        epochs: its passes over the updates.
    """

    updates: int = 256
    hidden: int = 64
    epochs: int = 20

    def given(self, public: Batch, batch_size: int) -> PerturbedRounds:
        """The perturbation with a classifier of these rows, trained anew every round."""
        return PerturbedRounds(public=public, batch_size=batch_size, **self.perturbation)


Floats = NDArray[np.float64]


class Knows(StrEnum):
    """Knowledge of the defenses: nothing (static), or all of them (adaptive)."""

    STATIC = "static"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """Reading of one adversary in one round.

    Attributes:
        log_posterior: of a model that was fitted on a balanced set, (T, m).
        details: of the fit, for the record (share of clipped posteriors, features).
    """

    log_posterior: Floats = field(repr=False)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundRead:
    """Readings of all adversaries in one round.

    Attributes:
        number: of the round, from 0.
        read: by adversary.
        route: how the gradients were computed, and why.
        seconds: of wall time.
        cpu_seconds: of processor time.
    """

    number: int
    read: Mapping[Knows, Read]
    route: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundTask(ABC):
    """All that is needed to read one round, so that another process can do it.

    The private rows and the labels of the trials are the challenger's: they make the released updates and go no further.

    Attributes:
        seed: of the game.
        number: of the round.
        objective: the loss at the parameters of the round.
        release: what the updates of the round leave through.
        private: rows of the trials.
        public: rows of the adversary.
        trials: batches of private rows.
        shadow: batches of public rows.
        classes: m, the number of values.
        adversaries: which ones read.
        features: how updates become short.
        private_side: what is known of the private rows, (n, s), or None.
        public_side: likewise of the public rows.
    """

    seed: int
    number: int
    objective: Objective = field(repr=False)
    release: Release
    private: Batch = field(repr=False)
    public: Batch = field(repr=False)
    trials: Draw
    shadow: Draw
    classes: int
    adversaries: Sequence[Knows]
    features: Features
    private_side: Tensor | None = field(default=None, repr=False)
    public_side: Tensor | None = field(default=None, repr=False)

    def run(self) -> RoundRead:
        """Read the round with every adversary; the same numbers in any process.

        An adversary who knows the defenses sends its shadow batches through the same release, with noise of its own; one
        who does not, through the protocol alone (with what the model holds: that is in the loss). Without any other
        defense they are one and the same, and read once.
        """
        began, cpu = time.perf_counter(), time.process_time()
        released = releases_of(self.objective, self.release, self.private)
        read: dict[Knows, Read] = {}
        for adversary in self.adversaries:
            known = self.known_release(adversary)
            same = [other for other in read if self.known_release(other).defenses == known.defenses]
            if same:
                read[adversary] = read[same[0]]
            else:
                read[adversary] = self._read_by(known, released)
        return RoundRead(
            number=self.number,
            read=read,
            route=released.reason,
            seconds=time.perf_counter() - began,
            cpu_seconds=time.process_time() - cpu,
        )

    def known_release(self, adversary: Knows) -> Release:
        """Release as an adversary takes it to be."""
        if adversary is Knows.ADAPTIVE:
            return self.release
        model = [defense for defense in self.release.defenses if isinstance(defense, ModelDefense)]
        return Release(self.release.protocol, model)

    def generator(self, *names: str) -> torch.Generator:
        """The generator of this round for what is named."""
        return derive_generator(self.seed, f"round {self.number}", *names)

    def reduced_shadow(self, known: Release) -> tuple[Reduction, Tensor]:
        """The reduction that was fitted on shadow updates through this release, and these updates reduced by it."""
        shadow = releases_of(self.objective, known, self.public)

        def chunks() -> Iterator[Tensor]:
            return shadow.chunks(self.shadow.rows, self.generator("shadow noise"))

        layout = Layout.of(self.objective.params)
        reduction = self.features.fit(chunks, layout, derive_generator(self.seed, "features", f"round {self.number}"))
        return reduction, reduce(reduction, chunks)

    def reduced_trials(self, released: BatchReleases, reduction: Reduction) -> Tensor:
        """The released updates of the trials, reduced."""
        return reduce(reduction, lambda: released.chunks(self.trials.rows, self.generator("noise")))

    @abstractmethod
    def _read_by(self, known: Release, released: BatchReleases) -> Read:
        """Reading of one adversary.

        Args:
            known: what it takes the release for.
            released: what the trials are really released by.
        """


def reduce(reduction: Reduction, chunks: Callable[[], Iterator[Tensor]]) -> Tensor:
    """Updates, chunk by chunk, as short rows."""
    return torch.cat([reduction(chunk) for chunk in chunks()])

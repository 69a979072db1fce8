"""Readings of the updates of one round: adversaries train on shadow updates, and judge the released ones."""

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
from gradleak.games.draws import Draw
from gradleak.training import BatchReleases, releases_of

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
        return derive_generator(self.seed, f"round {self.number}", *names, device=self.objective.device)

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

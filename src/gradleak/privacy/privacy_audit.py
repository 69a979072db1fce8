"""Base of the audits of epsilon: a model trained through the release, records, and pairs of hypotheses."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from gradleak.core import Batch, Mode, Objective, Release, derive_generator, describe
from gradleak.core.losses import Loss
from gradleak.data import Population, Split, rows_of
from gradleak.defenses import DPSGD
from gradleak.privacy.lower_bounds import (
    CorrectedThresholdEpsilon,
    EpsilonEstimator,
    GaussianFitEpsilon,
    PlugInEpsilon,
    SplitThresholdEpsilon,
    TrialScores,
)
from gradleak.privacy.released import HypothesisPair
from gradleak.privacy.result import AuditResult, PairResult, audit_pair
from gradleak.privacy.theory import total_epsilons
from gradleak.protocols import FedSGD
from gradleak.results import (
    LI_2024,
    Citation,
    Count,
    InputError,
    Natural,
    Outcome,
    Positive,
    Score,
    Settings,
    Share,
)
from gradleak.training import MakeModel, Task, Trajectory, follow

Say = Callable[[str], None]
# A control need not be as sharp as an audit.
CONTROL_TRIALS = 2000


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditedPair:
    """A pair of hypotheses with its name and what a record says of it.

    Attributes:
        name: for tables.
        pair: the hypotheses.
        facts: JSON-ready.
        theory: what the release as a whole promises.
        note: for the reader.
    """

    name: str
    pair: HypothesisPair
    facts: Mapping[str, Any] = field(default_factory=dict)
    theory: Sequence[Score] = ()
    note: str = ""

    def read(self, estimators: Sequence[EpsilonEstimator], *, trials: int, delta: float, seed: int) -> PairResult:
        """The pair tried so many times; see `audit_pair`.

        Args:
            estimators: bounds and estimates of epsilon.
            trials: releases a hypothesis.
            delta: δ of the theory.
            seed: of the trials and of what estimators draw.
        """
        return audit_pair(
            self.pair,
            estimators=estimators,
            trials=trials,
            delta=delta,
            seed=seed,
            name=self.name,
            theory=self.theory,
            facts=self.facts,
            note=self.note,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditSetup:
    """The pairs of an audit, before any trial.

    Attributes:
        pairs: in the order of the epochs.
        outcome: of the training.
        notes: for the reader.
    """

    pairs: Sequence[AuditedPair]
    outcome: Outcome
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class AuditPart:
    """The pairs of an audit at one point of a training that do not depend on the others.

    Attributes:
        epoch: after how many epochs of training.
        crafted: whether its records are made to be told apart; if not, they are rows by chance.
    """

    epoch: int
    crafted: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class NullPair(HypothesisPair):
    """The releases of H0 of another pair, under both hypotheses: whatever bounds epsilon must find 0.

    Attributes:
        pair: the other pair, whose statistics are kept.
    """

    pair: HypothesisPair

    def trials(self, count: int, *, generator: torch.Generator) -> dict[str, TrialScores]:
        """Twice as many releases under H0, one half for each hypothesis."""
        found = self.pair.trials(2 * count, generator=generator)
        return {
            name: TrialScores(null=scores.null[:count], alternative=scores.null[count:], name=name)
            for name, scores in found.items()
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyAudit(Settings, ABC):
    """Audit of the epsilon that releases really show, by trials of two hypotheses at some points of a training.

    The model is trained through the release on private rows, as in the inference game; at the parameters after some epochs
    pairs of hypotheses are set up, each is tried so many times, and every estimator reads the trials. Records come from
    public rows or are made; no private row is in a pair.

    Attributes:
        model: makes a model from a generator.
        release: protocol and defenses of the training and of the trials.
        loss: as `Objective.from_module` takes it.
        mode: "eval" or "train".
        epochs: after how many epochs of training the parameters are audited; 0 is the random start.
        private_rows: how many rows train the model.
        public_rows: how many an auditor has.
        batch_size: rows of a step of the training.
        learning_rate: η of the training.
        trials: releases a hypothesis and pair.
        delta: δ.
        estimators: what reads the trials; None for a split and a corrected threshold, a Gaussian fit, and the paper's plug-in.

    Raises:
        InputError: for a number out of range, or an estimator with another δ.
    """

    kind: ClassVar[str]
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    model: MakeModel
    release: Release = field(
        default_factory=lambda: Release(FedSGD(), [DPSGD(clip_norm=2.0, noise_std=0.1, noise="per_example")])
    )
    loss: str | Loss = "cross_entropy"
    mode: Mode | str = Mode.EVAL
    epochs: Sequence[Natural] = (0, 10)
    private_rows: Count = 5000
    public_rows: Count = 1000
    batch_size: Count = 16
    learning_rate: Positive = 0.01
    trials: Count = 5000
    delta: Share = 1e-5
    estimators: Sequence[EpsilonEstimator] | None = None

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        name = type(self).__name__
        if isinstance(self.model, nn.Module):
            raise InputError(
                f"{name}.model: expected a function of a generator that makes a new model for every seed, got "
                f"{type(self.model).__name__}; write model=lambda generator: MyModel()"
            )
        if not self.epochs or len(set(self.epochs)) < len(self.epochs):
            raise InputError(
                f"{name}.epochs: expected different numbers of epochs, at least one, got {list(self.epochs)}"
            )
        object.__setattr__(self, "epochs", tuple(sorted(self.epochs)))
        if self.estimators is not None:
            if not self.estimators:
                raise InputError(f"{name}.estimators: expected at least one, got none")
            for estimator in self.estimators:
                if estimator.delta != self.delta:
                    raise InputError(
                        f"{name}.estimators: expected the delta of the audit, {self.delta:g}, got {estimator.delta:g} of "
                        f"{type(estimator).__name__}"
                    )

    @property
    def reading(self) -> tuple[EpsilonEstimator, ...]:
        """The estimators."""
        if self.estimators is not None:
            return tuple(self.estimators)
        return (
            SplitThresholdEpsilon(delta=self.delta),
            CorrectedThresholdEpsilon(delta=self.delta),
            GaussianFitEpsilon(delta=self.delta),
            PlugInEpsilon(delta=self.delta),
        )

    def play(self, seed: int = 0, *, say: Say | None = None) -> AuditResult:
        """The audit once.

        Args:
            seed: of everything that is drawn.
            say: is told what was done.

        Raises:
            InputError: if the rows do not suffice, or do not fit the model.
            UnsupportedError: where the model refuses the release.
        """
        say, began = say or _silent, time.perf_counter()
        training = self.train(seed)
        say(f"trained in {training.seconds:.1f} s, {training.outcome.label}")
        pairs = [pair for part in self.parts for pair in self.read(part, training, say=say)]
        return self.result(training, pairs, seconds=time.perf_counter() - began)

    @property
    def parts(self) -> list[AuditPart]:
        """Parts that can be read apart, in any order and on any machine, once the model is trained."""
        kinds = (True, False) if self._crafts else (False,)
        return [AuditPart(epoch=epoch, crafted=crafted) for epoch in self.epochs for crafted in kinds]

    def through(self, release: Release) -> Self:
        """The same audit of another release, on the same rows.

        Args:
            release: protocol and defenses.
        """
        return replace(self, release=release)

    def train(self, seed: int = 0) -> Trajectory:
        """The training of a seed, with the parameters that are audited.

        Args:
            seed: of everything that is drawn.

        Raises:
            InputError: if the rows do not suffice, or do not fit the model.
            UnsupportedError: where the model refuses the release.
        """
        return self._trained(self._split(seed), seed)

    def read(self, part: AuditPart, training: Trajectory, *, say: Say | None = None) -> list[PairResult]:
        """The pairs of one part, each tried as often as stated and read; none where the training ended before its epoch.

        Args:
            part: one of `parts`.
            training: of the seed.
            say: is told what was done.

        Raises:
            UnsupportedError: where the model refuses the release.
        """
        say, found = say or _silent, []
        for entry in self._pairs(part, training, self._split(training.seed), say):
            found.append(self._read(entry, training.seed))
            say(f"{entry.name}: {_told(found[-1])}")
        return found

    def result(
        self, training: Trajectory, pairs: Sequence[PairResult], *, seconds: float, notes: Sequence[str] = ()
    ) -> AuditResult:
        """The result of pairs that were read.

        Args:
            training: of the seed.
            pairs: of all parts, in their order.
            seconds: of wall time.
            notes: for the reader, besides that of the training.
        """
        return AuditResult(
            kind=self.kind,
            audit=self.describe(),
            estimators=self.reading,
            pairs=tuple(pairs),
            outcome=training.outcome,
            notes=(*notes, *([training.note] if training.note else [])),
            seed=training.seed,
            seconds=seconds,
        )

    def set_up(self, seed: int = 0, *, say: Say | None = None) -> AuditSetup:
        """The model trained, the records chosen or crafted, and the pairs of hypotheses; nothing is tried.

        Args:
            seed: of everything that is drawn.
            say: is told what was done.

        Raises:
            InputError: if the rows do not suffice, or do not fit the model.
            UnsupportedError: where the model refuses the release.
        """
        say = say or _silent
        split = self._split(seed)
        training = self._trained(split, seed)
        say(f"trained in {training.seconds:.1f} s, {training.outcome.label}")
        pairs = [entry for part in self.parts for entry in self._pairs(part, training, split, say)]
        notes = [training.note] if training.note else []
        return AuditSetup(pairs=tuple(pairs), outcome=training.outcome, notes=tuple(notes))

    def null_control(self, seed: int = 0) -> AuditResult:
        """The audit at the random start with releases of H0 under both hypotheses: every lower bound must be 0."""
        return self._small(seed, lambda pair: NullPair(pair=pair))

    def planted_control(self, seed: int = 0) -> AuditResult:
        """The audit at the random start through the protocol alone: nothing hides, so that every bound must be saturated."""
        return replace(self, release=Release(self.release.protocol))._small(seed, lambda pair: pair)

    def rehearse(self, seed: int = 0) -> None:
        """Draw the rows and set up the pairs at a fresh model, with no trial and no training.

        Raises:
            InputError: if the rows do not suffice, or model, loss and rows do not fit together.
            UnsupportedError: where the model refuses the release.
        """
        split = self._split(seed)
        small = replace(self, epochs=(0,))
        training = small._trained(split, seed)
        for found in small._baselines(training.at(0), split, 0, seed):
            found.pair.trials(2, generator=derive_generator(seed, "rehearsal"))

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description, without a value of a row."""
        described: dict[str, Any] = describe(self)
        return described | {
            "model": getattr(self.model, "__qualname__", type(self.model).__name__),
            "estimators": [describe(estimator) for estimator in self.reading],
        }

    @abstractmethod
    def rows(self) -> Population:
        """All rows, private and public."""

    @abstractmethod
    def _baselines(self, objective: Objective, split: Split, epoch: int, seed: int) -> list[AuditedPair]:
        """Pairs with records that nobody crafted."""

    @property
    def _crafts(self) -> bool:
        """True if there are crafted records."""
        return False

    def _crafted(self, objective: Objective, split: Split, epoch: int, seed: int, say: Say) -> list[AuditedPair]:
        """Pairs with records that were made to be told apart; none unless an audit makes some."""
        return []

    def _total(self, objective: Objective) -> list[Score]:
        """Promise of the release as a whole, beside every pair."""
        return total_epsilons(self.release, objective, examples=1, attributes=None, delta=self.delta)

    def _pairs(self, part: AuditPart, training: Trajectory, split: Split, say: Say) -> list[AuditedPair]:
        """The pairs of one part, before any trial."""
        if part.epoch not in training.params:
            return []
        objective, seed = training.at(part.epoch), training.seed
        if part.crafted:
            found = self._crafted(objective, split, part.epoch, seed, say)
        else:
            found = self._baselines(objective, split, part.epoch, seed)
        total = self._total(objective) if found else []
        return [replace(entry, theory=total) for entry in found]

    def _read(self, entry: AuditedPair, seed: int) -> PairResult:
        return entry.read(self.reading, trials=self.trials, delta=self.delta, seed=seed)

    def _small(self, seed: int, wrap: Callable[[HypothesisPair], HypothesisPair]) -> AuditResult:
        """A control: one baseline record at the random start."""
        began = time.perf_counter()
        small = replace(self, epochs=(0,), trials=min(self.trials, CONTROL_TRIALS))
        split = small._split(seed)
        training = small._trained(split, seed)
        entries = small._baselines(training.at(0), split, 0, seed)
        pairs = [small._read(replace(entry, pair=wrap(entry.pair)), seed) for entry in entries]
        return small.result(training, pairs, seconds=time.perf_counter() - began, notes=["a control"])

    def _split(self, seed: int) -> Split:
        rows, name = self.rows(), type(self).__name__
        if self.private_rows + self.public_rows > rows.size:
            raise InputError(
                f"{name}.private_rows, {name}.public_rows: expected at most {rows.size} together, the rows of {rows.name}, got "
                f"{self.private_rows} and {self.public_rows}; lower them"
            )
        return Split.draw(
            rows,
            private_rows=self.private_rows,
            public_rows=self.public_rows,
            test_rows=0,
            balanced=False,
            generator=derive_generator(seed, "split"),
        )

    def _trained(self, split: Split, seed: int) -> Trajectory:
        private = split.private_rows
        few = rows_of(private, torch.arange(min(2, private.size)))
        task = Task(
            name=self.rows().name,
            train=private,
            test=few,
            make_model=self.model,
            loss=self.loss,
            mode=self.mode,
        )
        return follow(
            task,
            self.release,
            batch_size=self.batch_size,
            rounds=max(self.epochs) + 1,
            observed=tuple(self.epochs),
            learning_rate=self.learning_rate,
            seed=seed,
            judged=False,
        )


def public_rows(split: Split) -> Batch:
    """The public rows of a split, without the sensitive variable, which stands in the inputs where it matters."""
    return replace(split.public_rows, sensitive=None)


def numbered(name: str, number: int, many: int) -> str:
    """A name with its number from 1, where there are several."""
    return f"{name} {number + 1}" if many > 1 else name


def _told(pair: PairResult) -> str:
    found = [
        f"{statistic} {'-' if scores[0].value is None else format(scores[0].value, '.2f')}"
        for statistic, scores in pair.scores.items()
    ]
    return f"epsilon by {', '.join(found)} ({pair.seconds:.1f} s)"


def _silent(message: str) -> None:
    del message

"""The inference game: a challenger who holds the truth, and adversaries who see gradients."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gradleak.attacks.inference import Features, MaxPooling
from gradleak.core import Batch, Mode, Release, derive_generator, describe
from gradleak.core.losses import Loss
from gradleak.core.process import in_processes, in_turn
from gradleak.data import Population, Split, rows_of
from gradleak.games.information import gaussian_channel_information
from gradleak.games.reading import Draw, Knows, ReleaseWithPublicRows, RoundRead, RoundTask
from gradleak.games.result import GameResult, SeedResult
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
    check_count,
)
from gradleak.training import AnyRelease, MakeModel, Metric, Task, Trajectory, check_one_row, follow

Say = Callable[[str], None]
# A control need not be as sharp as a game.
CONTROL_TRIALS = 500


class Control(StrEnum):
    """Kind of control that a game is."""

    NONE = "none"
    SHUFFLED = "shuffled"
    PLANTED = "planted"


@dataclass(frozen=True, kw_only=True, eq=False)
class Challenge:
    """Draws of the challenger for one seed.

    Attributes:
        split: private, test and public rows.
        private: rows of the trials, in the order of their places.
        public: rows of the adversary.
        values: names of the m values of a.
        trials: batches of private rows with a.
        law: P(a) by which a is drawn, (m,).
        prior: P(a) as the adversary takes it, (m,).
        notes: for the reader.
    """

    split: Split
    private: Batch = field(repr=False)
    public: Batch = field(repr=False)
    values: Sequence[str]
    trials: Draw
    law: Tensor
    prior: Tensor
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class InferenceGame(Settings, ABC):
    """The game of definition 3.1: how well a sensitive variable a can be inferred from gradients.

    In one trial a and one batch of private rows with it are drawn, once. At each observed round the update of that very
    batch is released at the current parameters; then the model is trained for one epoch on all private rows, through the
    same release. All trials of a seed share one training. The adversary draws batches of public rows with a known a, equally
    often every value, new ones each round, and takes their updates at the same parameters: adaptive through the same
    release (with noise of its own), static through the protocol alone. It fits a fresh model a round on features of
    these, judges the released updates with it, and combines the rounds by Bayes' rule with the prior once.

    Batches of private rows hold no row twice (unless a value has fewer rows than a batch); those of public rows are drawn
    with replacement, as a bootstrap of the few rows that an adversary has. Private rows are drawn as the definition has
    it for k much smaller than their number.

    **Assumptions**: trials share the training and the private rows of a seed; what other trainings would give shows in
    more seeds. The rounds are combined as if their gradients were independent given a, which they are not: the combined
    posterior ranks well and is too sure of itself.

    **Cost**: a seed costs rounds · private rows / k releases for the training, and an observed round
    trials + shadow batches releases an adversary, with one fit.

    **Source**: Li et al. 2024, definition 3.1, sections 4 and 5.1. Deviations: shadow batches are drawn anew every round;
    the updates of the training are of k rows, which the paper does not say.

    Attributes:
        population: the rows; positional.
        model: makes a model from a generator, new for every seed.
        release: protocol and defenses; or what makes them anew every round; or what needs the public rows for that.
        loss: as `Objective.from_module` takes it.
        mode: "eval" or "train", as the clients run the model.
        metric: how the model is judged; None for what fits the targets.
        batch_size: k.
        rounds: r, how many rounds the model is trained.
        observed: the rounds, from 0, that the adversary sees; None for all.
        learning_rate: η of the training.
        features: how an update becomes short; the paper pools over 3 entries for tables, over 10 for other data.
        trials: T, how many batches are released.
        shadow_batches: how many batches of public rows a round the adversary learns from.
        adversaries: "static", "adaptive" or both.
        split: private, test and public rows, the same for every seed; None to draw them by seed.
        side: whether the adversary knows the population's side information φ of the batch, its mean over the rows.
        control: "none" for the game; "shuffled" for labels that belong to other trials, so that nothing is to be found;
            "planted" for rows that hold a and nothing else.
    """

    kind: ClassVar[str]
    draws_users: ClassVar[bool] = False
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    population: Population = field(kw_only=False)
    model: MakeModel
    release: AnyRelease | ReleaseWithPublicRows = field(default_factory=lambda: Release(FedSGD()))
    loss: str | Loss = "cross_entropy"
    mode: Mode | str = Mode.EVAL
    metric: Metric | str | None = None
    batch_size: Count = 16
    rounds: Count = 10
    observed: Sequence[Natural] | None = None
    learning_rate: Positive = 0.01
    features: Features = field(default_factory=MaxPooling)
    trials: Count = 5000
    shadow_batches: Count = 5000
    adversaries: Sequence[Knows | str] = (Knows.STATIC, Knows.ADAPTIVE)
    split: Split | None = field(default=None, repr=False)
    side: bool = False
    control: Control | str = Control.NONE

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        name = type(self).__name__
        if isinstance(self.model, nn.Module):
            raise InputError(
                f"{name}.model: expected a function of a generator that makes a new model for every seed, got "
                f"{type(self.model).__name__}; write model=lambda generator: MyModel()"
            )
        observed = self.seen
        if not observed or len(set(observed)) < len(observed) or max(observed) >= self.rounds:
            raise InputError(
                f"{name}.observed: expected different rounds from 0 to {self.rounds - 1}, at least one, got {list(observed)}"
            )
        object.__setattr__(self, "observed", tuple(sorted(observed)))
        if not self.adversaries or len(set(self.adversaries)) < len(self.adversaries):
            raise InputError(
                f"{name}.adversaries: expected some of {', '.join(Knows)}, each once, got {list(self.adversaries)}"
            )
        if self.split is not None and self.split.population is not self.population:
            raise InputError(f"{name}.split: expected a split of this game's population, got one of another")
        if self.side and self.population.side is None:
            raise InputError(
                f"{name}.side: expected a population with side information, got none; name its columns, "
                "Table.population(..., side=[...]), or pass Population(..., side=...), one row of numbers for every row"
            )

    @property
    def playing(self) -> tuple[Knows, ...]:
        """The adversaries."""
        return tuple(Knows(entry) for entry in self.adversaries)

    @property
    def seen(self) -> tuple[int, ...]:
        """The observed rounds, ascending."""
        return tuple(range(self.rounds) if self.observed is None else self.observed)

    def play(self, seed: int = 0, *, jobs: int = 1, say: Say | None = None) -> GameResult:
        """The game once: rows, training, trials and adversaries of one seed.

        Args:
            seed: of everything that is drawn.
            jobs: how many processes read the rounds, each with one thread; the numbers do not depend on it.
            say: is told what was done.

        Raises:
            InputError: if the rows do not suffice, or do not fit the model.
            UnsupportedError: where the model refuses the release.
        """
        return self.play_seeds([seed], jobs=jobs, say=say)

    @in_turn
    def play_seeds(self, seeds: Sequence[int], *, jobs: int = 1, say: Say | None = None) -> GameResult:
        """The game once a seed, pooled.

        Args:
            seeds: different from each other.
            jobs: how many processes train and read; the numbers do not depend on it.
            say: is told what was done.

        Raises:
            InputError: without a seed or with one twice, and as in `play`.
            UnsupportedError: where the model refuses the release.
        """
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"{type(self).__name__}: expected different seeds, at least one, got {list(seeds)}")
        check_count("jobs", jobs)
        say = say or _silent
        began = time.perf_counter()
        challenges = [self.challenge(seed) for seed in seeds]
        trainings: list[Trajectory] = []
        plans = [self._training(challenge, seed) for challenge, seed in zip(challenges, seeds, strict=True)]
        for training in in_processes([plan.run for plan in plans], jobs=jobs):
            trainings.append(training)
            say(f"seed {training.seed}: trained in {training.seconds:.1f} s, {training.outcome.label}")
        played = list(zip(challenges, trainings, strict=True))
        tasks = [task for one in played for task in self.readings(*one)]
        reads: list[RoundRead] = []
        for task, read in zip(tasks, in_processes([task.run for task in tasks], jobs=jobs), strict=True):
            reads.append(read)
            say(f"seed {task.seed}, round {read.number}: read in {read.seconds:.1f} s")
        return self.result(played, reads, jobs=jobs, seconds=time.perf_counter() - began)

    def train(self, seed: int) -> Trajectory:
        """The training of a seed, after which its rounds can be read one by one, in any order and on any machine.

        Args:
            seed: of everything that is drawn.

        Raises:
            InputError: if the rows do not suffice, or do not fit the model.
            UnsupportedError: where the model refuses the release.
        """
        return self._training(self.challenge(seed), seed).run()

    def readings(self, challenge: Challenge, training: Trajectory) -> list[RoundTask]:
        """The observed rounds of a seed, to be read; none where the training diverged.

        Args:
            challenge: of the seed.
            training: of the seed.
        """
        return [] if _lost(training) else [self._round_task(challenge, training, number) for number in self.seen]

    def result(
        self,
        played: Sequence[tuple[Challenge, Trajectory]],
        reads: Sequence[RoundRead],
        *,
        jobs: int = 1,
        seconds: float | None = None,
    ) -> GameResult:
        """The result of rounds that were read.

        Args:
            played: challenge and training of every seed.
            reads: of their `readings`, in that order.
            jobs: how many processes did it.
            seconds: of wall time; None for the sum of the parts.
        """
        left = iter(reads)
        runs = tuple(
            self._seed_result(challenge, training, list(islice(left, 0 if _lost(training) else len(self.seen))))
            for challenge, training in played
        )
        spent = [training.seconds for _, training in played] + [read.seconds for read in reads]
        return GameResult(
            kind=self.kind,
            game=self.describe(),
            population=self.population.name,
            values=tuple(played[0][0].values),
            observed=self.seen,
            adversaries=self.playing,
            runs=runs,
            jobs=jobs,
            seconds=sum(spent) if seconds is None else seconds,
        )

    def null_control(self, seed: int = 0, *, jobs: int = 1) -> GameResult:
        """The game with labels that belong to other trials: an AUROC of 0.5 and an advantage of 0, or a truth has leaked.

        One round at the random start, and few trials: a control need not be as sharp as the game.
        """
        return self._small(Control.SHUFFLED).play(seed, jobs=jobs)

    def planted_control(self, seed: int = 0, *, jobs: int = 1) -> GameResult:
        """The game on rows that hold a and nothing else: an AUROC of 1, or the adversary misses what is there.

        One round at the random start, and few trials, through the protocol alone: a defense may well hide what was
        planted.
        """
        return self._small(Control.PLANTED).play(seed, jobs=jobs)

    def challenge(self, seed: int) -> Challenge:
        """Draw rows, trials and the law of a for a seed."""
        split = self.split_of(seed)
        drawn = self._challenge(split, derive_generator(seed, "trials"))
        notes = [*drawn.notes, *([drawn.trials.note] if drawn.trials.note else [])]
        if split.equal_rows:
            notes.append(
                f"{split.equal_rows} of {len(split.public)} public rows look like a private or test row; they stand at other "
                "places, and may be other people"
            )
        trials = drawn.trials
        if self.control is Control.SHUFFLED:
            order = torch.randperm(len(trials.labels), generator=derive_generator(seed, "shuffled"))
            trials = replace(trials, labels=trials.labels[order])
            notes.append("a control: the labels belong to other trials")
        if self.control is Control.PLANTED:
            notes.append("a control: the rows hold the sensitive variable and nothing else")
        private, public = drawn.private, drawn.public
        if self.control is Control.PLANTED:
            private, public = self._planted(drawn.private), self._planted(drawn.public)
        return replace(drawn, trials=trials, private=private, public=public, notes=notes)

    def rehearse(self, seed: int = 0) -> None:
        """Draw the rows and release a few of each kind at a fresh model, through the protocol alone; nothing is trained.

        Among the rows is the one with the largest target, so that a model with too few classes shows.

        Raises:
            InputError: if the rows do not suffice, or model, loss and rows do not fit together.
            UnsupportedError: where the model refuses such updates.
        """
        challenge = self.challenge(seed)
        training = self._training(challenge, seed)
        objective = training.task.start(derive_generator(seed, "weights")).objective
        for rows in (challenge.private, challenge.public, training.task.test):
            size = min(self.batch_size, rows.size)
            if size == 1:
                check_one_row(objective, rows)
            largest = rows.targets.reshape(rows.size, -1).amax(dim=1).argmax()
            places = torch.cat([torch.arange(size - 1), largest[None]])
            batch = rows_of(rows, places)
            objective.check(batch.to(objective.dtype))
            Release(FedSGD())(objective, batch, derive_generator(seed, "rehearsal"))

    @abstractmethod
    def split_of(self, seed: int) -> Split:
        """The rows of a seed."""

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description, without a value of a row."""
        described: dict[str, Any] = describe(self)
        return described | {
            "population": f"{self.population.name}, {self.population.size} rows",
            "split": None if self.split is None else "given",
        }

    @abstractmethod
    def _challenge(self, split: Split, generator: torch.Generator) -> Challenge:
        """Trials on the rows of a split."""

    @abstractmethod
    def _round_task(self, challenge: Challenge, training: Trajectory, number: int) -> RoundTask:
        """Input of a process that reads one round."""

    @abstractmethod
    def _secret_of_rows(self, rows: Batch, entries: int) -> Tensor:
        """Secret that is planted, (n, c) numbers from 0 to 1, c at most the number of entries of an input."""

    def _known_to_release(self, public: Batch) -> Batch:
        """The public rows for a release that learns from them, their sensitive variable as classes from 0."""
        return public

    def _planted(self, rows: Batch) -> Batch:
        """Rows whose inputs hold the sensitive variable, written over and over, and nothing else; with one target."""
        entries = rows.inputs[0].numel()
        secret = self._secret_of_rows(rows, entries).to(rows.inputs)
        written = secret[:, torch.arange(entries) % secret.shape[1]]
        target = self.population.targets[:1].expand(rows.size, *rows.targets.shape[1:]).clone()
        return replace(rows, inputs=written.reshape(rows.inputs.shape), targets=target, domain=None)

    def _small(self, control: Control) -> Self:
        changes: dict[str, Any] = {
            "control": control,
            "rounds": 1,
            "observed": (0,),
            "trials": min(self.trials, CONTROL_TRIALS),
            "shadow_batches": min(self.shadow_batches, CONTROL_TRIALS),
        }
        if control is Control.PLANTED:
            changes["release"] = Release(FedSGD())
        return replace(self, **changes)

    def _training(self, challenge: Challenge, seed: int) -> _Training:
        release = self.release
        if isinstance(release, ReleaseWithPublicRows):
            release = release.given(self._known_to_release(challenge.public), self.batch_size)
        test = challenge.split.test_rows
        few = rows_of(challenge.private, torch.arange(min(2, challenge.private.size)))
        return _Training(
            task=Task(
                name=self.population.name,
                train=challenge.private,
                test=few if test is None else test,
                make_model=self.model,
                loss=self.loss,
                mode=self.mode,
                metric=self.metric,
            ),
            release=release,
            batch_size=self.batch_size,
            rounds=self.rounds,
            observed=self.seen,
            learning_rate=self.learning_rate,
            seed=seed,
            # A control is about the adversary; its model is not one that anybody would use.
            judged=test is not None and self.control is Control.NONE,
        )

    def _seed_result(self, challenge: Challenge, training: Trajectory, reads: Sequence[RoundRead]) -> SeedResult:
        reads = sorted(reads, key=lambda read: read.number)
        notes = [*challenge.notes, *([training.note] if training.note else [])]
        return SeedResult(
            seed=training.seed,
            outcome=training.outcome,
            truth=challenge.trials.labels.cpu().numpy(),
            log_posteriors={kind: [read.read[kind].log_posterior for read in reads] for kind in self.playing},
            details={kind: [dict(read.read[kind].details) for read in reads] for kind in self.playing},
            prior=challenge.prior.double().cpu().numpy(),
            blind=float(challenge.law.max()),
            utility=training.utility,
            rows={
                "private": challenge.private.size,
                "test": len(challenge.split.test),
                "public": challenge.public.size,
            },
            routes=tuple(dict.fromkeys(read.route for read in reads)),
            notes=tuple(notes),
            seconds={
                "training": training.seconds,
                "rounds": [read.seconds for read in reads],
                "cpu": training.cpu_seconds + sum(read.cpu_seconds for read in reads),
            },
            law=challenge.law.double().cpu().numpy(),
            drawn=self._drawn(challenge).cpu().numpy(),
            drew_users=self.draws_users,
            bound=None if self.side or not reads else self._bound(challenge, training, [read.number for read in reads]),
        )

    def _drawn(self, challenge: Challenge) -> Tensor:
        """Rows that every trial was drawn from, (T, c): trials that share any of them err together."""
        return challenge.split.private[challenge.trials.rows]

    def _bound(self, challenge: Challenge, training: Trajectory, rounds: Sequence[int]) -> Score:
        """Bound on what all observed updates of one batch tell of a; without a value where nothing bounds it."""
        return gaussian_channel_information(
            [training.releases[number] for number in rounds],
            training.start,
            examples=self.batch_size,
            prior=challenge.law.double().cpu().numpy(),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Training:
    """The training of one seed, for a process of its own; see `follow`."""

    task: Task
    release: AnyRelease
    batch_size: int
    rounds: int
    observed: Sequence[int]
    learning_rate: float
    seed: int
    judged: bool

    def run(self) -> Trajectory:
        return follow(
            self.task,
            self.release,
            batch_size=self.batch_size,
            rounds=self.rounds,
            observed=self.observed,
            learning_rate=self.learning_rate,
            seed=self.seed,
            judged=self.judged,
        )


def _lost(training: Trajectory) -> bool:
    """True if nothing was released."""
    return training.outcome is Outcome.NOT_FINITE


def _silent(message: str) -> None:
    del message

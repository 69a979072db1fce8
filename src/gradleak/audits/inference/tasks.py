"""Plays a game against one release, and its controls: one that must find what was planted, one that must find nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gradleak.audits.base import InPieces, Site
from gradleak.audits.inference.played import finding_of_game
from gradleak.games import InferenceGame
from gradleak.games.game import Challenge
from gradleak.games.reading import RoundRead, RoundTask
from gradleak.results import Control, GradleakError, Outcome, Score, Status
from gradleak.results.findings.inference import InferenceFinding
from gradleak.scoring.classification import ADVANTAGE, AUROC
from gradleak.scoring.roc import rate_interval
from gradleak.training import Trajectory

# What was planted stands in the inputs, so that nearly every trial has to be told.
PLANTED_AUROC = 0.95
# A control that fails by chance takes a whole audit with it; at 95 % one in forty would.
CONTROL_CONFIDENCE = 0.999

PLANTED = Control(
    planted=True,
    title="Positive control of a game: a planted secret",
    expects=f"an AUROC of at least {PLANTED_AUROC}, since the model has the sensitive variable among its inputs",
    meaning="The adversary, its features or the setting is broken, so finding nothing in this game means nothing. This "
    "control concerns its game alone, which then has no verdict.",
    measure=AUROC,
)
SHUFFLED = Control(
    planted=False,
    title="Negative control of a game: shuffled labels",
    expects="no advantage over a blind guess, since the labels belong to other trials",
    meaning="Something leads to the labels without the updates. A verdict “leaks” of this game cannot be trusted, so it has "
    "none; other games keep theirs.",
    measure=AUROC,
)


def blank(audit: str, scenario: str) -> InferenceFinding:
    """The finding of a game without a result.

    Args:
        audit: name of the game.
        scenario: what it is played against.
    """
    return InferenceFinding(item=f"{scenario}/{audit}", audit=audit, scenario=scenario)


def control_blank(audit: str, *, planted: bool) -> InferenceFinding:
    """The finding of a control of a game without a result.

    Args:
        audit: name of the game.
        planted: whether a secret is planted.
    """
    word, control = ("positive", PLANTED) if planted else ("negative", SHUFFLED)
    return InferenceFinding(item=f"control/{word}/{audit}", audit=audit, control=control)


@dataclass(frozen=True, kw_only=True, eq=False)
class Game(InPieces[InferenceFinding]):
    """A game against one release; the training of every seed is a piece, then every observed round.

    Attributes:
        game: of the plan.
        seeds: of its plays.
        training: share of the cost that is that of training.
        blank: its finding without a result, which names the scenario.
    """

    game: InferenceGame
    seeds: Sequence[int]
    training: float
    blank: InferenceFinding

    @property
    def goes_on(self) -> bool:
        """True: the rounds follow."""
        return True

    @property
    def pieces(self) -> list[SeedTraining]:
        """The trainings."""
        return [SeedTraining(game=self.game, seed=seed, scenario=self.blank.scenario or "") for seed in self.seeds]

    @property
    def shares(self) -> list[float]:
        """Share of training, seed by seed."""
        return [self.training / len(self.seeds)] * len(self.seeds)

    def join(
        self, site: Site, out: Path, made: Sequence[Trajectory | GradleakError]
    ) -> list[InferenceFinding] | InPieces[InferenceFinding]:
        """The rounds of every seed, or a refusal."""
        game = through(self.game, site, self.blank.scenario)
        played: list[tuple[Challenge, Trajectory]] = []
        for seed, one in zip(self.seeds, made, strict=True):
            if isinstance(one, GradleakError):
                return [_refused(self.blank, one)]
            played.append((game.challenge(seed), one))
        return Rounds(game=game, played=played, reading=1 - self.training, blank=self.blank)


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedTraining:
    """The training of one seed of a game, through one release.

    Attributes:
        game: of the plan.
        seed: of the play.
        scenario: the name of the scenario.
    """

    game: InferenceGame
    seed: int
    scenario: str

    def __call__(self, site: Site, out: Path) -> Trajectory | GradleakError:
        """The training, or the refusal."""
        try:
            return through(self.game, site, self.scenario).train(self.seed)
        except GradleakError as refusal:
            return refusal


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds(InPieces[InferenceFinding]):
    """The observed rounds of a game whose models are trained; every round of a seed is a piece.

    Attributes:
        game: against the release.
        played: challenge and training of every seed.
        reading: share of the cost that is left.
        blank: its finding without a result.
    """

    game: InferenceGame
    played: Sequence[tuple[Challenge, Trajectory]]
    reading: float
    blank: InferenceFinding

    @cached_property
    def pieces(self) -> list[Round]:
        """The rounds, seed by seed."""
        return [Round(task) for one in self.played for task in self.game.readings(*one)]

    @property
    def shares(self) -> list[float]:
        """Share of reading, in equal parts."""
        return [self.reading / len(self.pieces)] * len(self.pieces)

    def join(self, site: Site, out: Path, made: Sequence[RoundRead | GradleakError]) -> list[InferenceFinding]:
        """One finding, with the scores of every adversary: all rounds together, and by round."""
        reads: list[RoundRead] = []
        for one in made:
            if isinstance(one, GradleakError):
                return [_refused(self.blank, one)]
            reads.append(one)
        found = self.game.result(self.played, reads)
        return [finding_of_game(found, item=self.blank.item, audit=self.blank.audit, scenario=self.blank.scenario)]


@dataclass(frozen=True)
class Round:
    """One round of one seed.

    Attributes:
        task: what reads it.
    """

    task: RoundTask

    def __call__(self, site: Site, out: Path) -> RoundRead | GradleakError:
        """Readings of the adversaries, or the refusal."""
        try:
            return self.task.run()
        except GradleakError as refusal:
            return refusal


@dataclass(frozen=True, kw_only=True, eq=False)
class ControlGame:
    """A control of one game: labels that belong to other trials, or a planted secret.

    Attributes:
        game: of the plan.
        seed: of the play.
        blank: its finding without a result.
    """

    game: InferenceGame
    seed: int
    blank: InferenceFinding

    def __call__(self, site: Site, out: Path) -> list[InferenceFinding]:
        """One finding with the scores of the first adversary."""
        control = self.blank.control
        assert control is not None
        started = time.perf_counter()
        try:
            found = self.game.planted_control(self.seed) if control.planted else self.game.null_control(self.seed)
        except GradleakError as refusal:
            return [_refused(self.blank, refusal)]
        scores = found.scores(found.adversaries[0])
        return [
            self.blank.but(
                outcome=found.outcome,
                note="; ".join(found.notes),
                seconds=time.perf_counter() - started,
                scores=scores,
                control=control.but(passed=_passed(scores, planted=control.planted)),
            )
        ]


def through(game: InferenceGame, site: Site, name: str | None) -> InferenceGame:
    """The game against the release of a scenario, with the adversarial perturbation behind it where there is one.

    Args:
        game: of the plan.
        site: of the plan.
        name: of the scenario.
    """
    scenario = site.scenario(name or "")
    release, perturbation = scenario.release, scenario.perturbation
    if perturbation is None:
        return replace(game, release=release)
    return replace(game, release=replace(perturbation, protocol=release.protocol, before=release.defenses))


def _refused(empty: InferenceFinding, refusal: GradleakError) -> InferenceFinding:
    return empty.but(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=str(refusal))


def _passed(scores: Sequence[Score], *, planted: bool) -> bool | None:
    by_name = {score.name: score for score in scores}
    auroc, advantage = by_name[AUROC], by_name[ADVANTAGE]
    if auroc.value is None or (advantage.value is None and not planted):
        return None
    if planted:
        return auroc.value >= PLANTED_AUROC
    right = float(advantage.details["success_rate"]) * advantage.n
    return rate_interval(right, advantage.n, CONTROL_CONFIDENCE)[0] <= float(advantage.details["blind"])

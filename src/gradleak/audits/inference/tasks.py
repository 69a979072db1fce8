"""Plays a game against one release, and its controls: one that must find what was planted, one that must find nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradleak.audits.base import InPieces, Site
from gradleak.audits.inference.played import finding_of_game
from gradleak.core import Release
from gradleak.games import GameResult, InferenceGame, PerturbedGame
from gradleak.results import Control, GradleakError, Outcome, Score, Status
from gradleak.results.findings.inference import InferenceFinding
from gradleak.scoring.classification import ADVANTAGE, AUROC
from gradleak.scoring.roc import rate_interval

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
    """A game against one release; every seed is a piece.

    Attributes:
        game: of the plan.
        seeds: of its plays.
        blank: its finding without a result, which names the scenario.
    """

    game: InferenceGame
    seeds: Sequence[int]
    blank: InferenceFinding

    @property
    def pieces(self) -> list[Play]:
        """The plays."""
        return [Play(game=self.game, seed=seed, scenario=self.blank.scenario or "") for seed in self.seeds]

    def join(self, site: Site, out: Path, made: Sequence[GameResult | GradleakError]) -> list[InferenceFinding]:
        """One finding, with the scores of every adversary: all rounds together, and by round."""
        played: list[GameResult] = []
        for one in made:
            if isinstance(one, GradleakError):
                return [_refused(self.blank, one)]
            played.append(one)
        found = GameResult.pooled(played)
        return [finding_of_game(found, item=self.blank.item, audit=self.blank.audit, scenario=self.blank.scenario)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Play:
    """One play of a game against one release.

    Attributes:
        game: of the plan.
        seed: of the play.
        scenario: the name of the scenario.
    """

    game: InferenceGame
    seed: int
    scenario: str

    def __call__(self, site: Site, out: Path) -> GameResult | GradleakError:
        """The result of one seed, or the refusal."""
        scenario = site.scenario(self.scenario)
        try:
            return through(self.game, scenario.release, scenario.perturbation).play(self.seed)
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


def through(game: InferenceGame, release: Release, perturbation: PerturbedGame | None) -> InferenceGame:
    """The game against a release.

    Args:
        game: of the plan.
        release: protocol and defenses.
        perturbation: the adversarial perturbation behind them, or None.
    """
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

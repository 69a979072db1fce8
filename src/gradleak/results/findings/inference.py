"""Finding of an inference game: the scores of each adversary, and the settings of the game."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gradleak.results.finding import Finding, NumberOrNone, OutcomeLabel, Part
from gradleak.results.score import Evidence, Score

# Marks of scores: whose it is, and from which round alone (counted from 0); without a round it is from all observed ones.
ADVERSARY, ROUND, SEED = "adversary", "round", "seed"


class Fits(Part):
    """Fits of one adversary's models in one seed; no posterior of a trial, no truth and no row.

    Attributes:
        adversary: "static" or "adaptive".
        rounds: of the fit of every observed round: features, share of clipped posteriors.
        roc: of all observed rounds together, or None.
        log_posterior_of_truth: mean and quantiles over all trials, or None.
    """

    adversary: str
    rounds: tuple[Mapping[str, Any], ...] = ()
    roc: Mapping[str, Any] | None = None
    log_posterior_of_truth: Mapping[str, Any] | None = None


class Run(Part):
    """One seed of a game.

    Attributes:
        seed: of everything that was drawn.
        outcome: of the training.
        trials: their number.
        rows: numbers of private, test and public rows.
        prior: P(a) as the adversary takes it.
        blind: the largest P(a) by which a was drawn.
        routes: how the gradients were computed.
        seconds: of every part.
        fits: one an adversary.
    """

    seed: int
    outcome: OutcomeLabel = None
    trials: int = 0
    rows: Mapping[str, int] = {}
    prior: tuple[NumberOrNone, ...] = ()
    blind: NumberOrNone = None
    routes: tuple[str, ...] = ()
    seconds: Mapping[str, Any] = {}
    fits: tuple[Fits, ...] = ()


class InferenceFinding(Finding):
    """Finding of adversaries on the updates of one release, or a control of a game.

    Scores are marked by `adversary`, and those from one round alone by `round`; scores of the trained model by `seed`.

    Attributes:
        game: a description of the game: `use`, rows, model, release, adversary, without a data value.
        values: names of the values of the sensitive variable.
        observed: the rounds that the adversaries saw, counted from 0.
        adversaries: who played: "static", "adaptive".
        runs: one a seed.
    """

    kind: Literal["inference"] = "inference"
    game: Mapping[str, Any] = {}
    values: tuple[str, ...] = ()
    observed: tuple[int, ...] = ()
    adversaries: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()

    def together(self, name: str, adversary: str, evidence: Evidence | None = None) -> Score | None:
        """The score of one adversary from all observed rounds together, or None.

        Args:
            name: name of the score.
            adversary: whose.
            evidence: of what kind; None for any, bounds before estimates.
        """
        found = [score for score in self._of_all(name, adversary) if evidence in (None, score.evidence)]
        return _bounds_first(found)

    def known(self, name: str, adversary: str) -> Score | None:
        """The score of one adversary from all observed rounds that has a value, or None; bounds before estimates.

        Args:
            name: name of the score.
            adversary: whose.
        """
        return _bounds_first([score for score in self._of_all(name, adversary) if score.value is not None])

    def _of_all(self, name: str, adversary: str) -> list[Score]:
        return [
            score
            for score in self.scores
            if score.name == name and score.about.get(ADVERSARY) == adversary and ROUND not in score.about
        ]


def _bounds_first(scores: Sequence[Score]) -> Score | None:
    return min(scores, key=lambda score: score.evidence is not Evidence.UPPER_BOUND, default=None)

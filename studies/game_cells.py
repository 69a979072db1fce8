"""Cells of the studies of inference games, kept as they are played, and how they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gradleak.core import describe
from gradleak.games import GameResult, InferenceGame
from gradleak.results import GradleakError, Score
from studies.game_plays import PlayStore
from studies.store import Store
from studies.study import Finding
from studies.summaries import interval_between, shown_with

SCORES = ("auroc", "tpr_at_fpr", "attack_success_rate", "advantage")
WORDS: Mapping[str, str] = {
    "auroc": "AUROC", "tpr_at_fpr": "TPR at 1 % FPR", "attack_success_rate": "success rate", "advantage": "advantage",
}  # fmt: skip
# How many of the first rounds are looked at by themselves.
COUNTS = (1, 2, 3, 5, 10)
# False-positive rates at which curves are kept.
RATES = (0.01, 0.001, 0.003, 0.03, 0.1, 0.3)

Triple = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Result of one adversary in one game.

    Attributes:
        scores: by name, from all observed rounds: value, low, high.
        single: by round, the AUROC and advantage of that round alone.
        utility: of the trained model, a mean over seeds; None without.
        utilities: of the seeds by themselves.
        blind: p*.
        seconds: wall time of the game, all adversaries.
        outcome: of the trainings.
        note: for the reader.
        per_seed: the scores of the seeds by themselves, by name; empty for one seed.
        first: by number of rounds, the scores from so many rounds, the first ones, combined: value, low, high.
        first_areas: by number of rounds, the AUROC of every seed from so many rounds; empty for one seed.
        curve: by false-positive rate, the true-positive rate from all observed rounds: value, low, high.
    """

    scores: Mapping[str, Triple]
    single: Mapping[str, tuple[float | None, float | None]]
    utility: float | None
    blind: float
    seconds: float
    outcome: str
    note: str = ""
    per_seed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    first: Mapping[str, Mapping[str, Triple]] = field(default_factory=dict)
    first_areas: Mapping[str, Sequence[float]] = field(default_factory=dict)
    curve: Mapping[str, Triple] = field(default_factory=dict)
    utilities: Sequence[float] = ()

    def value(self, name: str) -> float | None:
        """A score from all observed rounds."""
        return self.scores[name][0] if name in self.scores else None

    def text(self, name: str) -> str:
        """A score with its interval, as it is printed."""
        value, low, high = self.scores.get(name, (None, None, None))
        return shown_with(value, interval_between(low, high), ".3f")

    def spread(self, name: str) -> str:
        """The sample standard deviation of a score over seeds and its range, as printed; a dash for one seed."""
        values = list(self.per_seed.get(name, ()))
        if len(values) < 2:
            return "-"
        return f"{statistics.stdev(values):.3f} ({min(values):.3f} to {max(values):.3f})"

    def finding(self, quantity: str, name: str, paper: str = "", n: int = 1) -> Finding:
        """A line of a study."""
        value, low, high = self.scores.get(name, (None, None, None))
        spread = self.spread(name)
        told = "" if spread == "-" else f"standard deviation over seeds, and range: {spread}"
        note = "; ".join(part for part in (self.note, told) if part)
        return Finding(
            quantity=f"{quantity}: {WORDS[name]}",
            ours=value,
            paper=paper,
            interval=interval_between(low, high),
            n=n,
            note=note,
        )

    @property
    def best_round(self) -> tuple[float | None, float | None]:
        """The largest AUROC and advantage of one round alone."""
        areas = [area for area, _ in self.single.values() if area is not None]
        gains = [gain for _, gain in self.single.values() if gain is not None]
        return max(areas, default=None), max(gains, default=None)


def play(
    store: Store, game: InferenceGame, seeds: Sequence[int], *, jobs: int, compute: bool
) -> dict[str, Cell] | None:
    """The cells of a game by adversary: kept ones, else it is played; None where it may not be.

    A game that is refused or whose model does not train has cells without values, with the reason. The single seeds lie in
    a folder beside the file of cells, named as the file with `_seeds` (see `PlayStore`): a run that was stopped goes on with
    the next seed, and without the file alone its scores are taken again from them.
    """
    key = {"game": describe(game.describe()), "seeds": list(seeds)}
    kept = store.get(key, dict[str, Cell])
    if kept is not None or not compute:
        return kept
    folder = None if store.path is None else store.path.with_name(f"{store.path.stem}_seeds")
    try:
        found = cells_of(PlayStore(folder).play_seeds(game, seeds, jobs=jobs))
    except GradleakError as refusal:
        nothing = Cell(
            scores={}, single={}, utility=None, blind=0.0, seconds=0.0, outcome="unsupported", note=str(refusal)
        )
        found = {str(adversary): nothing for adversary in game.playing}
    return store.add(key, dict[str, Cell], found)


def cells_of(result: GameResult) -> dict[str, Cell]:
    """The cells of a game, by adversary."""
    utilities = [run.utility.value for run in result.runs if run.utility is not None and run.utility.value is not None]
    found = {}
    for adversary in result.adversaries:
        every = result.scores(adversary, false_positive_rates=RATES)
        first = {
            str(count): result.scores(adversary, rounds=result.observed[:count])
            for count in COUNTS
            if count <= len(result.observed)
        }
        # The first rate is the one that tables have.
        together = {score.name: score for score in reversed(every)}
        by_round = {
            str(number): {score.name: score.value for score in scores}
            for number, scores in result.by_round(adversary).items()
        }
        found[str(adversary)] = Cell(
            scores={name: _triple(score) for name, score in together.items()},
            single={number: (scores["auroc"], scores["advantage"]) for number, scores in by_round.items()},
            utility=sum(utilities) / len(utilities) if utilities else None,
            utilities=utilities,
            blind=sum(run.blind for run in result.runs) / len(result.runs),
            seconds=result.seconds,
            outcome=result.outcome.label,
            note=together["auroc"].note if together["auroc"].value is None else "",
            per_seed={
                name: score.details["per_seed"] for name, score in together.items() if "per_seed" in score.details
            },
            first={count: {score.name: _triple(score) for score in scores} for count, scores in first.items()},
            first_areas={
                count: score.details["per_seed"]
                for count, scores in first.items()
                for score in scores
                if score.name == "auroc" and "per_seed" in score.details
            },
            curve={
                f"{score.details['false_positive_rate']:g}": _triple(score)
                for score in every
                if "false_positive_rate" in score.details
            },
        )
    return found


def _triple(score: Score) -> Triple:
    """Value, low, high."""
    low, high = score.interval or (None, None)
    return score.value, low, high


def facts(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """Cells JSON-ready."""
    return {name: asdict(cell) for name, cell in cells.items()}


__all__ = ["SCORES", "WORDS", "Cell", "Triple", "cells_of", "facts", "play"]

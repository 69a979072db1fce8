"""Plays the inference games of an audit, with a control that must find what was planted and one that must find nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradleak.auditing.items import Line, item_line, score_lines
from gradleak.auditing.plan import Plan
from gradleak.results import GradleakError, Outcome, Score
from gradleak.scoring.classification import ADVANTAGE, AUROC
from gradleak.scoring.intervals import rate_interval

# What was planted stands in the inputs, so that nearly every trial has to be told.
PLANTED_AUROC = 0.95
# A control that fails by chance takes a whole audit with it; at 95 % one in forty would.
CONTROL_CONFIDENCE = 0.999


@dataclass(frozen=True)
class InferenceTask:
    """The lines of one game against one scenario."""

    game: str
    scenario: str

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """An item line an adversary, each followed by its scores: all rounds together, and by round."""
        chosen = plan.inference[self.game]
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        item = f"{self.scenario}/{self.game}"
        try:
            game = chosen.through(scenario.release, scenario.perturbation)
            found = game.play_seeds(chosen.seeds_of(plan.seed, self.game))
        except GradleakError as refusal:
            line = item_line(item, "inference", self.scenario, None) | {"game_name": self.game}
            return [line | {"status": "refused", "outcome": Outcome.UNSUPPORTED.label, "note": str(refusal)}]
        facts = {"scenario": self.scenario, "game_name": self.game}
        return [line | facts | ({"kind": "inference"} if line["type"] == "item" else {}) for line in found.lines(item)]


@dataclass(frozen=True)
class InferenceControl:
    """The line of a control of one game: labels that belong to other trials, or a planted secret."""

    game: str
    planted: bool

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """An item line with `passed`, and its scores."""
        chosen = plan.inference[self.game]
        kind = "positive" if self.planted else "negative"
        started = time.perf_counter()
        seed = chosen.seeds_of(plan.seed, f"{self.game} control")[0]
        line = item_line(f"control/{kind}/{self.game}", "control", None, None) | {"game_name": self.game}
        try:
            game = chosen.game
            found = game.planted_control(seed) if self.planted else game.null_control(seed)
        except GradleakError as refusal:
            facts = {"status": "refused", "outcome": Outcome.UNSUPPORTED.label, "note": str(refusal)}
            return [line | facts | {"passed": None}]
        scores = found.scores(found.adversaries[0])
        line |= {
            "outcome": found.outcome.label,
            "passed": self._passed(scores),
            "expects": f"an AUROC of at least {PLANTED_AUROC}" if self.planted else "no advantage over a blind guess",
            "note": "; ".join(found.notes),
            "seconds": time.perf_counter() - started,
        }
        return [line, *score_lines(scores, line)]

    def _passed(self, scores: Sequence[Score]) -> bool | None:
        by_name = {score.name: score for score in scores}
        auroc, advantage = by_name[AUROC], by_name[ADVANTAGE]
        if auroc.value is None or (advantage.value is None and not self.planted):
            return None
        if self.planted:
            return auroc.value >= PLANTED_AUROC
        right = float(advantage.details["success_rate"]) * advantage.n
        return rate_interval(right, advantage.n, CONTROL_CONFIDENCE)[0] <= float(advantage.details["blind"])


__all__ = ["InferenceControl", "InferenceTask"]

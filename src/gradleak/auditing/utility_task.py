"""The utility of every scenario of an audit: new models trained through its release, beside what the release gives away."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from gradleak.auditing.items import Line, item_line, score_lines
from gradleak.auditing.plan import Plan
from gradleak.core import derive_seed
from gradleak.results import Outcome, UnsupportedError
from gradleak.utility import best_learning_rate, measure_utility


@dataclass(frozen=True)
class UtilityTask:
    """The lines of one scenario."""

    scenario: str

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """An item line with what was trained, and its scores: the utility and the epsilons."""
        chosen = plan.utility
        assert chosen is not None
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        started = time.perf_counter()
        line = item_line(f"{self.scenario}/utility", "utility", self.scenario, None)
        seeds = [derive_seed(plan.seed, "utility", str(number)) for number in range(chosen.seeds)]
        tried = len(plan.scenarios) * max(1, len(chosen.learning_rates))
        try:
            training = chosen.training
            if chosen.learning_rates:
                rate = best_learning_rate(
                    chosen.task, scenario.release, training, rates=chosen.learning_rates, seed=seeds[0]
                )
                training = replace(training, learning_rate=rate)
            found = measure_utility(
                chosen.task,
                scenario.release,
                training,
                seeds=seeds,
                settings_tried=tried,
                rates_compared=max(1, len(chosen.learning_rates)),
            )
        except UnsupportedError as refusal:
            return [line | {"status": "refused", "outcome": Outcome.UNSUPPORTED.label, "note": str(refusal)}]
        facts = {key: value for key, value in found.to_dict().items() if key not in ("score", "epsilons")}
        line |= {
            "outcome": found.score.outcome.label,
            "note": found.score.note,
            "seconds": time.perf_counter() - started,
            **facts,
        }
        return [line, *score_lines([found.score, *found.epsilons], line)]


__all__ = ["UtilityTask"]

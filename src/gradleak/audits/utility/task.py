"""The utility of one scenario: new models trained through its release, beside what the release gives away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradleak.audits.base import InPieces, Scenario, Site
from gradleak.audits.utility.curve import best_learning_rate
from gradleak.audits.utility.measure import measure_utility
from gradleak.core import DiagonalGaussian, derive_seed
from gradleak.results import Outcome, Status, UnsupportedError
from gradleak.results.findings.utility import ReleaseSize, UtilityFinding
from gradleak.training import Run, Task, Training, train


@dataclass(frozen=True, kw_only=True, eq=False)
class ScenarioUtility(InPieces[UtilityFinding]):
    """The trainings of one scenario, each a piece, unless a learning rate has to be chosen first.

    Attributes:
        audit: the name of the section.
        scenario: its name.
        task: rows and model.
        training: rounds and rates.
        seeds: how many trainings.
        learning_rates: to choose from; empty for that of the training.
        settings: how many scenarios are tried on the private rows.
    """

    audit: str
    scenario: str
    task: Task
    training: Training
    seeds: int
    learning_rates: Sequence[float]
    settings: int

    @property
    def pieces(self) -> list[OneTraining]:
        """The trainings, where their rate is known."""
        if self.learning_rates:
            return []
        return [OneTraining(of=self, number=number) for number in range(self.seeds)]

    def join(self, site: Site, out: Path, made: Sequence[tuple[Run, float] | UnsupportedError]) -> list[UtilityFinding]:
        """One finding with what was trained, and its scores: the utility and the epsilons."""
        scenario, training = site.scenario(self.scenario), self.training
        started = time.perf_counter()
        spent, runs = 0.0, []
        place = {"item": f"{self.scenario}/utility", "audit": self.audit, "scenario": self.scenario}
        seeds = [derive_seed(site.seed, "utility", str(number)) for number in range(self.seeds)]
        rates = max(1, len(self.learning_rates))
        try:
            for one in made:
                if isinstance(one, UnsupportedError):
                    raise one
                runs.append(one[0])
                spent += one[1]
            if self.learning_rates:
                rate = best_learning_rate(
                    self.task, scenario.release, training, rates=self.learning_rates, seed=seeds[0]
                )
                training = replace(training, learning_rate=rate)
            found = measure_utility(
                self.task,
                scenario.release,
                training,
                seeds=seeds,
                settings_tried=self.settings * rates,
                rates_compared=rates,
                runs=runs or None,
            )
        except UnsupportedError as refusal:
            refused = UtilityFinding(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=str(refusal), **place)
            return [refused]
        seconds = spent + time.perf_counter() - started
        return [found.finding().but(**place, seconds=seconds, attacked=_attacked(site, scenario))]


@dataclass(frozen=True, kw_only=True)
class OneTraining:
    """One training of a scenario.

    Attributes:
        of: the scenario's utility.
        number: of the training, from 0.
    """

    of: ScenarioUtility
    number: int

    def __call__(self, site: Site, out: Path) -> tuple[Run, float] | UnsupportedError:
        """The training and its seconds, or why it is refused."""
        started = time.perf_counter()
        seed = derive_seed(site.seed, "utility", str(self.number))
        try:
            found = train(self.of.task, site.scenario(self.of.scenario).release, self.of.training, seed=seed)
        except UnsupportedError as refusal:
            return refusal
        return found, time.perf_counter() - started


def _attacked(site: Site, scenario: Scenario) -> tuple[ReleaseSize, ...]:
    """Examples and noise of the releases of a scenario, each pair once."""
    found = []
    for index in scenario.examples:
        examples = site.batches[index].size
        noise = scenario.release.noise(site.objective, examples=examples)
        level = noise.level if isinstance(noise, DiagonalGaussian) else None
        found.append(ReleaseSize(examples=examples, noise_std=level or 0.0))
    return tuple(dict.fromkeys(found))

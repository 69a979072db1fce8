"""The privacy-utility curve of a defense: one point a setting, with everything a reader needs to compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gradleak.audits.utility.measure import Utility, measure_utility, refused
from gradleak.audits.utility.probe import ReconstructionProbe
from gradleak.core import Release, derive_generator
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Score, UnsupportedError
from gradleak.results.findings.utility import CurvePoint, CurveSummary
from gradleak.training import AnyRelease, Task, Training, split, train
from gradleak.training.trajectory import score_of

Say = Callable[[str], None]
VALIDATION_SHARE = 0.2


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """One setting of a defense.

    Attributes:
        family: the defense, which makes a line of the plot.
        label: the setting in words, for instance "σ = 0.1".
        release: protocol and defenses, or what makes them anew every round.
        task: the task with a model and loss of its own (a bottleneck is part of the model); None for the curve's.
        training: rounds and rates of its own (Poisson sampling for DP-SGD); None for the curve's.
    """

    family: str
    label: str
    release: AnyRelease
    task: Task | None = None
    training: Training | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """Worth of a setting, and what it hides.

    Attributes:
        setting: the setting.
        utility: with interval, epsilon, closeness to undefended updates and replaced layers.
        privacy: scores of the probe.
        learning_rate: that of the server, chosen or given.
    """

    setting: Setting
    utility: Utility
    privacy: tuple[Score, ...]
    learning_rate: float

    @property
    def credit(self) -> bool:
        """True if the setting may be credited with what it hides (`Utility.credit`)."""
        return self.utility.credit

    def score(self, name: str) -> Score | None:
        """The score of the probe with this name."""
        return next((score for score in self.privacy if score.name == name), None)

    def summary(self) -> CurvePoint:
        """The same without models and outputs."""
        return CurvePoint(
            family=self.setting.family,
            label=self.setting.label,
            learning_rate=self.learning_rate,
            utility=self.utility.finding(),
            privacy=self.privacy,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """Settings side by side.

    Attributes:
        task: its name.
        undefended: without any defense; with replaced layers, where the task replaces some.
        original: without a defense and with the layers as they were; None where none is replaced.
        points: one a setting, in the order given.
        settings_tried: how many settings the epsilons are not enlarged for.
    """

    task: str
    undefended: Point
    original: Point | None
    points: tuple[Point, ...]
    settings_tried: int

    @property
    def every(self) -> tuple[Point, ...]:
        """All points, the undefended first."""
        return (*([self.original] if self.original else []), self.undefended, *self.points)

    def summary(self) -> CurveSummary:
        """The curve as its table and figure are made of it (`gradleak.reporting.pages.utility.curve`), without models."""
        return CurveSummary(
            task=self.task,
            settings_tried=self.settings_tried,
            points=tuple(point.summary() for point in self.every),
            reference=self.every.index(self.undefended),
        )


def privacy_utility_curve(
    task: Task,
    training: Training,
    settings: Sequence[Setting],
    *,
    probe: ReconstructionProbe | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    learning_rates: Sequence[float] = (),
    say: Say | None = None,
) -> Curve:
    """Utility, closeness, epsilon and privacy of every setting, with the undefended training beside.

    A defense changes the length of an update (a sign, a clip), so that one learning rate is fair to none: with
    `learning_rates` each setting gets the one that does best on a fifth of the training rows held back, with the first
    seed, and is then trained on all of them. Test rows choose nothing. All of this looks at the private rows: every
    epsilon carries the number of settings tried, which it does not cover.

    Privacy is that of the first model, before any training, as the probe states it.

    Args:
        task: rows and model.
        training: rounds and rates.
        settings: of one defense or of several.
        probe: what is asked of every release; None for nothing.
        seeds: of the trainings.
        learning_rates: to choose from, for every setting and for none; empty for that of the training.
        say: called with a line after every setting.

    A setting that the model refuses is a point whose score is *unsupported*, with the reason.

    Raises:
        InputError: without a setting, or as `measure_utility` does.

    **Cost**: len(seeds) + len(learning_rates) trainings a setting, and the probe.
    """
    if not settings:
        raise InputError("privacy_utility_curve: expected at least one setting, got none")
    tried = len(settings) * max(1, len(learning_rates))
    work = _Work(probe=probe, seeds=tuple(seeds), rates=tuple(learning_rates), tried=tried, say=say)
    protocol = next((given.release.protocol for given in settings if isinstance(given.release, Release)), FedSGD())
    plain = Setting(family="undefended", label="undefended", release=Release(protocol))
    original = None
    if task.replacement is not None:
        before = Setting(family="undefended", label="undefended, layers as they were", release=Release(protocol))
        original = work.point(replace(task, replacement=None), training, before)
    return Curve(
        task=task.name,
        undefended=work.point(task, training, plain),
        original=original,
        points=tuple(work.point(task, training, setting) for setting in settings),
        settings_tried=tried,
    )


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Input that all points share."""

    probe: ReconstructionProbe | None
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    tried: int
    say: Say | None

    def point(self, task: Task, training: Training, setting: Setting) -> Point:
        task, training = setting.task or task, setting.training or training
        try:
            return self._computed(task, training, setting)
        except UnsupportedError as refusal:
            return Point(
                setting=setting,
                utility=refused(task, setting.release, training, str(refusal)),
                privacy=(),
                learning_rate=training.learning_rate,
            )

    def _computed(self, task: Task, training: Training, setting: Setting) -> Point:
        if self.rates:
            rate = best_learning_rate(task, setting.release, training, rates=self.rates, seed=self.seeds[0])
            training = replace(training, learning_rate=rate)
        found = measure_utility(
            task,
            setting.release,
            training,
            seeds=self.seeds,
            settings_tried=self.tried,
            rates_compared=max(1, len(self.rates)),
        )
        privacy: tuple[Score, ...] = ()
        if self.probe is not None:
            start = task.start(derive_generator(self.seeds[0], "weights"))
            privacy = self.probe(setting.release, start.objective)
        if self.say is not None:
            value = "none" if found.score.value is None else f"{found.score.value:.4f}"
            self.say(f"{setting.family}, {setting.label}: {found.score.name} {value} at η = {training.learning_rate:g}")
        return Point(setting=setting, utility=found, privacy=privacy, learning_rate=training.learning_rate)


def best_learning_rate(
    task: Task, release: AnyRelease, training: Training, *, rates: Sequence[float], seed: int
) -> float:
    """The learning rate of the server whose model does best on a fifth of the training rows, held back for this.

    The first rate where no training ends with a value. Test rows are not looked at; the private rows are, which no epsilon
    covers.

    **Cost**: one training a rate.
    """
    held = max(1, round(VALIDATION_SHARE * task.train.size))
    kept, judged = split(task.train, test_rows=held, generator=derive_generator(seed, "validation"))
    trial = replace(task, train=kept, test=judged)
    best, reached = rates[0], -float("inf")
    for rate in rates:
        attempt = replace(training, learning_rate=rate, probes=0)
        value = score_of(trial, attempt, [train(trial, release, attempt, seed=seed)]).value
        if value is not None and value > reached:
            best, reached = rate, value
    return best

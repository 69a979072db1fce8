"""The section `[privacy.NAME]` of a plan: hypotheses about the release of every scenario that are told apart by trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from gradleak import privacy as epsilon
from gradleak.audits.base import ALL_OR_NAMES, Audit, Reader, Schema, Site, Task, Writer
from gradleak.audits.base.rows import few, held
from gradleak.audits.privacy.controls import PrivacyControl, control_blank
from gradleak.audits.privacy.plan_file import settings_of
from gradleak.audits.privacy.tasks import Trials, blank
from gradleak.audits.privacy.trials import Hypotheses
from gradleak.audits.privacy.verdict import judge_privacy
from gradleak.core import Batch, Release, derive_generator, derive_seed, describe
from gradleak.privacy import Canary
from gradleak.privacy.lower_bounds import EpsilonEstimator, SplitThresholdEpsilon, TrialScores
from gradleak.results import (
    Count,
    GradleakError,
    Grounds,
    InputError,
    PlanError,
    Positive,
    Share,
    Verdict,
)
from gradleak.results.findings.privacy import PrivacyFinding

# Of a canary's step against a plain gradient: two derivatives, in lockstep over starts.
CANARY_COST = 0.5
# A step through the release and its canary, in plain gradients; and a release that is drawn and read.
PACE, RELEASE_SECONDS = 7.0, 5e-5
# Fields of an audit that hold private rows.
ROWS = ("table", "population")


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyAudit(Audit[PrivacyFinding]):
    """One audit of epsilon, of the releases of some scenarios, with two controls of its own.

    Either an audit with rows of its own, whose release is replaced by that of each scenario, or a pair of hypotheses a
    scenario.

    Attributes:
        audit: rows, model, records; None where pairs are given.
        pairs: by scenario, a user's own pairs of hypotheses.
        trials: releases a hypothesis, of pairs; an audit has its own.
        delta: δ of pairs; an audit has its own.
        estimators: what reads the trials of pairs; an audit has its own.
        claimed_epsilon: what is claimed for one release; None for what follows from the release.
        seeds: how often it is done, each time with other rows, weights, records and draws.

    Raises:
        PlanError: for a number out of range, both or neither of audit and pairs.
    """

    kind: ClassVar[str] = "privacy"
    finding: ClassVar[type[PrivacyFinding]] = PrivacyFinding
    noun: ClassVar[str] = "privacy audit"

    audit: epsilon.PrivacyAudit | None = None
    pairs: Mapping[str, epsilon.HypothesisPair] = field(default_factory=dict, repr=False)
    trials: Count = 5000
    delta: Share = 1e-5
    estimators: Sequence[EpsilonEstimator] = ()
    claimed_epsilon: Positive | None = None
    seeds: Count = 1

    def __post_init__(self) -> None:
        """Check that there is one thing to do."""
        super().__post_init__()
        if (self.audit is None) == (not self.pairs):
            raise PlanError("privacy: expected either an audit or pairs of hypotheses")
        if self.audit is None and not self.estimators:
            object.__setattr__(self, "estimators", (SplitThresholdEpsilon(delta=self.delta),))

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """The JSON Schema of the tables `[privacy.NAME]`."""
        estimator = writer.choice("estimators", without=("delta", "confidence", "comparisons"))
        canary: Schema = {
            "anyOf": [{"const": False}, writer.settings(Canary, also={"use": {"const": "Canary"}}, optional=True)]
        }
        own = {
            "seeds": writer.value(Count),
            "scenarios": ALL_OR_NAMES,
            "claimed_epsilon": writer.value(Positive),
            "confidence": writer.value(Share),
            "estimators": {"type": "array", "items": estimator},
            "canary": canary,
        }
        return {
            "privacy": writer.named(
                writer.choice("audits", also=own, without=("model", "release", "loss", "mode", "objective", "control"))
            )
        }

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """One audit a table, with new models of the plan's model, or a user's own pair of hypotheses."""
        for name, table in reader.table(plan.get(cls.kind, {}), cls.kind).items():
            where = f"{cls.kind}.{name}"
            yield cls(name=name, **settings_of(dict(reader.table(table, where)), reader, where))

    @property
    def hypotheses(self) -> Hypotheses:
        """Hypotheses that are told apart, and the way to do it."""
        if self.audit is not None:
            return Hypotheses(audit=self.audit, reading=self.audit.reading, delta=self.audit.delta)
        return Hypotheses(
            pairs=self.pairs, reading=tuple(self.estimators), delta=self.delta, count=self.trials, name=self.name
        )

    def fit(self, site: Site) -> None:
        """Refuse a scenario without a pair of hypotheses."""
        for scenario in site.scenarios:
            if self.audit is None and self.against(scenario.name) and scenario.name not in self.pairs:
                raise PlanError(
                    f"privacy.{self.name}: expected a pair of hypotheses for scenario {scenario.name!r}, got none"
                )

    def check(self, site: Site) -> None:
        """Refuse rows, model, records and settings that cannot be audited, with two trials at a fresh model.

        What a scenario alone cannot take is refused there, when its turn comes.

        Raises:
            PlanError: with the reason.
        """
        releases = [scenario.release for scenario in site.scenarios if self.against(scenario.name)]
        if not releases:
            return
        try:
            if self.audit is not None:
                _rehearse(self.audit, releases)
            for scenario, pair in self.pairs.items():
                if self.against(scenario):
                    _check_trials(pair)
        except GradleakError as refusal:
            raise PlanError(f"privacy.{self.name}: {refusal}") from refusal
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError) as error:
            reason = " ".join(str(error).split())
            raise PlanError(f"privacy.{self.name}: a first trial raised {type(error).__name__}: {reason}") from error

    def tasks(self, site: Site) -> Iterable[Task[PrivacyFinding]]:
        """Both controls of the audit, and the audit of every scenario."""
        mine = [scenario.name for scenario in site.scenarios if self.against(scenario.name)]
        hypotheses = self.hypotheses
        controls = []
        for planted, wanted in ((True, site.controls.positive), (False, site.controls.negative)):
            if wanted:
                word = "positive" if planted else "negative"
                empty = control_blank(self.name, planted=planted)
                seed = derive_seed(site.seed, "privacy control", word, self.name)
                controls.append(f"control/privacy/{word}/{self.name}")
                yield Task(
                    name=controls[-1],
                    turn=1,
                    run=PrivacyControl(hypotheses=hypotheses, scenarios=mine, seed=seed, blank=empty),
                    blank=empty,
                    headline=f"{word} control of {self.name}",
                )
        # The same for every scenario, so that rows, weights and random records are too.
        seeds = [derive_seed(site.seed, "privacy", self.name, str(number)) for number in range(self.seeds)]
        training, rest = self._costs()
        cost = training + rest
        for scenario in mine:
            empty = blank(self.name, scenario)
            yield Task(
                name=f"privacy/{scenario}/{self.name}",
                turn=1,
                needs=controls,
                run=Trials(
                    hypotheses=hypotheses,
                    stated=self.claimed_epsilon,
                    seeds=seeds,
                    training=training / cost if cost else 0.0,
                    scenarios=len(mine),
                    blank=empty,
                ),
                blank=empty,
                headline=f"{self.name}: {scenario}",
                cost=cost,
                pace=PACE,
                seconds=RELEASE_SECONDS * 2 * self.seeds * self._releases,
            )

    @classmethod
    def judge(cls, found: Sequence[PrivacyFinding], grounds: Grounds) -> Iterable[Verdict]:
        """A verdict on the audit of every scenario; see `judge_privacy`."""
        return judge_privacy(found, grounds)

    def parts(self) -> Iterable[object]:
        """The class of the audit and its settings, without its rows, which are private; or the classes of the pairs."""
        if self.audit is None:
            return [*(type(pair) for pair in self.pairs.values()), *self.estimators]
        settings = [getattr(self.audit, one.name) for one in fields(self.audit) if one.name not in ROWS]
        return [type(self.audit), *settings, *self.audit.reading]

    def private(self) -> Iterable[object]:
        """The rows of the audit, or the pairs of a user's own."""
        names = [] if self.audit is None else [one.name for one in fields(self.audit) if one.name in ROWS]
        return [self.pairs, *(held(getattr(self.audit, name)) for name in names)]

    def probed(self) -> Batch | None:
        """The first rows of the audit; pairs have none that a model could see."""
        return None if self.audit is None else few(self.audit.rows())

    def resolved(self) -> dict[str, Any]:
        """Settings that determine it, JSON-ready, without any data value."""
        if self.audit is not None:
            what: dict[str, Any] = {"audit": self.audit.describe()}
        else:
            what = {
                "pairs": {scenario: type(pair).__name__ for scenario, pair in self.pairs.items()},
                "trials": self.trials,
                "delta": self.delta,
                "estimators": [describe(estimator) for estimator in self.estimators],
            }
        return what | {
            "claimed_epsilon": self.claimed_epsilon,
            "seeds": self.seeds,
            "scenarios": self.scenarios and list(self.scenarios),
        }

    @property
    def _releases(self) -> int:
        """Releases of a hypothesis in a scenario."""
        return self.trials if self.audit is None else self.audit.trials * len(self.audit.epochs)

    def _costs(self) -> tuple[float, float]:
        """The expected costs of training, and of all that follows, for one scenario, in plain gradients of a batch."""
        audit = self.audit
        if audit is None:
            return 0.0, float(self.seeds * 2 * self.trials)
        training = max(audit.epochs) * audit.private_rows / audit.batch_size
        crafted = 0.0
        if isinstance(audit, epsilon.AttributeAudit) and audit.canary is not None:
            values = len(audit.record_attribute.values)
            crafted = CANARY_COST * len(audit.epochs) * audit.canary.iterations * values
        return self.seeds * training, self.seeds * crafted


def _rehearse(audit: epsilon.PrivacyAudit, releases: Sequence[Release]) -> None:
    """Try the first release that is not refused; what no release is taken of is wrong by itself."""
    refused: GradleakError | None = None
    for release in releases:
        try:
            return replace(audit, release=release).rehearse()
        except GradleakError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def _check_trials(pair: epsilon.HypothesisPair) -> None:
    """Refuse a pair that does not give what it has to."""
    found = pair.trials(2, generator=derive_generator(0, "rehearsal"))
    if not isinstance(found, Mapping) or not found or not all(isinstance(s, TrialScores) for s in found.values()):
        raise InputError(
            f"{type(pair).__name__}.trials: expected TrialScores by the name of the statistic, got {type(found).__name__}"
        )
    wrong = [(name, scores.counts) for name, scores in found.items() if scores.counts != (2, 2)]
    if wrong:
        raise InputError(
            f"{type(pair).__name__}.trials(2): expected 2 trials of each hypothesis, got {wrong[0][1]} of {wrong[0][0]}"
        )

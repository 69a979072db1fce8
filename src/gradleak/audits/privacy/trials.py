"""Trials of a privacy audit: hypotheses about a release, tried and read by estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradleak.audits.base import Scenario
from gradleak.core import Objective, derive_generator, derive_seed
from gradleak.privacy import (
    AuditResult,
    HypothesisPair,
    MembershipAudit,
    NullPair,
    PairResult,
    PrivacyAudit,
    Statistic,
    as_estimate,
    assumes_gaussians,
    audit_pair,
)
from gradleak.privacy.lower_bounds import EpsilonEstimator, TrialScores
from gradleak.results import Evidence, GradleakError, Score

# So many times the round-off of a release without noise another one has to be away to be another.
ROUND_OFF = 100.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypotheses:
    """Hypotheses about the release of a scenario: those of an audit with rows of its own, or a user's own pairs.

    Attributes:
        audit: rows, model, records; None where pairs are given.
        pairs: by scenario.
        reading: what reads the trials.
        delta: δ of every number.
        count: releases a hypothesis, of pairs.
        name: of the audit, for pairs.
    """

    audit: PrivacyAudit | None = None
    pairs: Mapping[str, HypothesisPair] = field(default_factory=dict, repr=False)
    reading: Sequence[EpsilonEstimator]
    delta: float
    count: int = 0
    name: str = ""

    @property
    def bounds(self) -> list[EpsilonEstimator]:
        """Estimators that give lower bounds."""
        return [estimator for estimator in self.reading if estimator.evidence is Evidence.LOWER_BOUND]

    @property
    def confidence(self) -> float:
        """Confidence with which the bounds hold."""
        return next((estimator.confidence for estimator in self.reading), 0.95)

    @property
    def rows(self) -> int | None:
        """Number of private rows that the records stand for; of a user's own pairs that is not known."""
        return None if self.audit is None else self.audit.private_rows

    @property
    def examples(self) -> int:
        """Number of examples in a release of an audit."""
        return self.audit.members if isinstance(self.audit, MembershipAudit) else 1

    def of_pair(self, scenario: Scenario, seed: int) -> AuditResult:
        """The trials of a user's own pair, of one scenario and seed, read by the estimators as they stand in the plan.

        Args:
            scenario: whose release.
            seed: of everything that is drawn.

        Raises:
            GradleakError: as the pair or an estimator does.
        """
        pair = self.pairs[scenario.name]
        found = audit_pair(
            pair, estimators=self.reading, trials=self.count, delta=self.delta, seed=seed, name=self.name
        )
        return AuditResult(
            kind="own",
            audit={"use": type(pair).__name__},
            estimators=tuple(self.reading),
            pairs=[found],
            seed=seed,
            seconds=found.seconds,
        )

    def null(self, scenario: Scenario, seed: int, count: int) -> list[TrialScores]:
        """The statistics of releases of the null hypothesis under both.

        Args:
            scenario: whose release.
            seed: of everything that is drawn.
            count: releases a hypothesis, of pairs.

        Raises:
            GradleakError: where the scenario cannot be audited.
        """
        if self.audit is None:
            pair = NullPair(pair=self.pairs[scenario.name])
            return list(pair.trials(count, generator=derive_generator(seed, "control")).values())
        found = self.audit.through(scenario.release).null_control(seed)
        return [scores for pair in found.pairs for scores in pair.samples.values()]

    def without_noise(self, scenario: Scenario, objective: Objective) -> bool:
        """True if nothing of a release is random, as far as it says; of a user's own pair that is not known.

        Args:
            scenario: whose release.
            objective: the client's loss; its shapes say which layer carries which noise.
        """
        if self.audit is None:
            return False
        try:
            return scenario.release.noise(objective, examples=self.examples) is None
        except GradleakError:
            return False


def together(found: AuditResult, many: int) -> AuditResult:
    """Its bounds again, so that `many` of them hold together; estimates as they are.

    Args:
        found: by an audit.
        many: how many bounds there are.
    """
    strict = tuple(
        replace(one, comparisons=many * one.comparisons) if one.evidence is Evidence.LOWER_BOUND else one
        for one in found.estimators
    )
    pairs = [
        replace(
            pair,
            scores={
                statistic: tuple(
                    _held(
                        estimator,
                        estimator.estimate(scores, seed=derive_seed(found.seed, "estimate", pair.name, statistic)),
                        pair,
                    )
                    for estimator in strict
                )
                for statistic, scores in pair.samples.items()
            },
        )
        for pair in found.pairs
    ]
    return replace(found, estimators=strict, pairs=pairs)


def apart(pair: PairResult) -> bool:
    """True if releases without noise are others under the alternative, by more than round-off.

    The distance from the release that was computed beforehand is 0 under the null hypothesis, up to round-off.

    Args:
        pair: with its trials.
    """
    distance = pair.samples[Statistic.DISTANCE]
    return float(distance.alternative.min()) > ROUND_OFF * float(distance.null.max())


def never_varies(pair: PairResult) -> bool:
    """True if every release of the null hypothesis is the same.

    Args:
        pair: with its trials.
    """
    return all(float(np.ptp(scores.null)) == 0.0 for scores in pair.samples.values())


def _held(estimator: EpsilonEstimator, score: Score, pair: PairResult) -> Score:
    """A bound that assumes two Gaussians is an estimate where they are not known to be that."""
    return score if not assumes_gaussians(estimator) or _two_gaussians(pair.facts) else as_estimate(score)


def _two_gaussians(facts: Mapping[str, Any]) -> bool:
    one = len(facts.get("distances", ())) == 1
    return facts.get("law") == "Gaussian" and one and facts.get("std") == facts.get("std_alternative")

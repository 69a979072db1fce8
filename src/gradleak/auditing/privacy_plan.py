"""The privacy audits of an audit: which hypotheses about the release of every scenario are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradleak.accounting import mechanism_of, pld_epsilon
from gradleak.core import Adjacency, NoGuarantee, Objective, Release, Unit, derive_generator, derive_seed, describe
from gradleak.privacy import AttributeAudit, AuditResult, HypothesisPair, MembershipAudit, PrivacyAudit, audit_pair
from gradleak.privacy.lower_bounds import EpsilonEstimator, SplitThresholdEpsilon, TrialScores
from gradleak.results import Evidence, GradleakError, InputError, PlanError, check_count, check_positive, check_share

# Of a canary's step against a plain gradient: two derivatives, in lockstep over starts.
CANARY_COST = 0.5


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An epsilon that is said to hold for one release, or why none is.

    Attributes:
        epsilon: the number, or None.
        delta: δ.
        of: for what it is claimed, in words.
        reason: why there is none, or "".
        proven: whether it follows from the release; a number that the plan states does not.
    """

    epsilon: float | None
    delta: float
    of: str = ""
    reason: str = ""
    proven: bool = False

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        evidence = Evidence.UPPER_BOUND.value if self.proven else ""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "of": self.of,
            "reason": self.reason,
            "proven": self.proven,
            "evidence": evidence,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivacyPlan:
    """One privacy audit of an audit, of the releases of some scenarios.

    Either an audit, whose own release is replaced by that of each scenario, or a pair of hypotheses a scenario.

    Attributes:
        audit: rows, model, records; None where pairs are given.
        pairs: by scenario, a user's own pairs of hypotheses.
        trials: releases a hypothesis, of pairs; an audit has its own.
        delta: δ of pairs; an audit has its own.
        estimators: what reads the trials of pairs; an audit has its own.
        claimed_epsilon: what is claimed for one release; None for what follows from the release.
        seeds: how often it is done, each time with other rows, weights, records and draws.
        scenarios: names of those that it is done for; None for all.

    Raises:
        PlanError: for a number out of range, both or neither of audit and pairs.
    """

    audit: PrivacyAudit | None = None
    pairs: Mapping[str, HypothesisPair] = field(default_factory=dict, repr=False)
    trials: int = 5000
    delta: float = 1e-5
    estimators: Sequence[EpsilonEstimator] = ()
    claimed_epsilon: float | None = None
    seeds: int = 1
    scenarios: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the numbers, and that there is one thing to do."""
        try:
            check_count("privacy, seeds", self.seeds)
            check_count("privacy, trials", self.trials)
            check_share("privacy, delta", self.delta)
            if self.claimed_epsilon is not None:
                check_positive("privacy, claimed_epsilon", self.claimed_epsilon)
        except InputError as error:
            raise PlanError(str(error)) from error
        if (self.audit is None) == (not self.pairs):
            raise PlanError("privacy: expected either an audit or pairs of hypotheses")
        if self.audit is None and not self.estimators:
            object.__setattr__(self, "estimators", (SplitThresholdEpsilon(delta=self.delta),))

    def against(self, scenario: str) -> bool:
        """Whether it is done for a scenario."""
        return self.scenarios is None or scenario in self.scenarios

    def seeds_of(self, seed: int, name: str) -> list[int]:
        """The seeds; the same for every scenario, so that rows, weights and random records are too."""
        return [derive_seed(seed, "privacy", name, str(number)) for number in range(self.seeds)]

    @property
    def reading(self) -> tuple[EpsilonEstimator, ...]:
        """What reads the trials."""
        return tuple(self.estimators) if self.audit is None else self.audit.reading

    @property
    def shared_delta(self) -> float:
        """δ of every number."""
        return self.delta if self.audit is None else self.audit.delta

    @property
    def examples(self) -> int:
        """How many examples a release of an audit is made of."""
        return self.audit.members if isinstance(self.audit, MembershipAudit) else 1

    def play(self, scenario: str, release: Release, seed: int, name: str) -> AuditResult:
        """The trials of one scenario and seed, read by the estimators as they stand in the plan.

        Args:
            scenario: its name.
            release: protocol and defenses.
            seed: of everything that is drawn.
            name: of the audit.

        Raises:
            GradleakError: where rows, model and release do not fit together.
        """
        if self.audit is not None:
            return replace(self.audit, release=release).play(seed)
        pair = self.pairs[scenario]
        found = audit_pair(
            pair,
            estimators=self.reading,
            trials=self.trials,
            delta=self.delta,
            seed=seed,
            name=name,
        )
        return AuditResult(
            kind="own",
            audit={"use": type(pair).__name__},
            estimators=self.reading,
            pairs=[found],
            seed=seed,
            seconds=found.seconds,
        )

    def check(self, name: str, releases: Mapping[str, Release]) -> None:
        """Refuse rows, model, records and settings that cannot be audited, with two trials at a fresh model.

        What a scenario alone cannot take is refused there, when its turn comes.

        Args:
            name: of the audit.
            releases: of the scenarios, by name.

        Raises:
            PlanError: with the reason.
        """
        mine = [scenario for scenario in releases if self.against(scenario)]
        if not mine:
            return
        try:
            if self.audit is not None:
                self._rehearse(self.audit, [releases[scenario] for scenario in mine])
            for scenario, pair in self.pairs.items():
                if self.against(scenario):
                    _check_trials(pair)
        except GradleakError as refusal:
            raise PlanError(f"privacy.{name}: {refusal}") from refusal
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError) as error:
            reason = " ".join(str(error).split())
            raise PlanError(f"privacy.{name}: a first trial raised {type(error).__name__}: {reason}") from error

    def _rehearse(self, audit: PrivacyAudit, releases: Sequence[Release]) -> None:
        """With the first release that is not refused; what no release is taken of is wrong by itself."""
        refused: GradleakError | None = None
        for release in releases:
            try:
                return replace(audit, release=release).rehearse()
            except GradleakError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def claim(self, release: Release, objective: Objective) -> Claim:
        """What is claimed for one release: what the plan states, else what the noise of the release proves.

        An attribute is one record in place of another; the presence of an example is what the audit takes for it.

        Args:
            release: protocol and defenses.
            objective: the client's loss; its shapes say which layer carries which noise.
        """
        delta = self.shared_delta
        if self.claimed_epsilon is not None:
            return Claim(epsilon=self.claimed_epsilon, delta=delta, of="as the plan states")
        if isinstance(self.audit, MembershipAudit):
            adjacency = Adjacency(self.audit.adjacency)
        elif isinstance(self.audit, AttributeAudit):
            adjacency = Adjacency.REPLACE
        else:
            reason = "the plan states no claimed_epsilon, and what differs between the two hypotheses is not known"
            return Claim(epsilon=None, delta=delta, reason=reason)
        try:
            found = mechanism_of(release, objective, self.examples)
        except GradleakError as refusal:
            return Claim(epsilon=None, delta=delta, reason=str(refusal))
        if isinstance(found, NoGuarantee):
            return Claim(epsilon=None, delta=delta, reason=found.reason)
        # Who hides a whole client hides another example in its update, as one update in place of another.
        adjacency = Adjacency.REPLACE if found.unit is Unit.CLIENT else adjacency
        epsilon = pld_epsilon(found, delta=delta, adjacency=adjacency)
        if epsilon.value is None:
            return Claim(epsilon=None, delta=delta, reason=epsilon.note)
        what = "an update" if found.unit is Unit.CLIENT else "a record"
        of = f"{what} {'replaced' if adjacency is Adjacency.REPLACE else 'there or not'}, by the noise of one release"
        counted = found.fixed or adjacency is Adjacency.REPLACE
        of += "" if counted else ", as if divisor and noise did not tell how many there are"
        return Claim(epsilon=epsilon.value, delta=delta, of=of, proven=counted)

    def estimate(self, scenarios: int) -> float:
        """The expected cost in plain gradients of a batch, for so many scenarios."""
        audit = self.audit
        if audit is None:
            return float(scenarios * self.seeds * 2 * self.trials)
        training = max(audit.epochs) * audit.private_rows / audit.batch_size
        crafted = 0.0
        if isinstance(audit, AttributeAudit) and audit.canary is not None:
            values = len(audit.record_attribute.values)
            crafted = CANARY_COST * len(audit.epochs) * audit.canary.iterations * values
        return scenarios * self.seeds * (training + crafted)

    def private_data(self) -> list[Any]:
        """What its record must not be continued for when it changes: rows, and the pairs of a user's own."""
        if isinstance(self.audit, AttributeAudit):
            cells = self.audit.table.cells
            return [(name, np.ascontiguousarray(values).tobytes()) for name, values in cells.items()]
        if isinstance(self.audit, MembershipAudit):
            rows = self.audit.population
            return [(rows.inputs, rows.targets, rows.sensitive)]
        return [self.pairs]

    def resolved(self) -> dict[str, Any]:
        """What determines it, JSON-ready, without any data value."""
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


def _check_trials(pair: HypothesisPair) -> None:
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


__all__ = ["Claim", "PrivacyPlan"]

"""Carries out a privacy audit of one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradleak.audits.base import InPieces, Site
from gradleak.audits.privacy.claims import claim_of
from gradleak.audits.privacy.measured import measured, without_pairs
from gradleak.audits.privacy.trials import Hypotheses
from gradleak.privacy import AuditPart, AuditResult, PairResult, PrivacyAudit
from gradleak.results import GradleakError, Outcome, Status
from gradleak.results.findings.privacy import PrivacyFinding
from gradleak.training import Trajectory

# Time of a search for canaries, in that of the trials of another record: 1.1 s and 0.04 s in the example of a census.
_SEARCH = 25.0


def blank(audit: str, scenario: str) -> PrivacyFinding:
    """The finding of an audit without a result.

    Args:
        audit: its name.
        scenario: whose release is audited.
    """
    return PrivacyFinding(item=f"{scenario}/{audit}", audit=audit, scenario=scenario)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials(InPieces[PrivacyFinding]):
    """The trials of one scenario; every seed is a piece, and of an audit with a model what its training leads to.

    Attributes:
        hypotheses: what is told apart.
        stated: the epsilon that the plan claims, or None.
        seeds: one a repetition.
        training: share of the cost that is that of training a model.
        scenarios: how many scenarios the audit is done for; all their lower bounds are to hold together.
        blank: its finding without a result, which names the scenario.
    """

    hypotheses: Hypotheses
    stated: float | None
    seeds: Sequence[int]
    training: float
    scenarios: int
    blank: PrivacyFinding

    @property
    def goes_on(self) -> bool:
        """True where a model is trained."""
        return self.hypotheses.audit is not None

    @property
    def pieces(self) -> list[Repetition]:
        """The trainings, or the trials of a user's own pair."""
        return [
            Repetition(hypotheses=self.hypotheses, seed=seed, scenario=self.blank.scenario or "") for seed in self.seeds
        ]

    @property
    def shares(self) -> list[float]:
        """Share of training, seed by seed; of a user's own pair all."""
        return [(self.training if self.goes_on else 1.0) / len(self.seeds)] * len(self.seeds)

    def join(
        self, site: Site, out: Path, made: Sequence[AuditResult | Trajectory | GradleakError]
    ) -> list[PrivacyFinding] | InPieces[PrivacyFinding]:
        """The trials of trained models; or one finding with what was measured of a user's own pair."""
        results: list[AuditResult] = []
        trainings: list[Trajectory] = []
        for one in made:
            if isinstance(one, GradleakError):
                return self.refused(site, one)
            if isinstance(one, AuditResult):
                results.append(one)
            else:
                trainings.append(one)
        audit = self.hypotheses.audit
        if audit is None:
            return self.findings(site, results)
        release = site.scenario(self.blank.scenario or "").release
        return AuditParts(trials=self, audit=audit.through(release), trainings=trainings)

    def findings(self, site: Site, results: Sequence[AuditResult]) -> list[PrivacyFinding]:
        """One finding with what was measured of every pair of hypotheses, and what is known of it.

        Args:
            site: of the plan.
            results: one a seed.
        """
        empty = self._empty(site)
        if not any(found.pairs for found in results):
            return [without_pairs(results, empty)]
        tried = sum(len(pair.samples) for found in results for pair in found.pairs)
        return [
            measured(
                results,
                empty,
                many=max(1, self.scenarios * len(self.hypotheses.bounds) * tried),
                quiet=self.hypotheses.without_noise(site.scenario(self.blank.scenario or ""), site.objective),
                scenarios=self.scenarios,
            )
        ]

    def refused(self, site: Site, reason: GradleakError) -> list[PrivacyFinding]:
        """One finding without a result.

        Args:
            site: of the plan.
            reason: why.
        """
        return [self._empty(site).but(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=str(reason))]

    def _empty(self, site: Site) -> PrivacyFinding:
        release = site.scenario(self.blank.scenario or "").release
        return self.blank.but(claim=claim_of(self.hypotheses, release, site.objective, self.stated))


@dataclass(frozen=True, kw_only=True, eq=False)
class Repetition:
    """The training of one scenario and seed; of a user's own pair its trials.

    Attributes:
        hypotheses: what is told apart.
        seed: of everything that is drawn.
        scenario: its name.
    """

    hypotheses: Hypotheses
    seed: int
    scenario: str

    def __call__(self, site: Site, out: Path) -> AuditResult | Trajectory | GradleakError:
        """Result of one seed, or the refusal."""
        scenario, audit = site.scenario(self.scenario), self.hypotheses.audit
        try:
            if audit is None:
                return self.hypotheses.of_pair(scenario, self.seed)
            return audit.through(scenario.release).train(self.seed)
        except GradleakError as refusal:
            return refusal


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditParts(InPieces[PrivacyFinding]):
    """The trials of trained models: crafted records and others, at every epoch of every seed, are pieces.

    Attributes:
        trials: of the scenario.
        audit: of its release.
        trainings: one a seed.
    """

    trials: Trials
    audit: PrivacyAudit
    trainings: Sequence[Trajectory]

    @property
    def pieces(self) -> list[PartTrials]:
        """The parts, seed by seed."""
        return [
            PartTrials(audit=self.audit, part=part, training=_at(training, part.epoch))
            for training in self.trainings
            for part in self.audit.parts
        ]

    @property
    def shares(self) -> list[float]:
        """Share that training has left; searches take nearly all of it."""
        weights = [_SEARCH if part.crafted else 1.0 for part in self.audit.parts]
        each = (1 - self.trials.training) / len(self.trainings) / sum(weights)
        return [each * weight for _ in self.trainings for weight in weights]

    def join(self, site: Site, out: Path, made: Sequence[Sequence[PairResult] | GradleakError]) -> list[PrivacyFinding]:
        """One finding with what was measured of every pair of hypotheses."""
        read: list[Sequence[PairResult]] = []
        for one in made:
            if isinstance(one, GradleakError):
                return self.trials.refused(site, one)
            read.append(one)
        many = len(self.audit.parts)
        results = []
        for place, training in enumerate(self.trainings):
            pairs = [pair for part in read[place * many : (place + 1) * many] for pair in part]
            seconds = training.seconds + sum(pair.seconds for pair in pairs)
            results.append(self.audit.result(training, pairs, seconds=seconds))
        return self.trials.findings(site, results)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartTrials:
    """The trials of one part of an audit.

    Attributes:
        audit: of the release.
        part: of the audit.
        training: with the parameters of its epoch.
    """

    audit: PrivacyAudit
    part: AuditPart
    training: Trajectory

    def __call__(self, site: Site, out: Path) -> Sequence[PairResult] | GradleakError:
        """The pairs, tried and read, or the refusal."""
        try:
            return self.audit.read(self.part, self.training)
        except GradleakError as refusal:
            return refusal


def _at(training: Trajectory, epoch: int) -> Trajectory:
    """The training with nothing but the parameters of one epoch."""
    return replace(training, params={one: held for one, held in training.params.items() if one == epoch}, releases={})

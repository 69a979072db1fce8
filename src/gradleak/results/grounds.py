"""Grounds of verdicts: the findings of a run, by scenario and subject, and the thresholds of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gradleak.results.finding import Finding, Subject
from gradleak.results.score import Evidence, Score
from gradleak.results.thresholds import Thresholds
from gradleak.results.verdict import Verdict

Place = tuple[str | None, Subject | None]


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """The findings of a run and its thresholds; asked by scenario, subject, name and evidence, never by a kind of audit.

    Attributes:
        thresholds: of the plan.
        findings: of the run, in the order of the plan.
        verdicts: those that were given before, by audits that stand earlier in the plan.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    findings: Sequence[Finding] = ()
    verdicts: Sequence[Verdict] = ()

    def given(self, verdicts: Sequence[Verdict]) -> Grounds:
        """The same with the verdicts that were given so far; what was looked up stays looked up."""
        found = replace(self, verdicts=tuple(verdicts))
        found.__dict__.update({"_by_place": self._by_place, "_controls": self._controls})
        return found

    def about(self, scenario: str | None, subject: Subject | None = None) -> Sequence[Finding]:
        """The findings about a subject in a scenario, controls left out; in the order of the record.

        Args:
            scenario: its name, or None for the whole plan.
            subject: of which; None for findings that have none.
        """
        return self._by_place.get((scenario, subject), ())

    def scores(self, name: str, scenario: str | None, subject: Subject | None = None) -> list[tuple[Finding, Score]]:
        """The scores of that name about a subject, each with its finding."""
        return [
            (finding, score)
            for finding in self.about(scenario, subject)
            for score in finding.scores
            if score.name == name
        ]

    def with_evidence(
        self, evidence: Evidence, scenario: str | None, subject: Subject | None = None
    ) -> list[tuple[Finding, Score]]:
        """The scores of that kind of evidence about a subject, each with its finding: attempts, or bounds."""
        return [
            (finding, score)
            for finding in self.about(scenario, subject)
            for score in finding.scores
            if score.evidence is evidence
        ]

    def controls(self, audit: str) -> Sequence[Finding]:
        """The controls of an audit, in the order of the record.

        Args:
            audit: the name of its section of the plan.
        """
        return self._controls.get(audit, ())

    @cached_property
    def _by_place(self) -> dict[Place, list[Finding]]:
        found: dict[Place, list[Finding]] = {}
        for finding in self.findings:
            if finding.control is None:
                found.setdefault((finding.scenario, finding.subject), []).append(finding)
        return found

    @cached_property
    def _controls(self) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}
        for finding in self.findings:
            if finding.control is not None:
                found.setdefault(finding.audit, []).append(finding)
        return found

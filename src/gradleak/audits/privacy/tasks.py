"""Carries out a privacy audit of one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradleak.audits.base import InPieces, Site
from gradleak.audits.privacy.claims import claim_of
from gradleak.audits.privacy.measured import measured, without_pairs
from gradleak.audits.privacy.trials import Hypotheses
from gradleak.privacy import AuditResult
from gradleak.results import GradleakError, Outcome, Status
from gradleak.results.findings.privacy import PrivacyFinding


def blank(audit: str, scenario: str) -> PrivacyFinding:
    """The finding of an audit without a result.

    Args:
        audit: its name.
        scenario: whose release is audited.
    """
    return PrivacyFinding(item=f"{scenario}/{audit}", audit=audit, scenario=scenario)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials(InPieces[PrivacyFinding]):
    """The trials of one scenario; every seed is a piece.

    Attributes:
        hypotheses: what is told apart.
        stated: the epsilon that the plan claims, or None.
        seeds: one a repetition.
        scenarios: how many scenarios the audit is done for; all their lower bounds are to hold together.
        blank: its finding without a result, which names the scenario.
    """

    hypotheses: Hypotheses
    stated: float | None
    seeds: Sequence[int]
    scenarios: int
    blank: PrivacyFinding

    @property
    def pieces(self) -> list[Repetition]:
        """The repetitions."""
        return [
            Repetition(hypotheses=self.hypotheses, seed=seed, scenario=self.blank.scenario or "") for seed in self.seeds
        ]

    def join(self, site: Site, out: Path, made: Sequence[AuditResult | GradleakError]) -> list[PrivacyFinding]:
        """One finding with what was measured of every pair of hypotheses, and what is known of it."""
        scenario = site.scenario(self.blank.scenario or "")
        empty = self.blank.but(claim=claim_of(self.hypotheses, scenario.release, site.objective, self.stated))
        results: list[AuditResult] = []
        for one in made:
            if isinstance(one, GradleakError):
                return [empty.but(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=str(one))]
            results.append(one)
        if not any(found.pairs for found in results):
            return [without_pairs(results, empty)]
        tried = sum(len(pair.samples) for found in results for pair in found.pairs)
        return [
            measured(
                results,
                empty,
                many=max(1, self.scenarios * len(self.hypotheses.bounds) * tried),
                quiet=self.hypotheses.without_noise(scenario, site.objective),
                scenarios=self.scenarios,
            )
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Repetition:
    """The trials of one scenario and seed.

    Attributes:
        hypotheses: what is told apart.
        seed: of everything that is drawn.
        scenario: its name.
    """

    hypotheses: Hypotheses
    seed: int
    scenario: str

    def __call__(self, site: Site, out: Path) -> AuditResult | GradleakError:
        """The result of one seed, or the refusal."""
        try:
            return self.hypotheses.play(site.scenario(self.scenario), self.seed)
        except GradleakError as refusal:
            return refusal

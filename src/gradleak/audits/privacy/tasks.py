"""Carries out a privacy audit of one scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradleak.audits.base import Site
from gradleak.audits.privacy.claims import claim_of
from gradleak.audits.privacy.measured import measured, without_pairs
from gradleak.audits.privacy.trials import Hypotheses
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
class Trials:
    """The trials of one scenario.

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

    def __call__(self, site: Site, out: Path) -> list[PrivacyFinding]:
        """One finding with what was measured of every pair of hypotheses, and what is known of it."""
        scenario = site.scenario(self.blank.scenario or "")
        empty = self.blank.but(claim=claim_of(self.hypotheses, scenario.release, site.objective, self.stated))
        try:
            results = [self.hypotheses.play(scenario, seed) for seed in self.seeds]
        except GradleakError as refusal:
            return [empty.but(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=str(refusal))]
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

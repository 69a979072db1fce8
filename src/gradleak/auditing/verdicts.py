"""From findings to verdicts: each audit judges its own; scenarios and the run take the worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradleak.auditing.verdict_sets import worst_of
from gradleak.audits.base import Audit
from gradleak.results import RUN, Finding, Grounds, Thresholds, Verdict


def judge(audits: Sequence[Audit[Any]], findings: Sequence[Finding], thresholds: Thresholds) -> list[Verdict]:
    """The verdicts of every audit, on every scenario and on the run, in that order.

    Args:
        audits: of the plan.
        findings: of the run.
        thresholds: when something counts as leaking.
    """
    verdicts: list[Verdict] = []
    by_audit: dict[str, list[Finding]] = {}
    for finding in findings:
        by_audit.setdefault(finding.audit, []).append(finding)
    grounds = Grounds(thresholds=thresholds, findings=findings)
    for audit in audits:
        verdicts += audit.judge(by_audit.get(audit.name, []), grounds.given(verdicts))
    by_scenario: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.scenario is not None:
            by_scenario.setdefault(verdict.scenario, []).append(verdict)
    scenarios = [worst_of(name, group) for name, group in by_scenario.items()]
    parts = [*scenarios, *(verdict for verdict in verdicts if verdict.scenario is None)]
    return [*verdicts, *scenarios, worst_of(RUN, parts)] if parts else []


__all__ = ["judge"]

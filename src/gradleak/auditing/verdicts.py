"""From findings to verdicts: each audit judges its own; scenarios and the run take the worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.auditing.verdict_sets import worst_of
from gradleak.audits.base import Audit
from gradleak.results import RUN, Citation, Finding, Grounds, InputError, Record, Thresholds, Verdict, kinds


def judge(audits: Sequence[Audit[Any]], findings: Sequence[Finding], thresholds: Thresholds) -> list[Verdict]:
    """The verdicts of every audit, on every scenario and on the run, in that order.

    Args:
        audits: of the plan.
        findings: of the run.
        thresholds: when something counts as leaking.
    """
    return _judge({audit.name: type(audit) for audit in audits}, findings, thresholds)


def record_of(
    findings: Sequence[Finding],
    *,
    name: str = "findings",
    thresholds: Thresholds | None = None,
    citations: Sequence[Citation] = (),
) -> Record:
    """The record of findings that were made in Python, with their verdicts: what `write_html` and its like take.

    Args:
        findings: of any kinds, each item once; those of one audit in a row.
        name: of the record.
        thresholds: when something counts as leaking, and when as bounded.
        citations: of the methods behind them.

    Returns:
        The record, in memory; `Record.save` writes it.

    Raises:
        InputError: without a finding, for an item twice, or for an audit whose findings are of several kinds.
    """
    chosen = thresholds or Thresholds()
    owners: dict[str, type[Audit[Any]]] = {}
    for finding in findings:
        kind = kinds().get(finding.kind)
        if kind is None:
            raise InputError(f"record_of: expected findings of {', '.join(kinds())}, got {finding.kind!r}")
        if owners.setdefault(finding.audit, kind.load_audit()) is not kind.load_audit():
            raise InputError(f"record_of: expected findings of one kind in audit {finding.audit!r}, got several kinds")
    verdicts = _judge(owners, findings, chosen)
    return Record.of(findings, verdicts, name=name, thresholds=chosen, citations=citations)


def _judge(
    owners: Mapping[str, type[Audit[Any]]], findings: Sequence[Finding], thresholds: Thresholds
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    by_audit: dict[str, list[Finding]] = {}
    for finding in findings:
        by_audit.setdefault(finding.audit, []).append(finding)
    grounds = Grounds(thresholds=thresholds, findings=findings)
    for name, audit in owners.items():
        verdicts += audit.judge(by_audit.get(name, []), grounds.given(verdicts))
    by_scenario: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.scenario is not None:
            by_scenario.setdefault(verdict.scenario, []).append(verdict)
    scenarios = [worst_of(name, group) for name, group in by_scenario.items()]
    parts = [*scenarios, *(verdict for verdict in verdicts if verdict.scenario is None)]
    return [*verdicts, *scenarios, worst_of(RUN, parts)] if parts else []

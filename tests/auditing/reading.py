"""Findings of a record by what they are about."""

from __future__ import annotations

from gradleak.auditing import Plan
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.results import Record
from gradleak.results.findings.reconstruction import ReconstructionFinding
from gradleak.results.findings.released import ReleaseFinding


def releases(record: Record) -> list[ReleaseFinding]:
    return [one for one in record.findings if isinstance(one, ReleaseFinding)]


def attacks(record: Record) -> list[ReconstructionFinding]:
    """Refused ones and refined claims among them, controls left out."""
    found = (one for one in record.findings if isinstance(one, ReconstructionFinding))
    return [one for one in found if one.control is None]


def controls(record: Record) -> dict[str, ReconstructionFinding]:
    found = (one for one in record.findings if isinstance(one, ReconstructionFinding))
    return {one.item: one for one in found if one.control is not None}


def passed(record: Record) -> dict[str, bool | None]:
    return {item: one.control.passed for item, one in controls(record).items() if one.control is not None}


def attacking(plan: Plan) -> ReconstructionAudit:
    """The section of attacks of a plan."""
    return next(audit for audit in plan.audits if isinstance(audit, ReconstructionAudit))

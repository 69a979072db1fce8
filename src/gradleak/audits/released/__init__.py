"""Releases: the updates that a client sends, whether they fit the stated setting, and the verdict from all evidence."""

from gradleak.audits.released.audit import ReleaseAudit
from gradleak.audits.released.gate import GateResult, GateStatus, check_update

__all__ = ["GateResult", "GateStatus", "ReleaseAudit", "check_update"]

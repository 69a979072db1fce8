"""Releases: what left the client, whether it fits the stated setting, and the verdict from all that is known about it."""

from gradleak.audits.released.audit import ReleaseAudit
from gradleak.audits.released.gate import GateResult, GateStatus, check_update

__all__ = ["GateResult", "GateStatus", "ReleaseAudit", "check_update"]

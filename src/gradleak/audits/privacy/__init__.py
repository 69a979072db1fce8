"""The room of privacy audits: how much epsilon the releases of every scenario really show, beside what is claimed."""

from gradleak.audits.privacy.audit import PrivacyAudit
from gradleak.audits.privacy.measured import finding_of_audit, findings_of_audits

__all__ = ["PrivacyAudit", "finding_of_audit", "findings_of_audits"]

"""Closed-form risk of every release: what follows from its derivative, once that derivative was checked."""

from gradleak.audits.risk.audit import RiskAudit

__all__ = ["RiskAudit"]

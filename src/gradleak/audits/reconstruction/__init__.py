"""Reconstruction: attacks on updates, the check of their claims, and the controls that bear them out."""

from gradleak.audits.reconstruction.audit import ReconstructionAudit

__all__ = ["ReconstructionAudit"]

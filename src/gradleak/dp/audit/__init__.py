"""Epsilon audited by trials: two hypotheses about a release, told apart as well as anybody can.

Not exported by `gradleak.dp`, which games and utility are built on: `from gradleak.dp.audit import ...`.
"""

from gradleak.dp.audit.attribute import AttributePair
from gradleak.dp.audit.attribute_audit import AttributeAudit
from gradleak.dp.audit.canary import Canary, CanaryObjective, CraftedRecords, random_records
from gradleak.dp.audit.gaussian import GaussianPair
from gradleak.dp.audit.membership import MembershipPair
from gradleak.dp.audit.membership_audit import MembershipAudit
from gradleak.dp.audit.pair import HypothesisPair, Statistic
from gradleak.dp.audit.privacy_audit import AuditedPair, AuditSetup, NullPair, PrivacyAudit
from gradleak.dp.audit.record import RecordAttribute, RecordConstraints
from gradleak.dp.audit.released import SampledPair, released_pair
from gradleak.dp.audit.result import (
    AuditResult,
    Histogram,
    PairResult,
    as_estimate,
    assumes_gaussians,
    audit_pair,
)
from gradleak.dp.audit.theory import per_attribute_epsilon, total_epsilons

__all__ = [
    "AttributeAudit",
    "AttributePair",
    "AuditResult",
    "AuditSetup",
    "AuditedPair",
    "Canary",
    "CanaryObjective",
    "CraftedRecords",
    "GaussianPair",
    "Histogram",
    "HypothesisPair",
    "MembershipAudit",
    "MembershipPair",
    "NullPair",
    "PairResult",
    "PrivacyAudit",
    "RecordAttribute",
    "RecordConstraints",
    "SampledPair",
    "Statistic",
    "as_estimate",
    "assumes_gaussians",
    "audit_pair",
    "per_attribute_epsilon",
    "random_records",
    "released_pair",
    "total_epsilons",
]

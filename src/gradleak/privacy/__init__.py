"""Epsilon audited by trials: two hypotheses about a release, told apart as well as anybody can, and bounds from below."""

from gradleak.privacy.attribute_audit import AttributeAudit, AttributePair
from gradleak.privacy.canary import (
    Canary,
    CanaryObjective,
    CraftedRecords,
    RecordAttribute,
    RecordConstraints,
    random_records,
)
from gradleak.privacy.lower_bounds import (
    CorrectedThresholdEpsilon,
    Direction,
    EpsilonEstimator,
    GaussianFitEpsilon,
    OneRunEpsilon,
    PlugInEpsilon,
    Reading,
    SplitThresholdEpsilon,
    TradeOff,
    TrialScores,
    attainable_epsilon,
    best_bound,
    gaussian_dp_epsilon,
    largest_certifiable_epsilon,
)
from gradleak.privacy.membership_audit import MembershipAudit, MembershipPair
from gradleak.privacy.privacy_audit import AuditedPair, AuditPart, AuditSetup, NullPair, PrivacyAudit
from gradleak.privacy.released import GaussianPair, HypothesisPair, SampledPair, Statistic, released_pair
from gradleak.privacy.result import AuditResult, Histogram, PairResult, as_estimate, assumes_gaussians, audit_pair
from gradleak.privacy.theory import per_attribute_epsilon, total_epsilons

__all__ = [
    "AttributeAudit",
    "AttributePair",
    "AuditPart",
    "AuditResult",
    "AuditSetup",
    "AuditedPair",
    "Canary",
    "CanaryObjective",
    "CorrectedThresholdEpsilon",
    "CraftedRecords",
    "Direction",
    "EpsilonEstimator",
    "GaussianFitEpsilon",
    "GaussianPair",
    "Histogram",
    "HypothesisPair",
    "MembershipAudit",
    "MembershipPair",
    "NullPair",
    "OneRunEpsilon",
    "PairResult",
    "PlugInEpsilon",
    "PrivacyAudit",
    "Reading",
    "RecordAttribute",
    "RecordConstraints",
    "SampledPair",
    "SplitThresholdEpsilon",
    "Statistic",
    "TradeOff",
    "TrialScores",
    "as_estimate",
    "assumes_gaussians",
    "attainable_epsilon",
    "audit_pair",
    "best_bound",
    "gaussian_dp_epsilon",
    "largest_certifiable_epsilon",
    "per_attribute_epsilon",
    "random_records",
    "released_pair",
    "total_epsilons",
]

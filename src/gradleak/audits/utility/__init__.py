"""Utility: what models trained through a release are worth on rows they have not seen, beside what it gives away."""

from gradleak.audits.utility.audit import UtilityAudit
from gradleak.audits.utility.curve import Curve, Point, Setting, best_learning_rate, privacy_utility_curve
from gradleak.audits.utility.measure import Utility, measure_utility, training_epsilons
from gradleak.audits.utility.probe import Adversary, ReconstructionProbe
from gradleak.results.findings.utility import Standing

__all__ = [
    "Adversary",
    "Curve",
    "Point",
    "ReconstructionProbe",
    "Setting",
    "Standing",
    "Utility",
    "UtilityAudit",
    "best_learning_rate",
    "measure_utility",
    "privacy_utility_curve",
    "training_epsilons",
]

"""Utility: models trained federatedly through a release, and what they are worth on rows they have not seen."""

from gradleak.utility.curve import Curve, Point, Setting, best_learning_rate, privacy_utility_curve
from gradleak.utility.measure import Standing, Utility, measure_utility, training_epsilons
from gradleak.utility.privacy import Adversary, ReconstructionProbe

__all__ = [
    "Adversary",
    "Curve",
    "Point",
    "ReconstructionProbe",
    "Setting",
    "Standing",
    "Utility",
    "best_learning_rate",
    "measure_utility",
    "privacy_utility_curve",
    "training_epsilons",
]

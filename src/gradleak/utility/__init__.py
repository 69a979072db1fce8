"""Utility: models trained federatedly through a release, and what they are worth on rows they have not seen."""

from gradleak.utility.curve import Curve, Point, Setting, best_learning_rate, privacy_utility_curve
from gradleak.utility.layers import GroupNormForBatchNorm, ReplacedLayer, values_normalized
from gradleak.utility.measure import Standing, Utility, measure_utility, training_epsilons
from gradleak.utility.metric import Metric, Worth, worth
from gradleak.utility.privacy import Adversary, ReconstructionProbe
from gradleak.utility.rounds import PerturbedRounds, ReleaseOfRound
from gradleak.utility.task import Start, Task, split
from gradleak.utility.training import Closeness, Run, Training, train

__all__ = [
    "Adversary",
    "Closeness",
    "Curve",
    "GroupNormForBatchNorm",
    "Metric",
    "PerturbedRounds",
    "Point",
    "ReconstructionProbe",
    "ReleaseOfRound",
    "ReplacedLayer",
    "Run",
    "Setting",
    "Standing",
    "Start",
    "Task",
    "Training",
    "Utility",
    "Worth",
    "best_learning_rate",
    "measure_utility",
    "privacy_utility_curve",
    "split",
    "train",
    "training_epsilons",
    "values_normalized",
    "worth",
]

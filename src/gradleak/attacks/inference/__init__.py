"""Adversaries that infer an attribute, a property, a proportion or a user from shared updates."""

from gradleak.attacks.inference.classifier import (
    Classifier,
    FittedClassifier,
    balanced_labels,
    combine_rounds,
    with_side,
)
from gradleak.attacks.inference.estimator import (
    GradientBoosting,
    LogisticRegression,
    MultilayerPerceptron,
    RandomForest,
)
from gradleak.attacks.inference.features import (
    AllEntries,
    Features,
    LayerSummaries,
    Layout,
    MaxPooling,
    PrincipalComponents,
    RandomProjection,
    Reduction,
)
from gradleak.attacks.inference.gaussian import GaussianNaiveBayes, LinearDiscriminant, QuadraticDiscriminant
from gradleak.attacks.inference.ordinal import FittedOrdinal, Ordinal, OrdinalPosterior
from gradleak.attacks.inference.prototype import FittedEncoder, PrototypeEncoder, distance_log_posterior

__all__ = [
    "AllEntries",
    "Classifier",
    "Features",
    "FittedClassifier",
    "FittedEncoder",
    "FittedOrdinal",
    "GaussianNaiveBayes",
    "GradientBoosting",
    "LayerSummaries",
    "Layout",
    "LinearDiscriminant",
    "LogisticRegression",
    "MaxPooling",
    "MultilayerPerceptron",
    "Ordinal",
    "OrdinalPosterior",
    "PrincipalComponents",
    "PrototypeEncoder",
    "QuadraticDiscriminant",
    "RandomForest",
    "RandomProjection",
    "Reduction",
    "balanced_labels",
    "combine_rounds",
    "distance_log_posterior",
    "with_side",
]

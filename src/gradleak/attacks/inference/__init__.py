"""Adversaries that infer an attribute, a property, a proportion or a user from shared updates."""

from gradleak.attacks.inference.all_entries import AllEntries
from gradleak.attacks.inference.classifier import Classifier, FittedClassifier
from gradleak.attacks.inference.combine_rounds import combine_rounds
from gradleak.attacks.inference.features import Features, Reduction
from gradleak.attacks.inference.gaussian_naive_bayes import GaussianNaiveBayes
from gradleak.attacks.inference.gradient_boosting import GradientBoosting
from gradleak.attacks.inference.layer_summaries import LayerSummaries
from gradleak.attacks.inference.layout import Layout
from gradleak.attacks.inference.linear_discriminant import LinearDiscriminant
from gradleak.attacks.inference.logistic_regression import LogisticRegression
from gradleak.attacks.inference.max_pooling import MaxPooling
from gradleak.attacks.inference.multilayer_perceptron import MultilayerPerceptron
from gradleak.attacks.inference.ordinal import FittedOrdinal, Ordinal, OrdinalPosterior
from gradleak.attacks.inference.principal_components import PrincipalComponents
from gradleak.attacks.inference.prototype import FittedEncoder, PrototypeEncoder, distance_log_posterior
from gradleak.attacks.inference.quadratic_discriminant import QuadraticDiscriminant
from gradleak.attacks.inference.random_forest import RandomForest
from gradleak.attacks.inference.random_projection import RandomProjection
from gradleak.attacks.inference.shadow import balanced_labels, with_side

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

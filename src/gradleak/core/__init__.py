"""The nouns of an audit: what is private, what is shared, what the adversary knows, what it found."""

from gradleak.core.batch import Batch
from gradleak.core.describe import describe
from gradleak.core.domain import Domain, DomainKind
from gradleak.core.example_gradients import example_gradients
from gradleak.core.exposure import Exposure
from gradleak.core.knowledge import Knowledge
from gradleak.core.objective import Classifier, Mode, Objective
from gradleak.core.randomness import derive_generator, derive_seed
from gradleak.core.reconstruction import Reconstruction
from gradleak.core.release import (
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Guarantee,
    NotGaussian,
    Protocol,
    Release,
    Stage,
    UpdateDefense,
    mean_gradient,
)
from gradleak.core.threat_model import HonestButCurious, ThreatModel
from gradleak.core.update import Update, UpdateKind

__all__ = [
    "Batch",
    "Classifier",
    "Defense",
    "DiagonalGaussian",
    "Domain",
    "DomainKind",
    "ExampleDefense",
    "Exposure",
    "Guarantee",
    "HonestButCurious",
    "Knowledge",
    "Mode",
    "NotGaussian",
    "Objective",
    "Protocol",
    "Reconstruction",
    "Release",
    "Stage",
    "ThreatModel",
    "Update",
    "UpdateDefense",
    "UpdateKind",
    "derive_generator",
    "derive_seed",
    "describe",
    "example_gradients",
    "mean_gradient",
]

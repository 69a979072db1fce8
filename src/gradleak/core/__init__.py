"""The nouns of an audit: what is private, what is shared, what the adversary knows, what it found."""

from gradleak.core.batch import NO_TOKEN, Batch
from gradleak.core.batch_norm import (
    LayerStatistics,
    batch_norm_statistics,
    out_of_scale,
    running_statistics,
    watch_batch_norm,
)
from gradleak.core.bounds import Bounds
from gradleak.core.course import Clients, Course
from gradleak.core.defense import (
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Guarantee,
    Laplace,
    ModelDefense,
    Noise,
    NotGaussian,
    Stage,
    UpdateDefense,
)
from gradleak.core.describe import describe
from gradleak.core.domain import Domain, DomainKind
from gradleak.core.effect import Effect, MovedAlong, Rounded, Scaled, ScaledRows, Thinned, Unchanged
from gradleak.core.evaluation import Classifier
from gradleak.core.example_gradients import example_gradients
from gradleak.core.exposure import Exposure
from gradleak.core.image_generator import ImageGenerator, OutputRange
from gradleak.core.image_prints import ImagePrints
from gradleak.core.installed import is_installed
from gradleak.core.knowledge import Knowledge
from gradleak.core.mechanism import Adjacency, GaussianMechanism, NoGuarantee, Unit
from gradleak.core.objective import Mode, Objective
from gradleak.core.precision import HALF, Precision, computed_in_half, precision_of, whole_precision
from gradleak.core.process import one_thread
from gradleak.core.protocol import Protocol, mean_gradient
from gradleak.core.randomness import derive_generator, derive_seed
from gradleak.core.reconstruction import Reconstruction
from gradleak.core.release import BatchDefense, Release
from gradleak.core.sealed import fresh, sealed
from gradleak.core.threat_model import HonestButCurious, ThreatModel, refuse_private_data
from gradleak.core.token_tables import TokenTables
from gradleak.core.trainable import refuse_inference_mode
from gradleak.core.update import Update, UpdateKind
from gradleak.core.vocabulary import Joins, Vocabulary

__all__ = [
    "HALF",
    "NO_TOKEN",
    "Adjacency",
    "Batch",
    "BatchDefense",
    "Bounds",
    "Classifier",
    "Clients",
    "Course",
    "Defense",
    "DiagonalGaussian",
    "Domain",
    "DomainKind",
    "Effect",
    "ExampleDefense",
    "Exposure",
    "GaussianMechanism",
    "Guarantee",
    "HonestButCurious",
    "ImageGenerator",
    "ImagePrints",
    "Joins",
    "Knowledge",
    "Laplace",
    "LayerStatistics",
    "Mode",
    "ModelDefense",
    "MovedAlong",
    "NoGuarantee",
    "Noise",
    "NotGaussian",
    "Objective",
    "OutputRange",
    "Precision",
    "Protocol",
    "Reconstruction",
    "Release",
    "Rounded",
    "Scaled",
    "ScaledRows",
    "Stage",
    "Thinned",
    "ThreatModel",
    "TokenTables",
    "Unchanged",
    "Unit",
    "Update",
    "UpdateDefense",
    "UpdateKind",
    "Vocabulary",
    "batch_norm_statistics",
    "computed_in_half",
    "derive_generator",
    "derive_seed",
    "describe",
    "example_gradients",
    "fresh",
    "is_installed",
    "mean_gradient",
    "one_thread",
    "out_of_scale",
    "precision_of",
    "refuse_inference_mode",
    "refuse_private_data",
    "running_statistics",
    "sealed",
    "watch_batch_norm",
    "whole_precision",
]

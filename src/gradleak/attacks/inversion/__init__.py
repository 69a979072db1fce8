"""Gradient inversion: the engine, its parts, and one preset a paper."""

from gradleak.attacks.inversion.assumed_protocol import (
    LearningRateFit,
    ProtocolTrial,
    fit_learning_rate,
    neighboring_protocols,
    rerun_under,
    residuals_under,
)
from gradleak.attacks.inversion.batch_norm_inversion import BatchNormInversion
from gradleak.attacks.inversion.dgl import DGL
from gradleak.attacks.inversion.dlg import DLG
from gradleak.attacks.inversion.engine import Inversion, SearchStage
from gradleak.attacks.inversion.evaluation import Route
from gradleak.attacks.inversion.gauss_newton import (
    DenseSteps,
    GaussNewton,
    KrylovSteps,
    RowSampledSteps,
    SketchedSteps,
    Steps,
)
from gradleak.attacks.inversion.grad_inversion import GradInversion
from gradleak.attacks.inversion.gs import GS
from gradleak.attacks.inversion.idlg import IDLG
from gradleak.attacks.inversion.inverting_gradients import InvertingGradients
from gradleak.attacks.inversion.local_training import LocalTraining
from gradleak.attacks.inversion.matching import (
    AbsoluteError,
    CosineDistance,
    LayerWeights,
    Matching,
    SharedEntries,
    SquaredAndAbsoluteError,
    SquaredError,
)
from gradleak.attacks.inversion.optimizers import LBFGS, Adam, Optimizer
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Guess,
    MeanSquare,
    Prior,
    Statistics,
    TotalVariation,
)
from gradleak.attacks.inversion.problem import LabelPolicy, LabelSource
from gradleak.attacks.inversion.registration import NoRegistration, Registration, Translation
from gradleak.attacks.inversion.schedules import Constant, CosineDecay, Schedule, StepDecay
from gradleak.attacks.inversion.variables import Pixels, PixelsAndLabels, Start, Variables

__all__ = [
    "DGL",
    "DLG",
    "GS",
    "IDLG",
    "LBFGS",
    "AbsoluteError",
    "Adam",
    "BatchNormInversion",
    "BatchNormStatistics",
    "Constant",
    "CosineDecay",
    "CosineDistance",
    "DenseSteps",
    "GaussNewton",
    "GradInversion",
    "GroupConsistency",
    "Guess",
    "Inversion",
    "InvertingGradients",
    "KrylovSteps",
    "LabelPolicy",
    "LabelSource",
    "LayerWeights",
    "LearningRateFit",
    "LocalTraining",
    "Matching",
    "MeanSquare",
    "NoRegistration",
    "Optimizer",
    "Pixels",
    "PixelsAndLabels",
    "Preset",
    "Prior",
    "ProtocolTrial",
    "Registration",
    "Route",
    "RowSampledSteps",
    "Schedule",
    "SearchStage",
    "SharedEntries",
    "SketchedSteps",
    "SquaredAndAbsoluteError",
    "SquaredError",
    "Start",
    "Statistics",
    "StepDecay",
    "Steps",
    "TotalVariation",
    "Translation",
    "Variables",
    "fit_learning_rate",
    "neighboring_protocols",
    "rerun_under",
    "residuals_under",
]

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
from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.evaluation import Route
from gradleak.attacks.inversion.gauss_newton import (
    DenseSteps,
    GaussNewton,
    KrylovSteps,
    RowSampledSteps,
    SketchedSteps,
    Steps,
)
from gradleak.attacks.inversion.ggl import GGL
from gradleak.attacks.inversion.gias import GIAS
from gradleak.attacks.inversion.giml import GIML, MetaLearned
from gradleak.attacks.inversion.grad_inversion import GradInversion
from gradleak.attacks.inversion.gs import GS
from gradleak.attacks.inversion.idlg import IDLG
from gradleak.attacks.inversion.igims import IGIMS, IGIMSAdam
from gradleak.attacks.inversion.invention import ClaimSupport, InventionCheck, Support
from gradleak.attacks.inversion.inverting_gradients import InvertingGradients
from gradleak.attacks.inversion.latent_priors import LatentKL, LatentNorm, WeightProximity
from gradleak.attacks.inversion.latents import Latents, LatentsAndWeights
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
from gradleak.attacks.inversion.populations import CMAES, HandOn, PopulationOptimizer, Populations
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
from gradleak.attacks.inversion.search_stage import SearchStage
from gradleak.attacks.inversion.untrained_generator import UntrainedGenerator
from gradleak.attacks.inversion.variables import Code, Part, Pixels, PixelsAndLabels, Space, Start, Variables

__all__ = [
    "CMAES",
    "DGL",
    "DLG",
    "GGL",
    "GIAS",
    "GIML",
    "GS",
    "IDLG",
    "IGIMS",
    "LBFGS",
    "AbsoluteError",
    "Adam",
    "BatchNormInversion",
    "BatchNormStatistics",
    "ClaimSupport",
    "Code",
    "Constant",
    "CosineDecay",
    "CosineDistance",
    "DenseSteps",
    "GaussNewton",
    "GradInversion",
    "GroupConsistency",
    "Guess",
    "HandOn",
    "IGIMSAdam",
    "InventionCheck",
    "Inversion",
    "InvertingGradients",
    "KrylovSteps",
    "LabelPolicy",
    "LabelSource",
    "LatentKL",
    "LatentNorm",
    "Latents",
    "LatentsAndWeights",
    "LayerWeights",
    "LearningRateFit",
    "LocalTraining",
    "Matching",
    "MeanSquare",
    "MetaLearned",
    "NoRegistration",
    "Optimizer",
    "Part",
    "Pixels",
    "PixelsAndLabels",
    "PopulationOptimizer",
    "Populations",
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
    "Space",
    "SquaredAndAbsoluteError",
    "SquaredError",
    "Start",
    "Statistics",
    "StepDecay",
    "Steps",
    "Support",
    "TotalVariation",
    "Translation",
    "UntrainedGenerator",
    "Variables",
    "WeightProximity",
    "fit_learning_rate",
    "neighboring_protocols",
    "rerun_under",
    "residuals_under",
]

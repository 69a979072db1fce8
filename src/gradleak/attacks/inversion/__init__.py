"""Gradient inversion: the engine, its parts, and one preset a paper."""

from gradleak.attacks.inversion.analytic import APRIL, CocktailParty, LinearRows
from gradleak.attacks.inversion.assumed_protocol import (
    LearningRateFit,
    ProtocolTrial,
    fit_learning_rate,
    neighboring_protocols,
    rerun_under,
    residuals_under,
)
from gradleak.attacks.inversion.dlfa import DLFA
from gradleak.attacks.inversion.dlg import DGL, DLG, GS, IDLG
from gradleak.attacks.inversion.embeddings import Embeddings
from gradleak.attacks.inversion.engine import Inversion, Preset
from gradleak.attacks.inversion.evaluation import Route
from gradleak.attacks.inversion.gauss_newton import (
    DenseSteps,
    GaussNewton,
    KrylovSteps,
    RowSampledSteps,
    SketchedSteps,
    Steps,
)
from gradleak.attacks.inversion.generative import GGL, GIAS, IGIMS, IGIMSAdam, UntrainedGenerator
from gradleak.attacks.inversion.giml import GIML, MetaLearned
from gradleak.attacks.inversion.grad_inversion import BatchNormInversion, GradInversion
from gradleak.attacks.inversion.invention import ClaimSupport, InventionCheck, Support
from gradleak.attacks.inversion.inverting_gradients import InvertingGradients
from gradleak.attacks.inversion.lamp import LAMP, EmbeddingNorm
from gradleak.attacks.inversion.latents import LatentKL, LatentNorm, Latents, LatentsAndWeights, WeightProximity
from gradleak.attacks.inversion.matching import (
    AbsoluteError,
    CosineDistance,
    LayerWeights,
    LayerwiseError,
    Matching,
    SharedEntries,
    SquaredAndAbsoluteError,
    SquaredError,
)
from gradleak.attacks.inversion.optimizers import (
    LBFGS,
    Adam,
    Constant,
    CosineDecay,
    LinearDecay,
    Optimizer,
    Schedule,
    SearchStage,
    StepDecay,
)
from gradleak.attacks.inversion.peel import Peel
from gradleak.attacks.inversion.pooling import PoolBy, Pooled, Pooling
from gradleak.attacks.inversion.populations import CMAES, HandOn, PopulationOptimizer, Populations
from gradleak.attacks.inversion.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Guess,
    MeanSquare,
    NoRegistration,
    Prior,
    Registration,
    Statistics,
    TotalVariation,
    Translation,
)
from gradleak.attacks.inversion.problem import LabelPolicy
from gradleak.attacks.inversion.reading import LabelSource, LocalTraining
from gradleak.attacks.inversion.table_rows import TableRows
from gradleak.attacks.inversion.tableak import TabLeak
from gradleak.attacks.inversion.tag import TAG
from gradleak.attacks.inversion.variables import Code, Part, Pixels, PixelsAndLabels, Space, Start, Variables

__all__ = [
    "APRIL",
    "CMAES",
    "DGL",
    "DLFA",
    "DLG",
    "GGL",
    "GIAS",
    "GIML",
    "GS",
    "IDLG",
    "IGIMS",
    "LAMP",
    "LBFGS",
    "TAG",
    "AbsoluteError",
    "Adam",
    "BatchNormInversion",
    "BatchNormStatistics",
    "ClaimSupport",
    "CocktailParty",
    "Code",
    "Constant",
    "CosineDecay",
    "CosineDistance",
    "DenseSteps",
    "EmbeddingNorm",
    "Embeddings",
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
    "LayerwiseError",
    "LearningRateFit",
    "LinearDecay",
    "LinearRows",
    "LocalTraining",
    "Matching",
    "MeanSquare",
    "MetaLearned",
    "NoRegistration",
    "Optimizer",
    "Part",
    "Peel",
    "Pixels",
    "PixelsAndLabels",
    "PoolBy",
    "Pooled",
    "Pooling",
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
    "TabLeak",
    "TableRows",
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

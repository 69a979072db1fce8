"""Gradient inversion: the engine, its parts, and one preset a paper."""

from gradleak.attacks.inversion.dlg import DLG
from gradleak.attacks.inversion.engine import Inversion, SearchStage
from gradleak.attacks.inversion.gauss_newton import GaussNewton
from gradleak.attacks.inversion.inverting_gradients import InvertingGradients
from gradleak.attacks.inversion.matching import CosineDistance, Matching, SquaredError
from gradleak.attacks.inversion.optimizers import LBFGS, Adam, Optimizer
from gradleak.attacks.inversion.preset import Preset
from gradleak.attacks.inversion.priors import Prior, TotalVariation
from gradleak.attacks.inversion.problem import LabelPolicy, LabelSource
from gradleak.attacks.inversion.variables import Pixels, PixelsAndLabels, Start, Variables

__all__ = [
    "DLG",
    "LBFGS",
    "Adam",
    "CosineDistance",
    "GaussNewton",
    "Inversion",
    "InvertingGradients",
    "LabelPolicy",
    "LabelSource",
    "Matching",
    "Optimizer",
    "Pixels",
    "PixelsAndLabels",
    "Preset",
    "Prior",
    "SearchStage",
    "SquaredError",
    "Start",
    "TotalVariation",
    "Variables",
]

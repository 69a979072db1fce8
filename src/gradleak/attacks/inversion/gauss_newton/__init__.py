"""Levenberg-Marquardt inversion: the attack, its steps, and what it is built from."""

from gradleak.attacks.inversion.gauss_newton.attack import GaussNewton
from gradleak.attacks.inversion.gauss_newton.krylov_steps import KrylovSteps
from gradleak.attacks.inversion.gauss_newton.reduced_steps import ReducedSteps, RowSampledSteps, SketchedSteps
from gradleak.attacks.inversion.gauss_newton.steps import DenseSteps, Steps

__all__ = [
    "DenseSteps",
    "GaussNewton",
    "KrylovSteps",
    "ReducedSteps",
    "RowSampledSteps",
    "SketchedSteps",
    "Steps",
]

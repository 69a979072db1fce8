"""Levenberg-Marquardt inversion: the attack, its steps, and what it is built from."""

from gradleak.attacks.inversion.gauss_newton.attack import GaussNewton
from gradleak.attacks.inversion.gauss_newton.dense_steps import DenseSteps
from gradleak.attacks.inversion.gauss_newton.descent import Steps
from gradleak.attacks.inversion.gauss_newton.krylov_steps import (
    KrylovSteps,
    ReducedSteps,
    RowSampledSteps,
    SketchedSteps,
)

__all__ = [
    "DenseSteps",
    "GaussNewton",
    "KrylovSteps",
    "ReducedSteps",
    "RowSampledSteps",
    "SketchedSteps",
    "Steps",
]

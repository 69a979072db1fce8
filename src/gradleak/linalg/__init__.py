"""Numerics for operators that are known by their products; they know nothing of privacy."""

from gradleak.linalg.block_lanczos import TopEigenpairs, block_lanczos
from gradleak.linalg.conjugate_gradient import LinearSolution, conjugate_gradient
from gradleak.linalg.dense import Spectrum, dense_eigenvalues, dense_gram, dense_spectrum, zero_threshold
from gradleak.linalg.operator import DenseOperator, Gram, LinearOperator

__all__ = [
    "DenseOperator",
    "Gram",
    "LinearOperator",
    "LinearSolution",
    "Spectrum",
    "TopEigenpairs",
    "block_lanczos",
    "conjugate_gradient",
    "dense_eigenvalues",
    "dense_gram",
    "dense_spectrum",
    "zero_threshold",
]

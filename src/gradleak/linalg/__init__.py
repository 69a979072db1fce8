"""Numerics for operators that are known by their products; they know nothing of privacy."""

from gradleak.linalg.block_lanczos import TopEigenpairs, block_lanczos
from gradleak.linalg.choice import (
    LSMR,
    Choice,
    ConjugateGradient,
    DenseSolver,
    Hutchinson,
    HutchPlusPlus,
    InverseSolver,
    LanczosQuadrature,
    LeastSquaresDescent,
    NeumannSeries,
    Solver,
    TraceSolver,
    choose_inverse_solver,
    choose_trace_solver,
)
from gradleak.linalg.conjugate_gradient import LinearSolution, conjugate_gradient
from gradleak.linalg.dense import Spectrum, dense_eigenvalues, dense_gram, dense_spectrum, zero_threshold
from gradleak.linalg.gradient_descent import least_squares_descent
from gradleak.linalg.lanczos_quadrature import lanczos_quadrature
from gradleak.linalg.lobpcg import ExtremeEigenpairs, lobpcg
from gradleak.linalg.lsmr import lsmr
from gradleak.linalg.neumann import neumann_series
from gradleak.linalg.operator import DenseOperator, Gram, LinearOperator
from gradleak.linalg.trace import ShiftedInverse, TraceEstimate, group_squared_norms, hutchinson, hutchpp

__all__ = [
    "LSMR",
    "Choice",
    "ConjugateGradient",
    "DenseOperator",
    "DenseSolver",
    "ExtremeEigenpairs",
    "Gram",
    "HutchPlusPlus",
    "Hutchinson",
    "InverseSolver",
    "LanczosQuadrature",
    "LeastSquaresDescent",
    "LinearOperator",
    "LinearSolution",
    "NeumannSeries",
    "ShiftedInverse",
    "Solver",
    "Spectrum",
    "TopEigenpairs",
    "TraceEstimate",
    "TraceSolver",
    "block_lanczos",
    "choose_inverse_solver",
    "choose_trace_solver",
    "conjugate_gradient",
    "dense_eigenvalues",
    "dense_gram",
    "dense_spectrum",
    "group_squared_norms",
    "hutchinson",
    "hutchpp",
    "lanczos_quadrature",
    "least_squares_descent",
    "lobpcg",
    "lsmr",
    "neumann_series",
    "zero_threshold",
]

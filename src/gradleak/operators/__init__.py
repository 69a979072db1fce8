"""The derivative of a release with respect to the private input."""

from gradleak.operators.dense_jacobian import dense_jacobian
from gradleak.operators.derivative_check import DerivativeCheck, check_derivative
from gradleak.operators.finite_difference import FiniteDifference, central_difference_adjoint
from gradleak.operators.ghost_gram import GhostDerivative, ghost_derivative, layer_gram
from gradleak.operators.gradient_jacobian import DENSE_LIMIT, SIX_DIGITS, GradientJacobian
from gradleak.operators.linearization import Linearization
from gradleak.operators.lockstep import example_matrices, example_operators
from gradleak.operators.pullback import pullback
from gradleak.operators.routes import AdjointRoute, Route

__all__ = [
    "DENSE_LIMIT",
    "SIX_DIGITS",
    "AdjointRoute",
    "DerivativeCheck",
    "FiniteDifference",
    "GhostDerivative",
    "GradientJacobian",
    "Linearization",
    "Route",
    "central_difference_adjoint",
    "check_derivative",
    "dense_jacobian",
    "example_matrices",
    "example_operators",
    "ghost_derivative",
    "layer_gram",
    "pullback",
]

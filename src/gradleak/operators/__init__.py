"""The derivative of a release with respect to the private input."""

from gradleak.operators.gradient_jacobian import DENSE_LIMIT, GradientJacobian
from gradleak.operators.linearization import Linearization, Route, dense_jacobian, pullback

__all__ = ["DENSE_LIMIT", "GradientJacobian", "Linearization", "Route", "dense_jacobian", "pullback"]

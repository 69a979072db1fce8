"""The ways in which a derivative can be computed, by name."""

from __future__ import annotations

from enum import StrEnum


class Route(StrEnum):
    """Route by which products A t with a block of tangents are computed; the order is that of preference.

    The first and the third need a release that is a function of the plain gradient: A is then a mixed derivative of the
    loss (`MixedDerivative`), and A t is the derivative of ⟨∇_xL, t⟩ by the parameters on one kept graph.
    """

    REVERSE_OVER_REVERSE_VMAP = "reverse_over_reverse(vmap)"
    JVP_VMAP = "jvp(vmap)"
    REVERSE_OVER_REVERSE_LOOP = "reverse_over_reverse(loop)"
    JVP_LOOP = "jvp(loop)"
    DOUBLE_VJP_VMAP = "double_vjp(vmap)"
    DOUBLE_VJP_LOOP = "double_vjp(loop)"

    @property
    def is_mixed(self) -> bool:
        """True if it takes A as a mixed derivative of the loss."""
        return self in (Route.REVERSE_OVER_REVERSE_VMAP, Route.REVERSE_OVER_REVERSE_LOOP)

    @property
    def is_batched(self) -> bool:
        """True if it runs under vmap."""
        return self.value.endswith("(vmap)")


class AdjointRoute(StrEnum):
    """Route by which products Aᵀu are computed.

    DOUBLE_BACKWARD is a backward pass through the kept graph of the gradient. FORWARD_OVER_REVERSE is the derivative of
    the input gradient along the parameter direction u; it keeps no graph and needs a release that is a function of the
    plain gradient.
    """

    DOUBLE_BACKWARD = "double_backward"
    FORWARD_OVER_REVERSE = "forward_over_reverse"

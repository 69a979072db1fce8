"""Derivatives by differences of values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.operators.pullback import Function
from gradleak.results import Evidence, InputError, Outcome, UnsupportedError

# In float64 a central difference of step h has an error of h² and a round-off of 1e-16/h: one of these steps is good on
# any smooth network, and the last ones cross few kinks of a ReLU network (on ResNet-18 those from 1e-6 on agree).
_STEPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
# Two neighboring steps must agree to this for a difference to be believed, and to that for no further one to be tried.
_SMOOTH = 1e-4
_SMOOTH_ENOUGH = 1e-7
# A difference of values that is smaller than this many times their round-off has no digits to compare.
_DIGITS = 1e4


@dataclass(frozen=True, kw_only=True, eq=False)
class FiniteDifference:
    """A product by differences of values.

    Attributes:
        value: the product, or None where no step is to be believed.
        outcome: converged, or not_informative.
        smoothness: relative difference of the two best neighboring steps.
        step: the smaller of them.
        spread: the difference of the two products, or None without a value.
        evidence: always "estimate".
        note: one sentence for the reader, or "".
    """

    value: Tensor | None
    outcome: Outcome
    smoothness: float
    step: float
    spread: Tensor | None = None
    evidence: Evidence = Evidence.ESTIMATE
    note: str = ""


def central_difference_adjoint(exposure: Exposure, cotangent: Tensor) -> FiniteDifference:
    """An estimate of Aᵀu by central differences of the input gradient along the parameter direction u, in float64.

    Aᵀu ≈ (∇_xL(θ + h u, x) − ∇_xL(θ − h u, x)) / 2h, for a plain gradient without defenses that change its mean. It
    is for models that support no other route, on request only: at the kinks of a ReLU it is wrong by any factor, so
    that it has a value only where neighboring steps agree, and even then it is an estimate.

    Args:
        exposure: objective, private batch and release.
        cotangent: u, (P,).

    Raises:
        InputError: if u has not P entries.
        UnsupportedError: if the release is not the plain gradient.

    Cost: 4 to 14 input gradients.
    """
    if not exposure.release.protocol.shares_gradient or exposure.release.defenses:
        raise UnsupportedError(
            "central differences: expected a release that is the plain gradient, without defenses, got another"
        )
    exposure = exposure.to(torch.float64)
    objective, batch = exposure.objective, exposure.batch
    if not isinstance(cotangent, Tensor) or cotangent.numel() != objective.size:
        got = cotangent.numel() if isinstance(cotangent, Tensor) else type(cotangent).__name__
        raise InputError(f"central differences: expected {objective.size} entries, got {got}")

    def input_gradient(flat: Tensor) -> Tensor:
        params = objective.unflatten(flat)
        inputs = batch.inputs.detach().clone().requires_grad_()
        with torch.enable_grad():
            loss = objective.loss(params, batch.with_inputs(inputs))
        return torch.autograd.grad(loss, inputs)[0].reshape(-1)

    direction = cotangent.detach().reshape(-1).to(torch.float64)
    return central_difference(input_gradient, objective.flatten(objective.params), direction)


def central_difference(function: Function, point: Tensor, direction: Tensor) -> FiniteDifference:
    """The derivative along a direction from the two neighboring steps that agree best.

    Args:
        function: maps (n,) to (P,), pure.
        point: (n,).
        direction: (n,).

    Cost: 4 to 14 evaluations.
    """
    size = float(direction.norm())
    if size == 0.0:
        return FiniteDifference(
            value=(zero := torch.zeros_like(function(point))),
            outcome=Outcome.CONVERGED,
            smoothness=0.0,
            step=0.0,
            spread=zero,
        )
    # Steps are relative to the scale of the point, so that they change its last digits alike.
    scale = max(float(point.norm()) / point.numel() ** 0.5, 1e-3) * point.numel() ** 0.5
    unit = direction * (scale / size)
    slopes: list[Tensor] = []
    best, place = float("inf"), 1
    with torch.no_grad():
        for h in _STEPS:
            ahead = function(point + h * unit)
            slope = (ahead - function(point - h * unit)) / (2 * h)
            round_off = torch.finfo(slope.dtype).eps * float(ahead.norm()) / (2 * h)
            if slopes and float(slopes[-1].norm()) > 0 and float(slope.norm()) < _DIGITS * round_off:
                break
            slopes.append(slope)
            distance = _distance(slopes[-2], slopes[-1]) if len(slopes) > 1 else float("inf")
            if distance < best:
                best, place = distance, len(slopes) - 1
            if best <= _SMOOTH_ENOUGH:
                break
    if best > _SMOOTH:
        return FiniteDifference(
            value=None,
            outcome=Outcome.NOT_INFORMATIVE,
            smoothness=best,
            step=_STEPS[place],
            note=f"differences of neighboring steps disagree by {best:.1e} at best: not smooth enough here (kinks of a "
            "ReLU or a pooling, or values of too little precision)",
        )
    # Of two steps that agree, the larger one has less round-off.
    value, finer = (slope * (size / scale) for slope in slopes[place - 1 : place + 1])
    return FiniteDifference(
        value=value, outcome=Outcome.CONVERGED, smoothness=best, step=_STEPS[place], spread=value - finer
    )


def _distance(a: Tensor, b: Tensor) -> float:
    size = max(float(a.norm()), float(b.norm()))
    distance = float((a - b).norm())
    return 0.0 if size == 0.0 else distance / size if distance == distance else float("inf")

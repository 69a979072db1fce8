"""Derivatives against differences of values: a check that needs no second derivative, and an estimate on request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor

from gradleak.core import Exposure, ModelDefense, Release, out_of_scale
from gradleak.operators.gradient_jacobian import GradientJacobian
from gradleak.operators.linearization import Function
from gradleak.operators.routes import Route
from gradleak.results import Evidence, InputError, Outcome, UnsupportedError, check_share

# In float64 a central difference of step h has an error of h² and a round-off of 1e-16/h: one of these steps is good on
# any smooth network, and the last ones cross few kinks of a ReLU network (on ResNet-18 those from 1e-6 on agree).
_STEPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
# Two neighboring steps must agree to this for a difference to be believed, and to that for no further one to be tried.
_SMOOTH = 1e-4
_SMOOTH_ENOUGH = 1e-7
# How far from the truth a derivative is checked, relative to the size of the inputs; and at how many places.
_AWAY = 0.05
_PLACES = 3

_REFUSALS = (RuntimeError, ValueError, LookupError, TypeError, ArithmeticError)


class _Facts(TypedDict):
    smoothness: float
    step: float


@dataclass(frozen=True, kw_only=True)
class DerivativeCheck:
    """Result of a check that the derivative that autograd gives is that of the release.

    Attributes:
        outcome: converged (they agree); inconsistent (autograd's is wrong); not_informative (no step gave a difference
            to believe, nothing depends on the input, or a defense is constant almost everywhere); unsupported (no
            route, or the operator is not deterministic).
        error: ‖A v − difference‖ / ‖difference‖, or None without both.
        smoothness: relative difference of the two best neighboring steps, or None.
        step: the step that was believed, or None.
        route: how A v was computed, or "".
        note: one sentence for the reader.
    """

    outcome: Outcome
    error: float | None = None
    smoothness: float | None = None
    step: float | None = None
    route: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class FiniteDifference:
    """A product by differences of values.

    Attributes:
        value: the product, or None where no step is to be believed.
        outcome: converged, or not_informative.
        smoothness: relative difference of the two best neighboring steps.
        step: the smaller of them.
        evidence: always "estimate".
        note: one sentence for the reader, or "".
    """

    value: Tensor | None
    outcome: Outcome
    smoothness: float
    step: float
    evidence: Evidence = Evidence.ESTIMATE
    note: str = ""


def check_derivative(
    exposure: Exposure,
    *,
    generator: torch.Generator,
    tolerance: float = 1e-3,
    route: Route | None = None,
    max_bytes: int = 2**30,
) -> DerivativeCheck:
    """Check whether A v of a random direction v agrees with central differences of the released mean, in float64.

    It catches a custom autograd function whose backward is not differentiable or wrongly so: its first derivative, which
    is what is released, is right, and every second derivative through it is silently wrong. It needs values of g alone.

    Assumptions: one direction finds an error that touches it, so with probability one any error of A that is large
    against `tolerance`. The check is made beside the truth, at inputs moved by noise of a twentieth of their size: at
    the truth itself equal pixels make ties in a max pooling and zeros at the kink of an activation, where differences
    to both sides are right and differ from any derivative. Differences also cross kinks on their way (ReLU, max
    pooling); where no two neighboring steps agree, another place is tried. Both a confirmation and, at two places, a
    contradiction end the check; what is left is not_informative, no verdict on the derivative. A release with a defense
    that is `flat` (signs, rounding) is not checked: its derivative is zero, while its values jump and its levels move
    with their range. Where the model without the defenses agrees, the contradiction is theirs, and the note names them.
    Where the numbers of the model itself are out of scale (`gradleak.core.out_of_scale`), the note says so in their place.

    Args:
        exposure: objective, private batch and release.
        generator: source of the directions and places.
        tolerance: relative error up to which both agree.
        route: the route of A v to check, or None for the one that would be used.
        max_bytes: memory budget of the product.

    Raises:
        InputError: for another kind of exposure or generator, or a tolerance that is not between 0 and 1.

    Cost: 5 to 15 plain gradients and a product A v at each of one to four places: one place and at most 11 gradients
    on the networks of `gradleak.models`, ResNet-18 with ReLU among them.

    Examples:
        >>> from gradleak.core import Batch, Objective, Release
        >>> from gradleak.models import mlp
        >>> from gradleak.protocols import FedSGD
        >>> objective = Objective.from_module(mlp(features=4, classes=2, hidden=(3,), activation="tanh"))
        >>> exposure = Exposure(objective, Batch(torch.ones(1, 4), torch.tensor([0])), Release(FedSGD()))
        >>> check_derivative(exposure, generator=torch.Generator().manual_seed(0)).outcome.label
        'converged'
    """
    check_share("tolerance", tolerance)
    if not isinstance(exposure, Exposure) or not isinstance(generator, torch.Generator):
        raise InputError(
            f"check_derivative: expected an Exposure and a torch.Generator, got {type(exposure).__name__} and "
            f"{type(generator).__name__}"
        )
    flat = [type(defense).__name__ for defense in exposure.release.defenses if defense.flat]
    if flat:
        return DerivativeCheck(
            outcome=Outcome.NOT_INFORMATIVE,
            note=f"{' and '.join(dict.fromkeys(flat))} is constant almost everywhere (it rounds or keeps signs), so that "
            "the derivative of the release is zero and says nothing of what the release gives away",
        )
    exposure = exposure.to(torch.float64)
    check = _checked(exposure, generator, tolerance, route=route, max_bytes=max_bytes)
    agreed = check.outcome in (Outcome.CONVERGED, Outcome.UNSUPPORTED)
    broken = "" if agreed else out_of_scale(exposure.objective, exposure.batch.inputs)
    return replace(check, outcome=Outcome.NOT_INFORMATIVE, note=broken) if broken else check


def _checked(
    exposure: Exposure, generator: torch.Generator, tolerance: float, *, route: Route | None, max_bytes: int
) -> DerivativeCheck:
    """The check at several places near the truth."""
    contradicted: DerivativeCheck | None = None
    last: DerivativeCheck | None = None
    for _ in range(_PLACES):
        last = _check_beside(exposure, generator, tolerance, route=route, max_bytes=max_bytes)
        if last.outcome in (Outcome.CONVERGED, Outcome.UNSUPPORTED):
            return last
        if last.outcome is Outcome.INCONSISTENT:
            if contradicted is not None:
                return _blamed(last, exposure, generator, tolerance, max_bytes=max_bytes)
            contradicted = last
    assert last is not None
    if contradicted is None:
        return last
    return replace(
        contradicted, outcome=Outcome.NOT_INFORMATIVE, note="a contradiction at one place was not found again at others"
    )


def _blamed(
    contradiction: DerivativeCheck, exposure: Exposure, generator: torch.Generator, tolerance: float, *, max_bytes: int
) -> DerivativeCheck:
    """The contradiction with the defenses named in place of the model, where the model alone agrees."""
    release = exposure.release
    kept = [defense for defense in release.defenses if isinstance(defense, ModelDefense)]
    removed = [type(defense).__name__ for defense in release.defenses if not isinstance(defense, ModelDefense)]
    if not removed:
        return contradiction
    bare = replace(exposure, release=Release(release.protocol, kept))
    if _check_beside(bare, generator, tolerance, route=None, max_bytes=max_bytes).outcome is not Outcome.CONVERGED:
        return contradiction
    return replace(
        contradiction,
        note=f"the derivative of {', '.join(removed)} is wrong (that of the model alone is right): A v differs from "
        "central differences of the released mean; look in `mean` for what detaches or leaves torch, and where it is "
        "constant almost everywhere say so by the property `flat`",
    )


def _check_beside(
    exposure: Exposure, generator: torch.Generator, tolerance: float, *, route: Route | None, max_bytes: int
) -> DerivativeCheck:
    """One direction at one place near the truth."""
    truth = exposure.inputs.detach()
    device = generator.device
    drawn = torch.randn((2, *truth.shape), generator=generator, dtype=truth.dtype, device=device).to(truth.device)
    away, direction = drawn
    x = truth + _AWAY * (float(truth.square().mean().sqrt()) or 1.0) * away
    beside = replace(exposure, batch=exposure.batch.with_inputs(x.reshape(exposure.batch.inputs.shape)))
    try:
        operator = GradientJacobian(beside, route=route, max_bytes=max_bytes)
        product = operator.matmat(direction[:, None])[:, 0]
        found = _central(beside.mean, x, direction)
    except UnsupportedError as refusal:
        return DerivativeCheck(outcome=Outcome.UNSUPPORTED, note=str(refusal))
    except torch.OutOfMemoryError:
        raise
    except _REFUSALS as refusal:
        # A column of categories or a logarithm need not take inputs beside the truth. The text may hold values of it.
        note = f"the release cannot be computed beside the private batch ({type(refusal).__name__})"
        return DerivativeCheck(outcome=Outcome.NOT_INFORMATIVE, note=note)
    facts: _Facts = {"smoothness": found.smoothness, "step": found.step}
    if found.value is None:
        return DerivativeCheck(outcome=Outcome.NOT_INFORMATIVE, route=operator.route, note=found.note, **facts)
    size = float(found.value.norm())
    error = float((product - found.value).norm())
    if size == 0.0 and error == 0.0:
        return DerivativeCheck(
            outcome=Outcome.NOT_INFORMATIVE,
            route=operator.route,
            note="the release does not change with the input along this direction",
            **facts,
        )
    relative = error / (size or float(product.norm()))
    if relative <= max(tolerance, 10 * found.smoothness):
        return DerivativeCheck(outcome=Outcome.CONVERGED, error=relative, route=operator.route, **facts)
    return DerivativeCheck(
        outcome=Outcome.INCONSISTENT,
        error=relative,
        route=operator.route,
        note="the second derivative of the model is wrong: A v differs from central differences of the released mean; "
        "look for a custom autograd function whose backward detaches, leaves torch or is not the derivative of its "
        "forward",
        **facts,
    )


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
    return _central(input_gradient, objective.flatten(objective.params), direction)


def _central(function: Function, point: Tensor, direction: Tensor) -> FiniteDifference:
    """The derivative along a direction from the two neighboring steps that agree best."""
    size = float(direction.norm())
    if size == 0.0:
        return FiniteDifference(
            value=torch.zeros_like(function(point)), outcome=Outcome.CONVERGED, smoothness=0.0, step=0.0
        )
    # Steps are relative to the scale of the point, so that they change its last digits alike.
    scale = max(float(point.norm()) / point.numel() ** 0.5, 1e-3) * point.numel() ** 0.5
    unit = direction * (scale / size)
    slopes: list[Tensor] = []
    best, place = float("inf"), 1
    with torch.no_grad():
        for h in _STEPS:
            slopes.append((function(point + h * unit) - function(point - h * unit)) / (2 * h))
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
    value = slopes[place - 1] * (size / scale)
    return FiniteDifference(value=value, outcome=Outcome.CONVERGED, smoothness=best, step=_STEPS[place])


def _distance(a: Tensor, b: Tensor) -> float:
    size = max(float(a.norm()), float(b.norm()))
    distance = float((a - b).norm())
    return 0.0 if size == 0.0 else distance / size if distance == distance else float("inf")

"""Check of a derivative against differences of values, which needs no second derivative."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradleak.core import Exposure, ModelDefense, Release, out_of_scale
from gradleak.operators.finite_difference import FiniteDifference, central_difference
from gradleak.operators.linearization import Linearization
from gradleak.operators.once_differentiable import refuse_once_differentiable
from gradleak.operators.routes import AdjointRoute, Route
from gradleak.operators.wrong_layers import RAISED, wrong_layers
from gradleak.results import InputError, Outcome, UnsupportedError, check_share

# How far from the truth a derivative is checked, relative to the size of the inputs; and at how many places.
_AWAY = 0.05
_PLACES = 3
# Relative error of every tensor's rows of A v up to which what follows from A may be called exact.
_EXACT = {torch.float64: 1e-6, torch.float32: 1e-3}
# At the truth itself: the step, relative to the size of the inputs, where it is taken, and the error that is one.
_STEP = 1e-5
_SHARES = (1.0, -1.0, 0.5, -0.5)
_AT_TRUTH = 1e-3


@dataclass(frozen=True, kw_only=True)
class DerivativeCheck:
    """Result of a check that the derivative that autograd gives is that of the release.

    Attributes:
        outcome: converged (they agree); inconsistent (autograd's is wrong); not_finite (it is infinite or NaN, at the
            private batch or beside it); not_informative (no step gave a difference to believe, nothing depends on the input, or a
            defense is constant almost everywhere); unsupported (no route, or the operator is not deterministic).
        exact: whether they agree so well in every shared tensor that what follows from A may be called exact.
        error: ‖A v − difference‖ / ‖difference‖, or None without both.
        smoothness: relative difference of the two best neighboring steps, or None.
        step: the step that was believed, or None.
        route: how A v was computed, or "".
        note: one sentence for the reader.
    """

    outcome: Outcome
    exact: bool = False
    error: float | None = None
    smoothness: float | None = None
    step: float | None = None
    route: str = ""
    note: str = ""

    @property
    def refusal(self) -> str:
        """The reason why nothing that is computed from the derivative can be read, or "" where it can."""
        if self.outcome is Outcome.INCONSISTENT:
            return f"{self.note} (relative error {self.error:.1g})"
        return self.note if self.outcome is Outcome.NOT_FINITE else ""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Products to be checked, and up to which error."""

    tolerance: float
    dtype: torch.dtype
    route: Route | None
    adjoint: AdjointRoute | None
    max_bytes: int


def check_derivative(
    exposure: Exposure,
    *,
    generator: torch.Generator,
    tolerance: float = 1e-3,
    dtype: torch.dtype = torch.float64,
    route: Route | None = None,
    adjoint: AdjointRoute | None = None,
    max_bytes: int = 2**30,
) -> DerivativeCheck:
    """Check whether A v of a random direction v agrees with central differences of the released mean in float64.

    It catches a custom autograd function whose backward is not differentiable or wrongly so, and rules of torch that are
    wrong: the first derivative, which is what is released, is right, and every second derivative through it is silently
    wrong. It needs values of g alone. A product with Aᵀ is held against A v besides. Rows are compared by tensor, so that
    an error in a small one is seen.

    Assumptions: one direction finds an error that touches it, so with probability one any error of A that is large
    against `tolerance`. The check is made beside the truth, at inputs moved by noise of a twentieth of their size: at
    the truth itself equal pixels make ties in a max pooling and zeros at the kink of an activation, where differences
    to both sides are right and differ from any derivative. Differences also cross kinks on their way (ReLU, max
    pooling); where no two neighboring steps agree, another place is tried. Both a confirmation and, at two places, a
    contradiction end the check; what is left is not_informative, no verdict on the derivative. A release with a defense
    that is `flat` (signs, rounding) is not checked: its derivative is zero, while its values jump and its levels move
    with their range. Where the model without the defenses agrees, the contradiction is theirs, and the note names them;
    else it names the layer where one by itself has a wrong derivative. Where the numbers of the model itself are out of
    scale (`gradleak.core.out_of_scale`), the note says so in their place.

    Args:
        exposure: objective, private batch and release.
        generator: source of the directions and places.
        tolerance: relative error up to which both agree, over all tensors and in each.
        dtype: of the products.
        route: the route of A v to check, or None for the one that would be used.
        adjoint: the route of Aᵀu, likewise.
        max_bytes: memory budget of the products.

    Raises:
        InputError: for another kind of exposure or generator, or a tolerance that is not between 0 and 1.

    Cost: 4 to 14 evaluations of the released mean, a product A v and a product Aᵀu, at each of one to four places. On the
    networks of `gradleak.models` one place is enough, which costs 13 to 20 plain gradients, and 32 to 63 where two examples
    are clipped.

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
    asked = _Asked(tolerance=tolerance, dtype=dtype, route=route, adjoint=adjoint, max_bytes=max_bytes)
    check = _checked(exposure, generator, asked)
    agreed = check.outcome in (Outcome.CONVERGED, Outcome.UNSUPPORTED)
    broken = "" if agreed else out_of_scale(exposure.objective, exposure.batch.inputs)
    return replace(check, outcome=Outcome.NOT_INFORMATIVE, note=broken) if broken else check


def check_at_truth(
    exposure: Exposure, value: Tensor, direction: Tensor, product: Tensor, beside: DerivativeCheck
) -> DerivativeCheck:
    """The check of a derivative that is right beside the private batch, with what differences say at the batch itself.

    Autograd may be right almost everywhere and wrong where values are special: max(x, 0) − max(−x, 0) is x and has a slope
    of 1 at zero, where autograd says 0; a black image or a dead unit is such a place. Where differences to both sides are
    not the same, as at the kink of one activation or for equal values before a max pooling, nothing is said: a derivative
    to one side is not wrong.

    Args:
        exposure: objective, private batch and release.
        value: g(x), (P,).
        direction: v, (d,).
        product: A v, (P,).
        beside: the check beside the private batch; what is not converged there is returned as it is.

    Cost: 4 evaluations of the released mean, 5 for an operator in single precision.
    """
    if beside.outcome is not Outcome.CONVERGED:
        return beside
    wide = exposure.to(torch.float64)
    x, along = wide.inputs, direction.to(torch.float64)
    step = _STEP * max(float(x.norm()), 1e-3 * x.numel() ** 0.5) / float(along.norm())
    try:
        with torch.no_grad():
            here = value if value.dtype is torch.float64 else wide.mean(x)
            ahead, behind, near, near_behind = (wide.mean(x + share * step * along) for share in _SHARES)
    except torch.OutOfMemoryError:
        raise
    except RAISED:  # a logarithm need not take inputs on the other side of the truth
        return beside
    coarse, fine = (ahead - behind) / (2 * step), (near - near_behind) / step
    kink = (near - 2 * here + near_behind) / (step / 2)
    # All that differences hold along a direction in which nothing changes, such as the input itself before a normalization.
    round_off = torch.finfo(torch.float64).eps * float(here.norm()) / (step * here.numel() ** 0.5)
    found = FiniteDifference(
        value=fine,
        outcome=Outcome.CONVERGED,
        smoothness=0.0,
        step=_STEP,
        spread=kink.abs() + (coarse - fine).abs() + round_off,
    )
    worst, name = _worst_tensor(wide, product.to(torch.float64), found, torch.finfo(product.dtype).eps ** 0.6)
    if worst <= _EXACT[product.dtype]:
        return beside
    what = f"the rows of {name} in A v differ from central differences of the released mean"
    if worst <= _AT_TRUTH:
        note = f"{what} by {worst:.1g} at the private batch"
        return replace(beside, exact=False, note="; ".join(filter(None, [beside.note, note])))
    return replace(
        beside,
        outcome=Outcome.INCONSISTENT,
        exact=False,
        error=worst,
        note=f"the second derivative of the model is wrong at the private batch, though right beside it: {what}; kinks "
        "cancel each other there, or something in the model has a rule of its own for zeros or equal values",
    )


def _checked(exposure: Exposure, generator: torch.Generator, asked: _Asked) -> DerivativeCheck:
    """The check at several places near the truth."""
    near: DerivativeCheck | None = None
    contradicted: DerivativeCheck | None = None
    unsure = DerivativeCheck(outcome=Outcome.NOT_INFORMATIVE)
    for _ in range(_PLACES):
        found = _check_beside(exposure, generator, asked)
        if found.outcome is Outcome.UNSUPPORTED:
            return found
        if found.exact:
            return replace(near, exact=True, note="") if near else found
        if found.outcome is Outcome.CONVERGED:
            near = near or found
        elif found.outcome is Outcome.NOT_INFORMATIVE:
            unsure = found
        elif contradicted is None:
            contradicted = found
        else:
            return found if found.outcome is Outcome.NOT_FINITE else _blamed(found, exposure, generator, asked)
    if contradicted is not None and near is None:
        note = "a contradiction at one place was not found again at others"
        return replace(contradicted, outcome=Outcome.NOT_INFORMATIVE, note=note)
    return near or unsure


def _blamed(
    contradiction: DerivativeCheck, exposure: Exposure, generator: torch.Generator, asked: _Asked
) -> DerivativeCheck:
    """The contradiction with what is to blame: the precision, the defenses, a layer."""
    if asked.dtype is not torch.float64:
        wide = _check_beside(exposure, generator, replace(asked, dtype=torch.float64))
        if wide.outcome is Outcome.CONVERGED:
            note = f"{asked.dtype} is not precise enough for this derivative: take dtype=torch.float64"
            return replace(contradiction, note=note)
    release = exposure.release
    kept = [defense for defense in release.defenses if isinstance(defense, ModelDefense)]
    removed = [type(defense).__name__ for defense in release.defenses if not isinstance(defense, ModelDefense)]
    if removed:
        bare = replace(exposure, release=Release(release.protocol, kept))
        if _check_beside(bare, generator, replace(asked, route=None)).outcome is Outcome.CONVERGED:
            return replace(
                contradiction,
                note=f"the derivative of {', '.join(removed)} is wrong (that of the model alone is right): A v differs "
                "from central differences of the released mean; look in `mean` for what detaches or leaves torch, and "
                "where it is constant almost everywhere say so by the property `flat`",
            )
    layers = wrong_layers(exposure, lambda alone: _contradicts(alone, generator, asked))
    where = ", ".join(layers) or "the model"
    return replace(contradiction, note=contradiction.note.replace("the model", where, 1))


def _contradicts(exposure: Exposure, generator: torch.Generator, asked: _Asked) -> bool:
    """True if there is a contradiction at two places."""
    asked = replace(asked, route=None, adjoint=None)
    return all(_check_beside(exposure, generator, asked).outcome is Outcome.INCONSISTENT for _ in range(2))


def _check_beside(exposure: Exposure, generator: torch.Generator, asked: _Asked) -> DerivativeCheck:
    """One direction at one place near the truth."""
    truth = exposure.inputs
    device = generator.device
    drawn = torch.randn((2, *truth.shape), generator=generator, dtype=truth.dtype, device=device).to(truth.device)
    away, direction = drawn
    x = truth + _AWAY * (float(truth.square().mean().sqrt()) or 1.0) * away
    beside = replace(exposure, batch=exposure.batch.with_inputs(x.reshape(exposure.batch.inputs.shape)))
    try:
        refuse_once_differentiable(beside)
        at = Linearization.of(
            beside.to(asked.dtype), max_bytes=asked.max_bytes, route=asked.route, adjoint=asked.adjoint
        )
        tangent = direction[None].to(asked.dtype)
        pushed = at.push(tangent)
        route = ", ".join(at.routes_used)
        found = central_difference(beside.mean, x, direction)
        adjoint = at.fits_adjoint(tangent, pushed)
    except UnsupportedError as refusal:
        return DerivativeCheck(outcome=Outcome.UNSUPPORTED, note=str(refusal))
    except torch.OutOfMemoryError:
        raise
    except RAISED as refusal:
        # A column of categories or a logarithm need not take inputs beside the truth. The text may hold values of it.
        note = f"the release cannot be computed beside the private batch ({type(refusal).__name__})"
        return DerivativeCheck(outcome=Outcome.NOT_INFORMATIVE, note=note)
    facts: dict[str, Any] = {"smoothness": found.smoothness, "step": found.step, "route": route}
    if found.value is None:
        return DerivativeCheck(outcome=Outcome.NOT_INFORMATIVE, note=found.note, **facts)
    product = pushed[0].to(torch.float64)
    if not bool(torch.isfinite(product).all()):
        note = "autograd's derivative of the release is infinite or NaN beside the private batch, where differences are not"
        return DerivativeCheck(outcome=Outcome.NOT_FINITE, note=note, **facts)
    size = float(found.value.norm())
    error = float((product - found.value).norm())
    if size == 0.0 and error == 0.0:
        return DerivativeCheck(
            outcome=Outcome.NOT_INFORMATIVE,
            note="the release does not change with the input along this direction",
            **facts,
        )
    relative = error / (size or float(product.norm()))
    worst, name = _worst_tensor(exposure, product, found, torch.finfo(asked.dtype).eps ** 0.6)
    if adjoint and relative <= max(asked.tolerance, 10 * found.smoothness) and worst <= asked.tolerance:
        exact = worst <= _EXACT[asked.dtype]
        note = "" if exact else f"the rows of {name} agree with differences of values to {worst:.1g} only"
        return DerivativeCheck(outcome=Outcome.CONVERGED, exact=exact, error=relative, note=note, **facts)
    what = "A v differs from central differences of the released mean"
    if relative <= asked.tolerance:
        what = f"the rows of {name} in {what}" if worst > asked.tolerance else "Aᵀu is not the adjoint of A v"
    return DerivativeCheck(
        outcome=Outcome.INCONSISTENT,
        error=max(relative, worst),
        note=f"the second derivative of the model is wrong: {what}; look for a custom autograd function whose backward "
        "detaches, leaves torch or is not the derivative of its forward",
        **facts,
    )


def _worst_tensor(exposure: Exposure, product: Tensor, found: FiniteDifference, round_off: float) -> tuple[float, str]:
    """The largest relative error of the rows of a tensor, over what differences cannot tell, and the tensor's name."""
    assert found.value is not None
    assert found.spread is not None
    floor = round_off * float(found.value.norm())
    parts = [exposure.objective.unflatten(vector) for vector in (product - found.value, found.value, found.spread)]
    errors = {
        name: max(0.0, float(error.norm()) - 10 * float(parts[2][name].norm()) - floor)
        / (float(parts[1][name].norm()) or floor or 1.0)
        for name, error in parts[0].items()
        if error.numel()
    }
    name = max(errors, key=lambda name: errors[name])
    return errors[name], name

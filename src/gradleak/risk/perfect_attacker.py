"""The paper's perfect attacker, reached from the truth: a check of the closed-form prediction, never an attack."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.core import Exposure, Update
from gradleak.linalg import Spectrum
from gradleak.operators import GradientJacobian, pullback
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, UnsupportedError, check_count
from gradleak.risk.measure import check_operator, flat_perturbation

# Secant steps on one linearization: each costs about three plain gradients, a new linearization hundreds.
_STEPS_A_LINEARIZATION = 40
_MEMORY = 20
# The predicted remaining step, relative to the error so far, at which the minimizer counts as reached.
_TOLERANCE = 1e-5
# Levenberg-Marquardt damping in units of λmax, tried in this order where the secant step fails.
_DAMPINGS = (1e-6, 1e-4, 1e-2, 1.0)
# Relative round-off of ½‖g(x) − u‖², below which no decrease can be seen.
_ROUND_OFF = 1e-14


@dataclass(frozen=True, kw_only=True, eq=False)
class PerfectAttack:
    """Minimizer of the L2-matching loss that lies next to the truth.

    Attributes:
        inputs: the minimizer, shaped like `Batch.inputs`, float64, model-input units.
        steps: how many steps were made.
        linearizations: how often A was computed, the first one (or the operator passed) included.
        residual: ‖g(x) − u‖ at the end.
        optimality: ‖A(x)ᵀ(g(x) − u)‖ at the end, zero at a minimizer.
        remaining: the last predicted step over the distance from the truth; small means accurate.
        outcome: converged; plateau where no step lowers the residual (networks with kinks, whose release jumps);
            budget_spent; not_finite.
        score: its distance from the truth as pixel RMSE, ‖diag(std)·(x̂ − x)‖/√d.
    """

    inputs: Tensor
    steps: int
    linearizations: int
    residual: float
    optimality: float
    remaining: float
    outcome: Outcome
    score: Score


def perfect_attacker(
    exposure: Exposure,
    update: Update,
    *,
    max_steps: int = 30,
    operator: GradientJacobian | None = None,
) -> PerfectAttack:
    """The minimizer of ‖g(x) − u‖² that is reached from the truth: **a validation routine, not an attack**.

    It starts at the private batch and knows its labels, so nobody could run it; it shows what error the attacker that
    the I²F paper reasons about would end with, to check the first-order prediction. No box, prior or clamping: pixels
    may leave their range. It is not exported with the attacks and no verdict reads it.

    Levenberg-Marquardt in float64 with one linearization for many steps: the factored AᵀA + μI is the initial
    Hessian of a limited-memory secant method whose gradients A(x)ᵀ(g(x) − u) are exact at every step. So the limit is
    the true minimizer, second-order part of the residual included, not the fixed point of a chord iteration. A is
    computed anew only where progress stalls, and μ rises only where a step fails.

    Args:
        exposure: the private batch, the objective and the release without its noise drawn.
        update: what was released.
        max_steps: budget of linearizations; each allows 40 secant steps.
        operator: A at the truth, to save the first linearization.

    Returns:
        The minimizer, its error against the truth, and how far it may be off.

    Raises:
        InputError: for an update whose tensors are not those of the objective, the operator of another exposure, or
            max_steps < 1.
        UnsupportedError: for a batch too large for a dense Gram matrix.

    Cost: the spectrum of AᵀA once, then about three plain gradients a step.

    Source: Zhang et al. 2023, equations 1 and 8 (the L2 inversion); Moré 1978 (Levenberg-Marquardt); Dennis, Gay and
    Welsch 1981 (secant correction of the second-order part), here with the two-loop recursion of Nocedal 1980.
    """
    check_count("max_steps", max_steps)
    if not isinstance(exposure, Exposure) or not isinstance(update, Update):
        raise InputError(
            f"perfect_attacker: expected an Exposure and an Update, got {type(exposure).__name__} and "
            f"{type(update).__name__}"
        )
    if not isinstance(operator, GradientJacobian | None):
        raise InputError(f"operator: expected a GradientJacobian or None, got {type(operator).__name__}")
    exposure.batch.declared_domain()
    if operator is None:
        operator = GradientJacobian(exposure)
    else:
        check_operator(exposure, operator)
    if not operator.is_dense:
        raise UnsupportedError(
            f"perfect_attacker: d = {operator.shape[1]} is too large for a dense Gram matrix; use fewer examples"
        )
    target = flat_perturbation(exposure, update.tensors, "update").to(operator.dtype)
    truth = operator.exposure.inputs
    search = _Search(operator, target)
    outcome = search.run(max_steps)
    moved = search.point - truth
    scale = exposure.pixel_scale().to(moved.dtype)
    error = float((scale * moved).norm()) / math.sqrt(moved.numel())
    return PerfectAttack(
        inputs=search.point.reshape(exposure.batch.inputs.shape),
        steps=search.steps,
        linearizations=search.linearizations,
        residual=math.sqrt(2 * search.loss),
        optimality=float(search.gradient.norm()),
        remaining=search.remaining,
        outcome=outcome,
        score=Score(
            name="pixel_rmse",
            value=None if outcome is Outcome.NOT_FINITE else error,
            unit="pixel_rmse",
            leakier=Leakier.LOWER,
            evidence=Evidence.ESTIMATE,
            outcome=outcome,
            note="the L2 minimizer reached from the truth, without box or prior: a validation, not an attack",
            details={"remaining": search.remaining, "linearizations": search.linearizations},
        ),
    )


class _Search:
    """The state of one minimization of ½‖g(x) − u‖²."""

    def __init__(self, operator: GradientJacobian, target: Tensor) -> None:
        self._function = operator.exposure.mean
        self._truth = operator.exposure.inputs
        self._target = target
        self._operator = operator
        self._spectrum: Spectrum = operator.spectrum
        self._pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=_MEMORY)
        self.point = self._truth.clone()
        self._linearized_at = self.point
        self.steps = 0
        self.linearizations = 1
        self.remaining = math.inf
        self.loss, self.gradient = self._evaluate(self.point)

    def run(self, max_linearizations: int) -> Outcome:
        if not self._finite():
            return Outcome.NOT_FINITE
        while True:
            for _ in range(_STEPS_A_LINEARIZATION):
                step = self._direction(0.0)
                distance = float((self.point + step - self._truth).norm())
                self.remaining = float(step.norm()) / distance if distance > 0 else 0.0
                at_round_off = float(-self.gradient @ step) <= _ROUND_OFF * self.loss
                if self.remaining <= _TOLERANCE or at_round_off:
                    return Outcome.CONVERGED
                if not self._advance(step) and not self._advance_damped():
                    break
            if self.point is self._linearized_at:
                # The model is fresh and no step, however short, helps: a kink or a jump of g, as ReLU networks have.
                return Outcome.PLATEAU
            if self.linearizations >= max_linearizations:
                return Outcome.BUDGET_SPENT
            self._linearize()

    def _advance_damped(self) -> bool:
        """Levenberg-Marquardt steps of rising damping, until one of them lowers the loss."""
        self._pairs.clear()
        return any(self._advance(self._direction(damping * float(self._spectrum.values[-1]))) for damping in _DAMPINGS)

    def _advance(self, step: Tensor) -> bool:
        """Move along `step` if a part of it lowers the loss; learn the curvature met on the way."""
        slope = float(self.gradient @ step)
        length = 1.0
        while length > 1e-3:
            point = self.point + length * step
            loss, gradient = self._evaluate(point)
            if loss <= self.loss + 1e-4 * length * slope + _ROUND_OFF * self.loss:
                moved, change = point - self.point, gradient - self.gradient
                if float(moved @ change) > 1e-12 * float(moved.norm() * change.norm()):
                    self._pairs.append((moved, change))
                self.point, self.loss, self.gradient = point, loss, gradient
                self.steps += 1
                return True
            length /= 2
        return False

    def _direction(self, damping: float) -> Tensor:
        """The secant step -H∇: two-loop recursion around the damped Gauss-Newton inverse."""
        values, vectors = self._spectrum.values, self._spectrum.vectors
        q, weights = self.gradient.clone(), []
        for moved, change in reversed(self._pairs):
            weight = (moved @ q) / (moved @ change)
            q -= weight * change
            weights.append(weight)
        # Directions that A does not see are left alone.
        inverse = torch.where(values > self._spectrum.threshold, 1 / (values + damping), 0.0)
        q = vectors @ (inverse * (vectors.T @ q))
        for (moved, change), weight in zip(self._pairs, reversed(weights), strict=True):
            q += (weight - (change @ q) / (moved @ change)) * moved
        return -q

    def _linearize(self) -> None:
        self._spectrum = self._operator.at(self.point).spectrum
        self._linearized_at = self.point
        self._pairs.clear()
        self.linearizations += 1

    def _evaluate(self, point: Tensor) -> tuple[float, Tensor]:
        value, pull = pullback(self._function, point)
        residual = value - self._target
        return float(residual @ residual) / 2, pull(residual)

    def _finite(self) -> bool:
        return math.isfinite(self.loss) and bool(torch.isfinite(self.gradient).all())

"""Inversion influence (I²F): the reconstruction error that a given perturbation of the release causes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.linalg import DenseSolver, Gram, InverseSolver, Solver, choose_inverse_solver
from gradleak.operators import DENSE_LIMIT, SIX_DIGITS, GradientJacobian
from gradleak.results import (
    ZHANG_2023,
    Citation,
    Evidence,
    Hint,
    Natural,
    NonNegative,
    Outcome,
    Score,
    Share,
)
from gradleak.risk.measure import EXACT_TO, Measure, Unit, rank_facts

_STRAIGHT = "the release is linearized at the truth, so the value holds for small perturbations"
_BOUNDS = "the interval holds the value for certain, up to round-off: its ends are bounds, not quantiles"
_ROUND_OFF = "AᵀA is ill-conditioned and A does not fit the budget: round-off may change the value by a share of {:.1g}"


@dataclass(frozen=True, kw_only=True)
class InversionInfluence(Measure):
    """The error of the L2-matching attacker under a perturbation δ of the release, to first order: I²F.

    ‖(AᵀA + εI)⁻¹ Aᵀδ‖, A = ∂g/∂x at the truth. With ε = 0 it is ‖A⁺δ‖, the least-squares solution of smallest norm:
    how far the minimizer of ‖g(x) − (g(x₀) + δ)‖² moves. With unit `pixel_rmse` the vector is scaled to pixels before
    its norm is taken and divided by √d: ‖diag(std)·(AᵀA + εI)⁻¹Aᵀδ‖/√d.

    Assumptions: first order in δ. An attacker with a prior or a box can do better: this is no lower bound on the error
    of every attack. For rank r < d and ε = 0 the value covers the range of A only (outcome not_identifiable, with the
    null dimension); for A = 0 there is no value (not_informative).

    Args:
        epsilon: ε >= 0, in the units of the eigenvalues of AᵀA; the paper tunes it, σ²/σ²_prior gives it a meaning.
        unit: `input` (default) or `pixel_rmse`.
        solver: `DenseSolver()`, `ConjugateGradient()`, `GaussRadau()` (few products, and an interval that holds the value),
            `LSMR()`, `NeumannSeries()` or `LeastSquaresDescent()`; None picks one by d, P and the operator's memory budget
            (`choose_inverse_solver`). The details name the solver and why, its residual and its products. With ε > 0 the
            residual of an iterative solver bounds the error (in the details), and the value is exact where that is at most 0.1
            % of it; with ε = 0 it is an estimate. The value of the whole spectrum is exact unless round-off may change more
            than that of it. Where round-off in AᵀA may change more than 1e-6 of it, the singular values of A are taken, if A is
            held or fits the budget; if not, a note says how much may be wrong, and above 0.1 % (condition numbers of A above
            2e6) it is an estimate.
        dense_limit: largest d for which the whole spectrum is picked.

    Raises:
        InputError: for a negative ε, or a solver that computes no inverse.

    Cost: that of the spectrum of AᵀA (then one product a further δ), or a JVP and a VJP an iteration.

    Source: Zhang et al. 2023, equation 4; ε as in "Extension to singular Jacobians" of section 4. Deviations: the norm
    in `pixel_rmse` is divided by √d (their appendix H.1 calls the norm itself RMSE), and better solvers are picked than
    their gradient descent, which is there as `LeastSquaresDescent`.
    """

    name: ClassVar[str] = "inversion_influence"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)
    summary: ClassVar[str] = "predicted reconstruction error under a given perturbation of the release (I²F)"
    needs_delta: ClassVar[bool] = True

    epsilon: NonNegative = 0.0
    unit: Unit | str = Unit.INPUT
    solver: Annotated[DenseSolver | InverseSolver | None, Hint("ConjugateGradient, for instance")] = None
    dense_limit: Natural = DENSE_LIMIT

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        assert delta is not None
        size = _size(delta)
        delta = delta / size
        projected = operator.adjoint_matmat(delta[:, None])
        solver: Solver | None = self.solver
        reason = "asked for"
        if solver is None:
            choice = choose_inverse_solver(
                operator.shape,
                self.epsilon,
                max_bytes=operator.max_bytes,
                limit=self.dense_limit,
                at_hand=operator.has_spectrum,
                item_bytes=operator.value.element_size(),
            )
            solver, reason = choice.solver, choice.reason
        if isinstance(solver, InverseSolver):
            return self._by_iteration(exposure, delta, projected[:, 0], operator, solver, reason, size)
        outcome, note, details = rank_facts(operator)
        if details["rank"] == 0:
            return self._zero_map(operator)
        values, vectors = operator.spectrum.values, operator.spectrum.vectors
        coefficients = vectors.T @ projected[:, 0]
        round_off = details["round_off"]
        if self.epsilon == 0.0:
            kept = values > operator.spectrum.threshold
            moved = vectors[:, kept] @ (coefficients[kept] / values[kept])
        else:
            # The inverse exists whatever the rank, and the formula's value is exact.
            moved = vectors @ (coefficients / (values + self.epsilon))
            outcome, note = Outcome.CONVERGED, ""
            round_off *= details["eigenvalue_min_of_range"] / (float(values[0]) + self.epsilon)
        if round_off > SIX_DIGITS:
            note = "; ".join(filter(None, [note, _ROUND_OFF.format(round_off)]))
        return self._score(
            size * self._norm(moved, exposure),
            Evidence.EXACT if round_off <= EXACT_TO else Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
            details=details
            | {"round_off": round_off, "picked": reason, "epsilon": self.epsilon, "linearization": _STRAIGHT},
        )

    def _by_iteration(
        self,
        exposure: Exposure,
        delta: Tensor,
        projected: Tensor,
        operator: GradientJacobian,
        solver: InverseSolver,
        reason: str,
        size: float,
    ) -> Score:
        if float(projected.norm()) == 0.0 and _is_zero(operator):
            return self._zero_map(operator)
        found = solver.solve(operator, delta, projected, self.epsilon)
        details: dict[str, Any] = {
            "solver": solver.label,
            "picked": reason,
            "residual": found.residual,
            "iterations": found.iterations,
            "matvecs": found.matvecs,
            "epsilon": self.epsilon,
            "route": operator.route,
            "linearization": _STRAIGHT,
        }
        if found.outcome.has_value is False:
            return self._without_value(found.outcome, found.note or f"{solver.label} met NaN or infinity", **details)
        value, bound = size * self._norm(found.solution, exposure), math.inf
        if self.epsilon > 0.0:
            # λmin(AᵀA + εI) >= ε, so the residual bounds the error of the vector, and of its norm.
            bound = size * found.residual * float(projected.norm()) / self.epsilon * self._scales(exposure)[1]
            details["error_bound"] = bound
        else:
            details["rank"] = "not determined"
        interval, scales = None, self._scales(exposure)
        if found.norm_bound is not None and math.isfinite(found.norm_bound):
            # Where pixels have several scales, the bounds of the norm are those of the smallest and of the largest.
            interval = (size * scales[0] * _norm(found.solution), size * scales[1] * found.norm_bound)
            bound = min(bound, interval[1] - interval[0])
        exact = found.outcome is Outcome.CONVERGED and bound <= EXACT_TO * value
        return self._score(
            value,
            Evidence.EXACT if exact else Evidence.ESTIMATE,
            interval=interval,
            outcome=found.outcome,
            note=found.note or ("" if interval is None else _BOUNDS),
            details=details,
        )

    def _scales(self, exposure: Exposure) -> tuple[float, float]:
        """The least and the largest factor by which an error of the vector can change the value."""
        if self.unit == Unit.INPUT:
            return 1.0, 1.0
        scale = exposure.pixel_scale()
        return float(scale.min()) / math.sqrt(scale.numel()), float(scale.max()) / math.sqrt(scale.numel())

    def _norm(self, moved: Tensor, exposure: Exposure) -> float:
        if self.unit == Unit.INPUT:
            return _norm(moved)
        scale = exposure.pixel_scale().to(moved.dtype)
        return _norm(scale * moved) / math.sqrt(moved.numel())


@dataclass(frozen=True, kw_only=True)
class InversionInfluenceLowerBound(Measure):
    """A lower bound of I²F from the largest eigenvalue alone.

    ‖Aᵀδ‖ / (λmax(AᵀA) + ε) <= ‖(AᵀA + εI)⁻¹Aᵀδ‖, with λmax from above (its residual added). With unit `pixel_rmse` it
    is min(std)·‖Aᵀδ‖ / ((λmax + ε)·√d), which stays a bound where the channels have different scales.

    Assumptions: it bounds I²F from below, not the error of every attack. It can be a thousand times lower than I²F.

    Args:
        epsilon: ε >= 0, as for I²F.
        unit: `input` (default) or `pixel_rmse`.
        tolerance: relative residual of λmax.

    Raises:
        InputError: for a negative ε, or a tolerance that is not between 0 and 1.

    Cost: λmax by block Lanczos (tens of products), or nothing more where the operator has its spectrum.

    Source: Zhang et al. 2023, equation 5. Deviation: block Lanczos with a residual check for their power iteration.
    """

    name: ClassVar[str] = "inversion_influence_lower_bound"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)
    summary: ClassVar[str] = "lower bound of I²F from the largest eigenvalue of AᵀA"
    needs_delta: ClassVar[bool] = True

    epsilon: NonNegative = 0.0
    unit: Unit | str = Unit.INPUT
    tolerance: Share = 1e-9

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        assert delta is not None
        numerator = _projected_norm(operator, delta)
        outcome = Outcome.CONVERGED
        details: dict[str, Any] = {"projected_norm": numerator, "epsilon": self.epsilon}
        if operator.has_spectrum:
            largest = float(operator.gram_spectrum()[-1])
            details |= {"solver": "dense spectrum"}
        else:
            found = operator.largest_eigenvalue(tolerance=self.tolerance)
            if found.outcome is Outcome.NOT_FINITE:
                return self._without_value(Outcome.NOT_FINITE, "the derivative of the release is not finite")
            # The eigenvalue lies within the residual of the Ritz value, which is never above it.
            largest, outcome = float(found.values[0] + found.residuals[0]), found.outcome
            details |= {
                "solver": "block Lanczos",
                "residual": float(found.residuals[0]),
                "multiplicity": found.multiplicity,
                "matvecs": found.matvecs,
            }
        if largest == 0.0:
            return self._zero_map(operator)
        value = numerator / (largest + self.epsilon)
        if self.unit == Unit.PIXEL_RMSE:
            value *= float(exposure.pixel_scale().min()) / math.sqrt(operator.shape[1])
        certain = outcome is Outcome.CONVERGED
        return self._score(
            value,
            Evidence.LOWER_BOUND if certain else Evidence.ESTIMATE,
            outcome=outcome,
            note="a lower bound of I²F, not of the error of every attack",
            details=details | {"eigenvalue_max": largest, "route": operator.route},
        )


@dataclass(frozen=True, kw_only=True)
class InversionInfluenceNumerator(Measure):
    """The size of what a perturbation has in common with A, ‖Aᵀδ‖: the numerator of I²F and of its lower bound alone.

    Assumptions: a heuristic. It orders perturbations of one example as the lower bound does, and examples with different
    λmax differently; it is no error, and its unit is that of the release over that of the input. A perturbation outside
    the range of A gives 0; for A = 0 there is no value (not_informative).

    Cost: one VJP.

    Source: Zhang et al. 2023, I_nom of figure 1, which shows that the denominator is needed.
    """

    name: ClassVar[str] = "inversion_influence_numerator"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)
    summary: ClassVar[str] = "numerator of I²F alone (I_nom), a heuristic that leaves the size of A out"
    needs_delta: ClassVar[bool] = True

    @property
    def _unit(self) -> str:
        return "gradient/input"

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        assert delta is not None
        value = _projected_norm(operator, delta)
        if value == 0.0 and _is_zero(operator):
            return self._zero_map(operator)
        return self._score(
            value,
            Evidence.EXACT,
            note="a heuristic: it leaves out by how much A enlarges an error",
            details={"route": operator.route},
        )


def _projected_norm(operator: GradientJacobian, delta: Tensor) -> float:
    """‖Aᵀδ‖."""
    return float(operator.adjoint_matmat(delta[:, None]).norm())


def _size(delta: Tensor) -> float:
    """The power of two next to the largest entry: a perturbation over it has the same digits, and squares in range."""
    largest = float(delta.abs().max())
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0.0 else 1.0


def _norm(vector: Tensor) -> float:
    """The L2 norm, also where squares of the entries are too small or too large for a floating point number."""
    largest = float(vector.abs().max())
    return largest * float((vector / largest).norm()) if 0.0 < largest < math.inf else largest


def _is_zero(operator: GradientJacobian) -> bool:
    """True if AᵀA maps a random vector to zero."""
    probe = torch.randn(operator.shape[1], 1, generator=torch.Generator().manual_seed(0), dtype=operator.dtype)
    return float(Gram(operator).matmat(probe.to(operator.device)).norm()) == 0.0

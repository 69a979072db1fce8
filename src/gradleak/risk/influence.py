"""Inversion influence (I²F): the reconstruction error that a given perturbation of the release causes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gradleak.core import Exposure
from gradleak.linalg import Gram, conjugate_gradient
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import ZHANG_2023, Citation, Evidence, InputError, Outcome, Score
from gradleak.risk.measure import Measure, Unit, rank_facts

_STRAIGHT = "the release is linearized at the truth, so the value holds for small perturbations"


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
        dense_limit: largest d for the whole spectrum; beyond, ε > 0 is solved by conjugate gradients, and ε = 0 is
            unsupported.
        tolerance: relative residual of the conjugate gradients.
        max_iterations: their budget.

    Raises:
        InputError: for a negative ε.

    Cost: that of the spectrum of AᵀA (then one product a further δ), or a JVP and a VJP an iteration.

    Source: Zhang et al. 2023, equation 4; ε as in "Extension to singular Jacobians" of section 4. Deviations: the norm
    in `pixel_rmse` is divided by √d (their appendix H.1 calls the norm itself RMSE), and conjugate gradients stand for
    their gradient descent (appendix A.1).
    """

    name: ClassVar[str] = "inversion_influence"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)
    summary: ClassVar[str] = "predicted reconstruction error under a given perturbation of the release (I²F)"
    needs_delta: ClassVar[bool] = True

    epsilon: float = 0.0
    unit: Unit | str = Unit.INPUT
    dense_limit: int = DENSE_LIMIT
    tolerance: float = 1e-8
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_epsilon(self.epsilon)
        object.__setattr__(self, "unit", Unit.named(self.unit))

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        assert delta is not None
        projected = operator.adjoint_matmat(delta[:, None])
        if operator.shape[1] > self.dense_limit:
            return self._by_conjugate_gradient(exposure, projected, operator)
        outcome, note, details = rank_facts(operator)
        if details["rank"] == 0:
            return self._zero_map(operator)
        values, vectors = operator.spectrum.values, operator.spectrum.vectors
        coefficients = vectors.T @ projected[:, 0]
        if self.epsilon == 0.0:
            kept = values > operator.spectrum.threshold
            moved = vectors[:, kept] @ (coefficients[kept] / values[kept])
        else:
            # The inverse exists whatever the rank, and the formula's value is exact.
            moved = vectors @ (coefficients / (values + self.epsilon))
            outcome, note = Outcome.CONVERGED, ""
        return self._score(
            self._norm(moved, exposure),
            Evidence.EXACT,
            outcome=outcome,
            note=note,
            details=details | {"epsilon": self.epsilon, "linearization": _STRAIGHT},
        )

    def _by_conjugate_gradient(self, exposure: Exposure, projected: Tensor, operator: GradientJacobian) -> Score:
        if self.epsilon == 0.0:
            return self._too_large(operator, self.dense_limit, "use epsilon > 0, or raise dense_limit")
        found = conjugate_gradient(
            Gram(operator),
            projected[:, 0],
            shift=self.epsilon,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )
        details: dict[str, Any] = {
            "solver": "conjugate gradients",
            "residual": found.residual,
            "iterations": found.iterations,
            "matvecs": found.matvecs,
            "epsilon": self.epsilon,
            "linearization": _STRAIGHT,
        }
        if found.outcome is Outcome.NOT_FINITE:
            return self._without_value(found.outcome, "conjugate gradients met NaN or infinity", **details)
        return self._score(
            self._norm(found.solution, exposure),
            Evidence.EXACT if found.outcome is Outcome.CONVERGED else Evidence.ESTIMATE,
            outcome=found.outcome,
            details=details,
        )

    def _norm(self, moved: Tensor, exposure: Exposure) -> float:
        if self.unit == Unit.INPUT:
            return float(moved.norm())
        scale = exposure.pixel_scale().to(moved.dtype)
        return float((scale * moved).norm()) / math.sqrt(moved.numel())


@dataclass(frozen=True, kw_only=True)
class InversionInfluenceLowerBound(Measure):
    """A lower bound of I²F from the largest eigenvalue alone.

    ‖Aᵀδ‖ / (λmax(AᵀA) + ε) <= ‖(AᵀA + εI)⁻¹Aᵀδ‖. With unit `pixel_rmse` it is min(std)·‖Aᵀδ‖ / ((λmax + ε)·√d), which
    stays a bound where the channels have different scales.

    Assumptions: it bounds I²F from below, not the error of every attack. It can be a thousand times lower than I²F.

    Args:
        epsilon: ε >= 0, as for I²F.
        unit: `input` (default) or `pixel_rmse`.
        tolerance: relative residual of λmax.

    Raises:
        InputError: for a negative ε.

    Cost: λmax by block Lanczos (tens of products), or nothing more where the operator has its spectrum.

    Source: Zhang et al. 2023, equation 5. Deviation: block Lanczos with a residual check for their power iteration.
    """

    name: ClassVar[str] = "inversion_influence_lower_bound"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)
    summary: ClassVar[str] = "lower bound of I²F from the largest eigenvalue of AᵀA"
    needs_delta: ClassVar[bool] = True

    epsilon: float = 0.0
    unit: Unit | str = Unit.INPUT
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        """Check the fields."""
        _check_epsilon(self.epsilon)
        object.__setattr__(self, "unit", Unit.named(self.unit))

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        assert delta is not None
        numerator = float(operator.adjoint_matmat(delta[:, None]).norm())
        outcome = Outcome.CONVERGED
        details: dict[str, Any] = {"projected_norm": numerator, "epsilon": self.epsilon}
        if operator.has_spectrum:
            largest = float(operator.gram_spectrum()[-1])
            details |= {"solver": "dense spectrum"}
        else:
            found = operator.largest_eigenvalue(tolerance=self.tolerance)
            if found.outcome is Outcome.NOT_FINITE:
                return self._without_value(Outcome.NOT_FINITE, "the derivative of the release is not finite")
            largest, outcome = float(found.values[0]), found.outcome
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
            details=details | {"eigenvalue_max": largest},
        )


def _check_epsilon(epsilon: float) -> None:
    if not 0.0 <= epsilon < math.inf:
        raise InputError(f"epsilon: expected a finite number of at least 0, got {epsilon}")

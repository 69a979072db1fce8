"""The expected reconstruction error under Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.linalg import DenseSolver, Gram, Solver, TraceSolver, choose_trace_solver
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import (
    HANNUN_2021,
    ZHANG_2023,
    Citation,
    Evidence,
    Hint,
    Natural,
    Outcome,
    Positive,
    Score,
)
from gradleak.risk.measure import Measure, Unit, not_gaussian, rank_facts

_SQUARED = "expected squared error"
_SINGULAR = (
    "needs an AᵀA that is invertible, and this release leaves some directions of the input unseen; take "
    "LanczosQuadrature or DenseSolver"
)
_ROOT = "root of the expected squared pixel error over d"


@dataclass(frozen=True, kw_only=True)
class GaussianReconstructionError(Measure):
    """The expected squared error of the L2-matching attacker under noise N(0, std²) on every shared entry.

    E‖x̂ − x‖² = std² · Σ 1/λᵢ(AᵀA), the sum over the non-zero eigenvalues: the mean of squared I²F over the noise, and
    the Cramér-Rao bound of an unbiased attacker. With unit `pixel_rmse` it is the root of the expected squared pixel
    error over d, √(std² · Σᵢ sᵢ² [(AᵀA)⁺]ᵢᵢ / d), s the pixel scale.

    Assumptions: first order in the noise. A biased attacker (one with a prior or a box) beats it, so no verdict reads
    safety from it. For rank r < d it covers the range of A only (not_identifiable); for A = 0 there is no value.

    Args:
        std: standard deviation of the noise on every entry of the release, positive.
        unit: `input` (default, a squared error in model-input units) or `pixel_rmse` (a root mean square in pixels).
        solver: `DenseSolver()`, `LanczosQuadrature()`, `HutchPlusPlus()` or `Hutchinson()`; None picks the spectrum
            where it fits, else the quadrature (`choose_trace_solver`). The estimators come with an interval of 95 %
            that covers their sampling and a residual for what is inside. Where they did not reach the small
            eigenvalues (budget_spent) there is no interval: the value is too small, or too large if the release has a
            null space. Hutchinson and Hutch++ need an AᵀA that is invertible (unsupported otherwise).
        dense_limit: largest d for which the whole spectrum is picked.

    Raises:
        InputError: for a standard deviation that is not positive, or a solver that computes no trace.

    Cost: that of the spectrum of AᵀA, or of the solver.

    Source: Zhang et al. 2023, equation 6 (which writes JᵀJ; the sum runs over the non-zero eigenvalues, those of
    JJᵀ = AᵀA); Fisher information of the release as in Hannun et al. 2021.
    """

    name: ClassVar[str] = "gaussian_reconstruction_error"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, HANNUN_2021)
    summary: ClassVar[str] = "expected error under Gaussian noise, the Cramér-Rao bound of unbiased attackers"

    std: Positive
    unit: Unit | str = Unit.INPUT
    solver: Annotated[DenseSolver | TraceSolver | None, Hint("LanczosQuadrature, for instance")] = None
    dense_limit: Natural = DENSE_LIMIT

    def predicts_noise(self, std: float) -> Unit | None:
        """Its unit, for its own std."""
        return Unit(self.unit) if std == self.std else None

    @property
    def _unit(self) -> str:
        return Unit(self.unit).squared

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        reason = not_gaussian(exposure)
        if reason is not None:
            return self._without_value(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {reason}")
        size = operator.shape[1]
        solver: Solver | None = self.solver
        reason = "asked for"
        if solver is None:
            choice = choose_trace_solver(
                operator.shape,
                max_bytes=operator.max_bytes,
                limit=self.dense_limit,
                at_hand=operator.has_spectrum,
                item_bytes=operator.value.element_size(),
            )
            solver, reason = choice.solver, choice.reason
        if isinstance(solver, TraceSolver):
            return self._by_sampling(exposure, operator, solver, reason)
        outcome, note, details = rank_facts(operator)
        if details["rank"] == 0:
            return self._zero_map(operator)
        spectrum = operator.spectrum
        kept = spectrum.values > spectrum.threshold
        if self.unit == Unit.INPUT:
            value = self.std * self.std * float((1 / spectrum.values[kept]).sum())
            quantity = _SQUARED
        else:
            scale = exposure.pixel_scale().to(operator.dtype)
            weights = ((scale[:, None] * spectrum.vectors[:, kept]) ** 2).sum(dim=0)
            value = self.std * math.sqrt(float((weights / spectrum.values[kept]).sum()) / size)
            quantity = _ROOT
        return self._score(
            value,
            Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
            details=details | {"picked": reason, "std": self.std, "quantity": quantity},
        )

    def _by_sampling(self, exposure: Exposure, operator: GradientJacobian, solver: TraceSolver, reason: str) -> Score:
        size = operator.shape[1]
        pixels = self.unit == Unit.PIXEL_RMSE
        weights = exposure.pixel_scale().to(operator.dtype) if pixels else None
        gram = Gram(operator)
        # One product first: of a zero map nothing can be sampled.
        probe = torch.randn(size, 1, generator=torch.Generator().manual_seed(0), dtype=operator.dtype)
        if float(gram.matmat(probe.to(operator.device)).norm()) == 0.0:
            return self._zero_map(operator)
        found = solver.estimate(gram, 0.0, weights)
        details: dict[str, Any] = {
            "solver": solver.label,
            "picked": reason,
            "route": operator.route,
            "matvecs": found.matvecs,
            "samples": found.samples,
            "residual": found.inner_error,
            "std": self.std,
            "quantity": _ROOT if pixels else _SQUARED,
        }
        if found.value is None or found.outcome.has_value is False:
            singular = found.outcome is Outcome.UNSUPPORTED
            why = _SINGULAR if singular else "found no value"
            return self._without_value(found.outcome, f"{solver.label} {why}", **details)

        def stated(trace: float) -> float:
            trace = max(trace, 0.0)
            return self.std * math.sqrt(trace / size) if pixels else self.std * self.std * trace

        note = ""
        if found.outcome is Outcome.NOT_IDENTIFIABLE:
            details["null_dimension"] = found.null_dimension
            note = f"about {found.null_dimension:.0f} of {size} directions are left out: the release does not see them"
        elif found.outcome is Outcome.BUDGET_SPENT:
            note = "the smallest eigenvalues were not resolved: too small, or too large if the release has a null space"
        return self._score(
            stated(found.value),
            Evidence.ESTIMATE,
            interval=None
            if found.interval is None or found.outcome is Outcome.BUDGET_SPENT
            else (stated(found.interval[0]), stated(found.interval[1])),
            outcome=found.outcome,
            note=note,
            details=details,
        )

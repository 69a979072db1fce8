"""The lower bound of the inversion error for perturbations that are not small: Theorem 3.1 of the I²F paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.linalg import LinearOperator
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import (
    ZHANG_2023,
    Citation,
    Count,
    Evidence,
    Natural,
    Outcome,
    Positive,
    Score,
    Seed,
)
from gradleak.risk.extreme import largest_by_lanczos, largest_gram_eigenvalue
from gradleak.risk.measure import Measure, Unit

# Sampled constants are too small in any case; a residual of one percent adds nothing to that.
_TOLERANCE = 1e-2
_MATVECS = 400


@dataclass(frozen=True, kw_only=True)
class LipschitzBound(Measure):
    """The bound of Theorem 3.1 on the error of the L2-matching attacker, with sampled Lipschitz constants: an estimate.

    ‖Aᵀδ‖ / (μ_L‖A‖ + 2 μ_J‖g₀ + δ‖), A and g₀ = g(x₀) at the truth, μ_L and μ_J the Lipschitz constants of g and of A
    (spectral norms). Unlike I²F it does not assume a small δ. With unit `pixel_rmse` it is min(std)/√d times that.

    Assumptions: two, and both fail in practice, so the evidence is estimate. (i) The perturbed release is attainable,
    g(x*) = g₀ + δ at the minimizer x*; false in general for more parameters than inputs. Without it the proof gives the
    form ‖Aᵀδ‖ / (μ_L‖A‖ + μ_J(‖g(x*)‖ + ‖g₀ + δ‖)), in the details as `weaker_form` with ‖g₀ + δ‖ + ‖δ‖ in place of
    ‖g(x*)‖, which is not known and never larger: g(x*) is no farther from g₀ + δ than g₀ is. (ii) The constants are
    suprema; sampled ones are too small, which makes the bound too large. They are taken around the truth: μ_L as the
    largest of ‖A(xᵢ)‖ and ‖g(xᵢ) − g₀‖/‖xᵢ − x₀‖, μ_J as the largest of ‖A(xᵢ) − A‖/‖xᵢ − x₀‖, at points in random
    directions with a root mean square distance an entry up to `radius`.

    Args:
        unit: `input` (default) or `pixel_rmse`.
        samples: points around the truth, at least 1.
        radius: largest root mean square distance an entry, in model-input units, positive.
        seed: of the points.
        dense_limit: largest d for ‖A‖ from the whole spectrum; beyond, block Lanczos.

    Raises:
        InputError: for fields out of range.

    Cost: ‖A‖, and for each sample two spectral norms by block Lanczos, hundreds of products in all.

    Source: Zhang et al. 2023, theorem 3.1 (equation 7) and its proof in appendix B.2; sampled constants as in their
    appendix H.1, which does not say how they were sampled.
    """

    name: ClassVar[str] = "lipschitz_bound"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)
    summary: ClassVar[str] = "Theorem 3.1's bound for larger perturbations, with sampled Lipschitz constants"
    needs_delta: ClassVar[bool] = True

    unit: Unit | str = Unit.INPUT
    samples: Count = 8
    radius: Positive = 0.1
    seed: Seed = 0
    dense_limit: Natural = DENSE_LIMIT

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        assert delta is not None
        largest = largest_gram_eigenvalue(operator, dense_limit=self.dense_limit, tolerance=1e-9)
        if largest.value is None:
            return self._without_value(Outcome.NOT_FINITE, "the derivative of the release is not finite")
        norm = math.sqrt(largest.value)
        if norm == 0.0:
            return self._zero_map(operator)
        constants = self._constants(operator, norm)
        if constants is None:
            return self._without_value(Outcome.NOT_FINITE, "the derivative is not finite at a point near the truth")
        mu_release, mu_jacobian = constants
        numerator = float(operator.adjoint_matmat(delta[:, None]).norm())
        perturbed = float((operator.value + delta).norm())
        bound = numerator / (mu_release * norm + 2 * mu_jacobian * perturbed)
        weaker = numerator / (mu_release * norm + mu_jacobian * (2 * perturbed + float(delta.norm())))
        factor = 1.0
        if self.unit == Unit.PIXEL_RMSE:
            factor = float(exposure.pixel_scale().min()) / math.sqrt(operator.shape[1])
        details: dict[str, Any] = {
            "weaker_form": factor * weaker,
            "lipschitz_release": mu_release,
            "lipschitz_jacobian": mu_jacobian,
            "spectral_norm": norm,
            "samples": self.samples,
            "radius": self.radius,
            "solver": largest.details["solver"],
        }
        return self._score(
            factor * bound,
            Evidence.ESTIMATE,
            note="assumes an attainable perturbed release; sampled constants are too small, so the bound is too large",
            details=details,
        )

    def _constants(self, operator: GradientJacobian, norm: float) -> tuple[float, float] | None:
        """Sampled Lipschitz constants of the release and of its derivative, or None if they are not finite."""
        generator = torch.Generator().manual_seed(self.seed)
        center = operator.exposure.inputs
        mu_release, mu_jacobian = norm, 0.0
        for _ in range(self.samples):
            direction = torch.randn(center.shape, generator=generator, dtype=torch.float64).to(center)
            share = float(torch.rand((), generator=generator, dtype=torch.float64)) or 1.0
            distance = share * self.radius * math.sqrt(center.numel())
            there = operator.at(center + distance * direction / direction.norm())
            found = [
                largest_by_lanczos(matrix, tolerance=_TOLERANCE, max_matvecs=_MATVECS).value
                for matrix in (there, Difference(there, operator))
            ]
            if found[0] is None or found[1] is None:
                return None
            secant = float((there.value - operator.value).norm()) / distance
            mu_release = max(mu_release, math.sqrt(found[0]), secant)
            mu_jacobian = max(mu_jacobian, math.sqrt(found[1]) / distance)
        return mu_release, mu_jacobian


@final
class Difference(LinearOperator):
    """A − B of two operators of the same shape.

    Args:
        first: A.
        second: B.
    """

    def __init__(self, first: LinearOperator, second: LinearOperator) -> None:
        super().__init__(first.shape, dtype=first.dtype, device=first.device)
        self._first, self._second = first, second

    def _matmat(self, block: Tensor) -> Tensor:
        return self._first.matmat(block) - self._second.matmat(block)

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        return self._first.adjoint_matmat(block) - self._second.adjoint_matmat(block)

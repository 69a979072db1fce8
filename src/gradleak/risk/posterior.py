"""The error that is left to an adversary with a Gaussian prior, linearized at the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import LEDOIT_WOLF_2004, VAN_TREES_1968, Citation, Evidence, InputError, Outcome, Score
from gradleak.risk.measure import Measure, Unit, not_gaussian
from gradleak.risk.prior import GaussianPrior, posterior_factor


@dataclass(frozen=True, kw_only=True)
class LinearizedPosteriorError(Measure):
    """The expected squared error of a Bayesian attacker if the release were linear with its derivative at the truth.

    tr((AᵀA/σ² + Σ⁻¹)⁻¹), A at the truth, σ the standard deviation of the noise on the release and Σ the covariance of a
    Gaussian prior on x: the trace of the posterior covariance. With Σ = τ²I it is Σᵢ 1/(λᵢ/σ² + 1/τ²), and it gives the
    ε of I²F a meaning, ε = σ²/τ². With unit `pixel_rmse` it is the root of the expected squared pixel error over d.

    Assumptions: exact for a linear release, noise N(0, σ²I) and that prior; for a network an estimate, since A changes
    over the width of the posterior. It is no bound: see `BayesianCramerRao` for that. Where A = 0 the linearized
    release says nothing and there is no value (not_informative); the prior's own error is in the details.

    Args:
        noise_std: σ, positive.
        prior_std: τ in pixels scaled to [0, 1] (in model-input units where the batch has no stated domain), the same
            for all entries; or None with `prior`.
        prior: a Gaussian in model-input units, for instance `GaussianPrior.from_public(images)`; or None with
            `prior_std`. The examples of a batch are independent under it.
        unit: `input` (default, a squared error in model-input units) or `pixel_rmse`.
        dense_limit: largest d for the whole Gram matrix.

    Raises:
        InputError: for a standard deviation that is not positive, none or both of the two priors, or (when measured) a
            prior of another size.

    Cost: that of AᵀA, and about 3 d³ multiplications; nothing more for an isotropic prior with a spectrum at hand.

    Source: the Gaussian posterior of a linear model, as in the van Trees bound (Van Trees 1968) with A at the truth
    in place of its average over the prior.
    """

    name: ClassVar[str] = "linearized_posterior_error"
    citations: ClassVar[tuple[Citation, ...]] = (VAN_TREES_1968, LEDOIT_WOLF_2004)
    summary: ClassVar[str] = "error left to an attacker with a Gaussian prior, linearized at the truth"

    noise_std: float
    prior_std: float | None = None
    prior: GaussianPrior | None = None
    unit: Unit | str = Unit.INPUT
    dense_limit: int = DENSE_LIMIT

    def __post_init__(self) -> None:
        """Check the fields."""
        if not 0.0 < self.noise_std < math.inf:
            raise InputError(f"noise_std: expected a finite positive number, got {self.noise_std}")
        if (self.prior_std is None) == (self.prior is None):
            raise InputError("LinearizedPosteriorError: expected one of prior_std and prior")
        if self.prior_std is not None and not 0.0 < self.prior_std < math.inf:
            raise InputError(f"prior_std: expected a finite positive number, got {self.prior_std}")
        object.__setattr__(self, "unit", Unit.named(self.unit))

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        reason = not_gaussian(exposure)
        if reason is not None:
            return self._without_value(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {reason}")
        if operator.shape[1] > self.dense_limit:
            return self._too_large(operator, self.dense_limit, "raise dense_limit")
        size = operator.shape[1]
        pixels = exposure.pixel_scale().to(operator.dtype)
        if self.prior_std is not None:
            stated = exposure.batch.domain is not None
            deviations = self.prior_std / pixels if stated else torch.full_like(pixels, self.prior_std)
            root = torch.diag(deviations)
            origin = f"isotropic, std {self.prior_std:g} in {'pixels' if stated else 'model-input units (no domain)'}"
            isotropic = float(deviations[0]) if bool((deviations == deviations[0]).all()) else None
        else:
            assert self.prior is not None
            root, origin, isotropic = self._root(exposure, operator), self.prior.origin, None
        weights = torch.ones_like(pixels) if self.unit == Unit.INPUT else pixels**2 / size
        before = float((weights[:, None] * root**2).sum())
        details: dict[str, Any] = {
            "noise_std": self.noise_std,
            "prior": origin,
            "prior_error": self._in_unit(before),
            "linearization": "A at the truth, not averaged over the prior",
            "route": operator.route,
        }
        if float(operator.gram().diagonal().max()) == 0.0:
            return self._without_value(Outcome.NOT_INFORMATIVE, self._zero_map(operator).note, **details)
        if isotropic is not None and self.unit == Unit.INPUT:
            left = float((1 / (operator.gram_spectrum() / self.noise_std**2 + isotropic**-2)).sum())
        else:
            factor = posterior_factor(operator.gram() / self.noise_std**2, root)
            left = float((weights[:, None] * factor**2).sum())
        return self._score(
            self._in_unit(left),
            Evidence.ESTIMATE,
            note="linearized at the truth: an estimate for this example, no bound",
            details=details,
        )

    def _root(self, exposure: Exposure, operator: GradientJacobian) -> Tensor:
        assert self.prior is not None
        single = exposure.batch.inputs[0].numel()
        if self.prior.mean.numel() != single:
            raise InputError(f"prior: expected a Gaussian of the {single} entries of an example, got "
                             f"{self.prior.mean.numel()}")  # fmt: skip
        return torch.block_diag(*[self.prior.root().to(operator.device, operator.dtype)] * exposure.batch.size)

    def _in_unit(self, squared: float) -> float:
        return squared if self.unit == Unit.INPUT else math.sqrt(squared)

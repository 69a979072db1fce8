"""The expected reconstruction error under Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradleak.core import Exposure
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import HANNUN_2021, ZHANG_2023, Citation, Evidence, InputError, Outcome, Score
from gradleak.risk.measure import Measure, Unit, not_gaussian, rank_facts


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
        dense_limit: largest d for the whole spectrum.

    Raises:
        InputError: for a standard deviation that is not positive.

    Cost: that of the spectrum of AᵀA.

    Source: Zhang et al. 2023, equation 6 (which writes JᵀJ; the sum runs over the non-zero eigenvalues, those of
    JJᵀ = AᵀA); Fisher information of the release as in Hannun et al. 2021.
    """

    name: ClassVar[str] = "gaussian_reconstruction_error"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, HANNUN_2021)
    summary: ClassVar[str] = "expected error under Gaussian noise, the Cramér-Rao bound of unbiased attackers"

    std: float
    unit: Unit | str = Unit.INPUT
    dense_limit: int = DENSE_LIMIT

    def __post_init__(self) -> None:
        """Check the fields."""
        if not 0.0 < self.std < math.inf:
            raise InputError(f"std: expected a finite positive number, got {self.std}")
        object.__setattr__(self, "unit", Unit.named(self.unit))

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        reason = not_gaussian(exposure)
        if reason is not None:
            return self._without_value(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {reason}")
        size = operator.shape[1]
        if size > self.dense_limit:
            return self._too_large(operator, self.dense_limit, "raise dense_limit")
        outcome, note, details = rank_facts(operator)
        if details["rank"] == 0:
            return self._zero_map(operator)
        spectrum = operator.spectrum
        kept = spectrum.values > spectrum.threshold
        if self.unit == Unit.INPUT:
            value = self.std**2 * float((1 / spectrum.values[kept]).sum())
            quantity = "expected squared error"
        else:
            scale = exposure.pixel_scale().to(operator.dtype)
            weights = ((scale[:, None] * spectrum.vectors[:, kept]) ** 2).sum(dim=0)
            value = self.std * math.sqrt(float((weights / spectrum.values[kept]).sum()) / size)
            quantity = "root of the expected squared pixel error over d"
        return self._score(
            value,
            Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
            details=details | {"std": self.std, "quantity": quantity},
        )

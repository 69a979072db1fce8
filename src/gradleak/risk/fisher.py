"""Fisher information loss of a release with Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradleak.core import Exposure
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import (
    HANNUN_2021,
    Citation,
    Leakier,
    Natural,
    Outcome,
    Positive,
    Score,
    Share,
)
from gradleak.risk.extreme import largest_gram_eigenvalue
from gradleak.risk.measure import Measure, not_gaussian


@dataclass(frozen=True, kw_only=True)
class FisherInformationLoss(Measure):
    """The Fisher information loss η = ‖A‖₂/σ of a release with noise N(0, σ²) on every entry.

    The Fisher information of the release about x is AᵀA/σ²; η is the root of its largest eigenvalue. Any unbiased
    attacker has variance of at least 1/η² along every direction of the input.

    Assumptions: exact for a dense or certified λmax. It describes the most visible direction alone, and unbiased
    attackers alone: no verdict reads safety from it.

    Args:
        std: σ, standard deviation of the noise on every entry of the release, positive.
        dense_limit: largest d for the whole spectrum; beyond, λmax comes from block Lanczos.
        tolerance: relative residual of the block Lanczos value.

    Raises:
        InputError: for a standard deviation that is not positive.

    Cost: λmax(AᵀA): the spectrum, or tens of products.

    Source: Hannun et al. 2021, definition of η by the spectral norm of the Fisher information matrix.
    """

    name: ClassVar[str] = "fisher_information_loss"
    citations: ClassVar[tuple[Citation, ...]] = (HANNUN_2021,)
    summary: ClassVar[str] = "spectral norm of A over the noise, the Fisher information loss"
    leakier: ClassVar[Leakier] = Leakier.HIGHER

    std: Positive
    dense_limit: Natural = DENSE_LIMIT
    tolerance: Share = 1e-9

    @property
    def _unit(self) -> str:
        return "1/input"

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        reason = not_gaussian(exposure)
        if reason is not None:
            return self._without_value(Outcome.UNSUPPORTED, f"the noise of this release is not Gaussian: {reason}")
        found = largest_gram_eigenvalue(operator, dense_limit=self.dense_limit, tolerance=self.tolerance)
        if found.value is None:
            return self._without_value(found.outcome, "the derivative of the release is not finite", **found.details)
        if found.value == 0.0:
            return self._zero_map(operator)
        return self._score(
            math.sqrt(found.value) / self.std,
            found.evidence,
            outcome=found.outcome,
            note="of unbiased attackers, along the most visible direction",
            details=found.details | {"eigenvalue_max": found.value, "std": self.std},
        )

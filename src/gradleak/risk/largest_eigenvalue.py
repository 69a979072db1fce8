"""The largest eigenvalue of AᵀA with error bars, from few products, or from the cheap ones of some layers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.linalg import Gram, largest_eigenvalue_bounds
from gradleak.operators import GradientJacobian
from gradleak.results import HOCHSTENBACH_2013, Citation, Count, Evidence, Leakier, Outcome, Score, Seed, Share
from gradleak.risk.layer_exposure import VisibleLayers
from gradleak.risk.measure import Measure

_BY_CHANCE = (
    "the lower end holds for certain, the upper one with probability {:.0%} over the random start, for any spectrum"
)
_OF_LAYERS = "of {} alone ({:,} of {:,} released numbers): a lower bound of that of the whole release, to which every tensor adds"


@dataclass(frozen=True, kw_only=True)
class LargestEigenvalue(Measure):
    """The largest eigenvalue of AᵀA, the squared spectral norm ‖A‖², with bounds from a few products.

    It is what the Fisher information loss, LAVP and the lower bound of I²F rest on, which wait until it has converged. Here
    Lanczos runs from a random start until its bounds are `tolerance` apart. The value is the lower one, which holds for
    certain; the interval holds λmax with probability `confidence` over the start, whatever the spectrum.

    With `layers` A is cut to the rows of these layers, A_l. Since AᵀA is the sum of A_lᵀA_l over all tensors, the value is a
    lower bound of λmax then (no interval; that of the part stands in the details). Products with layers near the loss need
    no backward pass through those below: the linear layer at the end of ResNet-18 costs a fifth of all tensors. Where the
    release mixes tensors (a norm that is clipped over all of them) rows of a part are not those of the whole, and there is
    no value (unsupported).

    Assumptions: as said; it describes the most visible direction alone. Random rows or projections of the update do not
    make this cheaper: a product costs nearly as much, and many are needed.

    Args:
        layers: names of tensors, layers or blocks; none for the whole release.
        tolerance: relative distance of the bounds at which the run ends.
        max_steps: of the run; budget_spent beyond.
        confidence: of the upper end.
        seed: of the start vector.

    Raises:
        InputError: for an unknown layer, or a number out of range.

    Cost: a JVP and a VJP a step; ten to twenty steps for a tolerance of 0.1.

    Source: Hochstenbach 2013, "Probabilistic upper bounds for the matrix two-norm". Bounds by layers are ours.
    """

    name: ClassVar[str] = "largest_eigenvalue"
    citations: ClassVar[tuple[Citation, ...]] = (HOCHSTENBACH_2013,)
    summary: ClassVar[str] = "largest eigenvalue of AᵀA with bounds from few products, of all or of some layers"
    leakier: ClassVar[Leakier] = Leakier.HIGHER

    layers: Sequence[str] = ()
    tolerance: Share = 0.1
    max_steps: Count = 64
    confidence: Share = 0.95
    seed: Seed = 0

    @property
    def _unit(self) -> str:
        return "gradient^2/input^2"

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        part, whole = operator, operator.shape[0]
        if self.layers:
            sets = VisibleLayers.of(exposure.objective, *self.layers)
            part = GradientJacobian(
                sets.exposure(exposure), dtype=operator.dtype, max_bytes=operator.max_bytes, check=operator.shared_check
            )
            released = exposure.objective.unflatten(operator.value)
            rows = torch.cat([released[name].reshape(-1) for name in sets.names])
            if not torch.allclose(rows, part.value, rtol=1e-6, atol=1e-10 * float(operator.value.abs().max())):
                return self._without_value(
                    Outcome.UNSUPPORTED,
                    "a defense or the protocol mixes tensors, so that the rows of some layers change with the others: leave "
                    "`layers` out",
                )
        found = largest_eigenvalue_bounds(
            Gram(part),
            generator=torch.Generator().manual_seed(self.seed),
            confidence=self.confidence,
            tolerance=self.tolerance,
            max_steps=self.max_steps,
        )
        details: dict[str, Any] = {
            "solver": "Lanczos from a random start",
            "steps": found.steps,
            "matvecs": found.matvecs,
            "confidence": self.confidence,
            "route": part.route,
        }
        if found.outcome is Outcome.NOT_FINITE:
            return self._without_value(found.outcome, "the derivative of the release is not finite", **details)
        if found.outcome is Outcome.NOT_INFORMATIVE:
            if not self.layers:
                return self._zero_map(operator)
            return self._without_value(found.outcome, f"the derivative of {', '.join(self.layers)} is zero", **details)
        details |= {"bounds": [found.low, found.high]}
        if not self.layers:
            return self._score(
                found.low,
                Evidence.ESTIMATE,
                interval=(found.low, found.high),
                outcome=found.outcome,
                note=_BY_CHANCE.format(self.confidence),
                details=details,
            )
        return self._score(
            found.low,
            Evidence.LOWER_BOUND,
            outcome=found.outcome,
            note=_OF_LAYERS.format(", ".join(self.layers), part.shape[0], whole),
            details=details | {"rows": part.shape[0], "of": whole},
        )

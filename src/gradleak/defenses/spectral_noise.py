"""A perturbation of given norm in the directions that move an attacker most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from gradleak.core import (
    Batch,
    BatchDefense,
    DiagonalGaussian,
    Exposure,
    Guarantee,
    MovedAlong,
    Noise,
    NotGaussian,
    Objective,
    Release,
)
from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import (
    ZHANG_2023,
    Citation,
    Count,
    Natural,
    NonNegative,
    UnsupportedError,
)

if TYPE_CHECKING:
    from gradleak.core.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class SpectralNoise(BatchDefense):
    """The update plus a vector of norm c in the span of the left singular vectors of A that protect most.

    δ = c Σᵢ wᵢ uᵢ, uᵢ = A vᵢ/√λᵢ for the m smallest non-zero eigenvalues of AᵀA, w uniform on the unit sphere (for m = 1 a
    random sign). An L2-matching attacker then errs by Σᵢ (c wᵢ/√λᵢ) vᵢ, to first order: the squared error is c²/λ for one
    direction and (c²/m) Σᵢ 1/λᵢ on average, where isotropic noise of the same norm on P entries gives (c²/P) Σ 1/λ over
    all of them.

    The directions depend on the example, so that the release is heuristic and has no epsilon; the perturbation itself
    tells something. An adversary who knows the rule but not the example does not know the directions; one who knew them
    would project them out. One direction gives the largest error and the weakest hiding place. Its mean is the update,
    so that A stays; the law is not Gaussian, so that measures of Gaussian noise are unsupported: take
    `InversionInfluence` at the perturbation that was drawn.

    **Assumptions**: first order in c; an attacker without prior or box. The smallest eigenvalues of an ill-conditioned A
    are known to eps·λmax only.

    **Cost**: the whole spectrum of AᵀA, at every release, and m JVPs; d at most `dense_limit`.

    **Source**: our own use of Zhang et al. 2023, section 5.1, which compares such directions (there eigenvectors of JJᵀ,
    which live in the input space; those that perturb are the left singular vectors).

    Attributes:
        norm: c, the L2 norm of the perturbation over all tensors, at least 0.
        directions: m, at least 1; fewer are used where A has a smaller rank.
        dense_limit: the largest d for which the spectrum is computed.

    Raises:
        InputError: for a number out of range.
        UnsupportedError: at the release, for a larger d, or where A is zero.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    norm: NonNegative
    directions: Count = 1
    dense_limit: Natural = DENSE_LIMIT

    def effect(self, names: Iterable[str]) -> MovedAlong:
        """The update, moved along the directions that protect most."""
        return MovedAlong(norm=self.norm, directions=self.directions, dense_limit=self.dense_limit)

    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> Tensors:
        """The update itself."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """Not Gaussian; None for a norm of 0."""
        if self.norm == 0:
            return None
        return NotGaussian(
            reason=f"SpectralNoise adds a vector of norm {self.norm:g} in {self.directions} direction"
            f"{'' if self.directions == 1 else 's'} that depend on the batch"
        )

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """Earlier noise passes unchanged."""
        return noise

    def draw(
        self,
        update: Mapping[str, Tensor],
        *,
        objective: Objective,
        batch: Batch,
        before: Release,
        generator: torch.Generator,
    ) -> Tensors:
        """The update with a fresh perturbation."""
        if self.norm == 0:
            return dict(update)
        vectors = self._vectors(Exposure(objective, batch, before))
        weights = torch.randn(vectors.shape[1], generator=generator, dtype=vectors.dtype, device=generator.device)
        weights = weights.to(vectors.device)
        flat = self.norm * (vectors @ (weights / weights.norm()))
        return {name: update[name] + piece.to(update[name]) for name, piece in objective.unflatten(flat).items()}

    def _vectors(self, exposure: Exposure) -> Tensor:
        """The most protective left singular vectors of A, orthonormal columns (P, m)."""
        size = exposure.inputs.numel()
        if size > self.dense_limit:
            raise UnsupportedError(
                f"SpectralNoise: d = {size} is above the limit of {self.dense_limit} for a whole spectrum; raise "
                "dense_limit, or release fewer examples at once"
            )
        operator = GradientJacobian(exposure)
        spectrum = operator.spectrum
        kept = spectrum.values > spectrum.threshold
        if not bool(kept.any()):
            raise UnsupportedError(
                "SpectralNoise: the derivative of the release is zero, so that no direction moves an attacker more than "
                "another; put it before defenses such as Sign"
            )
        images = operator.matmat(spectrum.vectors[:, kept][:, : self.directions].contiguous())
        # Orthogonal up to the round-off of AᵀA; QR makes the norm of the perturbation exact.
        orthonormal: Tensor = torch.linalg.qr(images / images.norm(dim=0)).Q
        return orthonormal

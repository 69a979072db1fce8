"""The consistency gate: is the update what this model, protocol and defenses produce?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from gradleak.audits.released.causes import SCALE_TOLERANCE, causes_of, cosine_of, released_mean, scale_of
from gradleak.core import Batch, DiagonalGaussian, NotGaussian, Objective, Release, Update
from gradleak.results.findings.released import Gate

# Of two different digits of one class, a third have gradients of cosine above 0.99 on the demonstration's network, so
# that the residual is asked for, too; half precision stays far below.
RESIDUAL = 0.05
COSINE = 0.99
CHI_SQUARE_Z = 5.0


class GateStatus(StrEnum):
    """Agreement of the update with the auditor's own computation."""

    CONSISTENT = "consistent"
    INCONSISTENT = "inconsistent"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """Result of the gate.

    Attributes:
        status: consistent, inconsistent, or not applicable (randomized in a way that cannot be compared).
        cosine: between the update and the recomputed mean, or None if either is zero.
        scale: ‖update‖ / ‖mean‖, or None.
        chi_square_z: (‖u − mean‖²/σ² − P) / √(2P) under known Gaussian noise, else None.
        causes: likely causes, those that were tried and found to explain the difference first.
    """

    status: GateStatus
    cosine: float | None = None
    scale: float | None = None
    chi_square_z: float | None = None
    causes: tuple[str, ...] = ()

    def part(self) -> Gate:
        """The same as a part of a finding."""
        return Gate(
            status=self.status.value,
            cosine=self.cosine,
            scale=self.scale,
            chi_square_z=self.chi_square_z,
            causes=self.causes,
        )


def check_update(objective: Objective, release: Release, batch: Batch, update: Update) -> GateResult:
    """Check whether `update` is what `release` makes of `batch`, and if not, why.

    Without noise the cosine to the recomputed mean has to be at least 0.99, the norms have to agree within 1 %, and the
    relative residual may be 5 % at most; under Gaussian noise ‖u − mean‖²/σ² has to lie within P ± 5√(2P), and where
    the noise is so large that any batch would pass, the gate does not apply. Noise below round-off counts as none.

    Args:
        objective: the client's loss as the auditor believes it to be.
        release: protocol and defenses as the auditor believes them to be.
        batch: a batch that the auditor holds and whose update this is said to be.
        update: aligned with the objective.

    **Cost**: one released mean (a plain gradient under FedSGD), and one more for each cause that is tried after a
    mismatch.
    """
    observed = objective.flatten(update.tensors).to(objective.dtype)
    mean = released_mean(objective, release, batch)
    noise = release.noise(objective, examples=batch.size)
    if isinstance(noise, NotGaussian):
        return GateResult(status=GateStatus.NOT_APPLICABLE, causes=(noise.reason,))
    if isinstance(noise, DiagonalGaussian) and _above_round_off(noise, mean):
        return _check_noisy(objective, observed, mean, noise)
    cosine, scale = cosine_of(observed, mean), scale_of(observed, mean)
    if cosine is None:
        if not bool(observed.any()) and not bool(mean.any()):
            return GateResult(status=GateStatus.CONSISTENT, cosine=cosine, scale=scale)
        cause = "the update or the recomputed one is zero, the other is not"
        return GateResult(status=GateStatus.INCONSISTENT, cosine=cosine, scale=scale, causes=(cause,))
    assert scale is not None
    if cosine >= COSINE and abs(scale - 1) <= SCALE_TOLERANCE:
        residual = float((observed - mean).double().norm() / mean.double().norm())
        if residual <= RESIDUAL:
            return GateResult(status=GateStatus.CONSISTENT, cosine=cosine, scale=scale)
        cause = (
            f"the direction nearly agrees, but the relative residual is {residual:.2g}: probably another example of the "
            "same class, or a computation in low precision"
        )
        return GateResult(status=GateStatus.INCONSISTENT, cosine=cosine, scale=scale, causes=(cause,))
    causes = tuple(causes_of(objective, release, batch, update))
    if update.kind is not release.protocol.kind:
        name = type(release.protocol).__name__
        causes = (f"the update is a {update.kind.value}, but {name} makes a {release.protocol.kind.value}", *causes)
    return GateResult(status=GateStatus.INCONSISTENT, cosine=cosine, scale=scale, causes=causes)


def _check_noisy(objective: Objective, observed: Tensor, mean: Tensor, noise: DiagonalGaussian) -> GateResult:
    std = torch.cat(
        [torch.full((p.numel(),), noise.std[name], dtype=torch.float64) for name, p in objective.params.items()]
    ).to(observed.device)
    noisy = std > 0
    residual = (observed - mean).double()
    squares = float(((residual[noisy] / std[noisy]) ** 2).sum())
    count = int(noisy.sum())
    z = (squares - count) / (2 * count) ** 0.5
    cosine, scale = cosine_of(observed, mean), scale_of(observed, mean)
    power = float(((mean.double()[noisy] / std[noisy]) ** 2).sum()) / (2 * count) ** 0.5
    if power <= CHI_SQUARE_Z:
        cause = "the noise is so large against the update that any batch would pass; the gate cannot tell"
        return GateResult(status=GateStatus.NOT_APPLICABLE, cosine=cosine, scale=scale, chi_square_z=z, causes=(cause,))
    if abs(z) <= CHI_SQUARE_Z:
        return GateResult(status=GateStatus.CONSISTENT, cosine=cosine, scale=scale, chi_square_z=z)
    measured = float(residual[noisy].std())
    stated = float(std[noisy].mean())
    causes = (
        f"the update differs from the recomputed mean by noise of standard deviation {measured:.3g}, "
        f"not the stated {stated:.3g}: another noise level, another noise law, or another model, mode, loss or batch",
    )
    return GateResult(status=GateStatus.INCONSISTENT, cosine=cosine, scale=scale, chi_square_z=z, causes=causes)


def _above_round_off(noise: DiagonalGaussian, mean: Tensor) -> bool:
    """True if the noise is larger than what floating point does to the mean, so that its energy can be tested."""
    rounding = torch.finfo(mean.dtype).eps * float(mean.double().norm()) / mean.numel() ** 0.5
    return any(std > 30 * rounding for std in noise.std.values())

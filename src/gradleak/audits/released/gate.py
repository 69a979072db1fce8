"""The consistency gate: is the update what this model, protocol and defenses produce?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Mode, NotGaussian, Objective, Protocol, Release, Update, UpdateKind
from gradleak.protocols import FedSGD, LocalAdam
from gradleak.protocols.fed_avg import LocalSteps
from gradleak.results import GradleakError
from gradleak.results.findings.released import Gate

# Of two different digits of one class, a third have gradients of cosine above 0.99 on the demonstration's network, so
# that the residual is asked for, too; half precision stays far below.
RESIDUAL = 0.05
COSINE = 0.99
SCALE_TOLERANCE = 0.01
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
    mean = _mean(objective, release, batch)
    noise = release.noise(objective, examples=batch.size)
    if isinstance(noise, NotGaussian):
        return GateResult(status=GateStatus.NOT_APPLICABLE, causes=(noise.reason,))
    if isinstance(noise, DiagonalGaussian) and _above_round_off(noise, mean):
        return _check_noisy(objective, observed, mean, noise)
    cosine, scale = _cosine(observed, mean), _scale(observed, mean)
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
    causes = tuple(_causes(objective, release, batch, observed, (cosine, scale)))
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
    cosine, scale = _cosine(observed, mean), _scale(observed, mean)
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


def _causes(
    objective: Objective, release: Release, batch: Batch, observed: Tensor, found: tuple[float, float]
) -> Iterator[str]:
    """Explanations that were tried and fit, then the ones that remain."""
    cosine, scale = found
    if cosine >= COSINE:
        if release.protocol.kind is UpdateKind.DELTA:
            fitting = _fitting_protocols(objective, release, batch, observed, scale)
            yield (
                f"the direction agrees, but the update is {scale:.4g} times as long: another learning rate, momentum "
                "or number of local steps, or sum instead of mean reduction; state the protocol as the client ran it"
                + (f" ({' or '.join(fitting)} would fit)" if fitting else "")
            )
            return
        yield (
            f"the direction agrees, but the update is {scale:.4g} times as long: {_scale_causes(scale, batch.size)}; "
            f"divide the update by {scale:.6g}. Until then an attack that matches by L2 looks for another update than "
            "one that matches by cosine, so that neither gives a verdict"
        )
        return
    if cosine <= -COSINE:
        yield "the sign is reversed: load the update with sign=-1 (a delta is initial minus final parameters)"
        if abs(scale - 1) > SCALE_TOLERANCE:
            yield f"besides, the update is {scale:.4g} times as long: a learning rate, sum reduction or loss scaling"
        return
    explained = False
    for cause, other_objective, other_release, other_batch in _alternatives(objective, release, batch, observed):
        try:
            alternative = _cosine(observed, _mean(other_objective, other_release, other_batch))
        except (GradleakError, RuntimeError, ValueError):
            continue
        if alternative is not None and abs(alternative) >= COSINE:
            explained = True
            yield f"{cause} (cosine {alternative:.4f} then)"
    for name, tensor in objective.unflatten(observed).items():
        if tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1] and tensor.shape[0] > 1:
            turned = objective.unflatten(observed) | {name: tensor.T}
            alternative = _cosine(objective.flatten(turned), _mean(objective, release, batch))
            if alternative is not None and alternative >= COSINE:
                explained = True
                yield f"{name} is transposed (cosine {alternative:.4f} after turning it)"
    if not explained:
        yield "tried without success: the other mode, normalized inputs or not, reversed sign, transposed weights"
        yield (
            "remaining: another loss or label encoding, other parameters (another round), several local steps or "
            "other ones (shuffled mini-batches), an adaptive optimizer, another order of tensors, a defense that was "
            "not stated, or another batch"
        )


def _alternatives(
    objective: Objective, release: Release, batch: Batch, observed: Tensor
) -> Iterator[tuple[str, Objective, Release, Batch]]:
    other = Mode.EVAL if objective.mode is Mode.TRAIN else Mode.TRAIN
    yield (
        f"the client ran in {other.value} mode, the audit in {objective.mode.value} mode",
        objective.in_mode(other),
        release,
        batch,
    )
    if release.protocol.kind is UpdateKind.DELTA:
        plain = Release(FedSGD(), release.defenses)
        yield f"the update is one gradient, not what {type(release.protocol).__name__} makes", objective, plain, batch
    adam = _adam_like(release.protocol, batch.size, observed)
    if adam is not None:
        yield "the client trained with Adam, see LocalAdam", objective, Release(adam, release.defenses), batch
    if batch.domain is not None and (batch.domain.mean is not None or batch.domain.std is not None):
        raw = batch.with_inputs(batch.domain.to_pixels(batch.inputs))
        yield "the client did not normalize its inputs", objective, release, raw
        twice = batch.with_inputs(batch.domain.from_pixels(batch.inputs))
        yield "the inputs of the audit are not normalized, the client's were", objective, release, twice
    bytes_ = batch.with_inputs(batch.inputs * 255)
    yield "the client's inputs were in 0..255", objective, release, bytes_


def _adam_like(protocol: Protocol, examples: int, observed: Tensor) -> LocalAdam | None:
    """Adam with the local steps of `protocol` and a learning rate from the largest move of an entry."""
    # What states the weights of its gradients adds them up, as Adam does not.
    if protocol.mini_batch_weights(examples) is None or not bool(observed.any()):
        return None
    largest = float(observed.abs().max())
    if protocol.shares_gradient:
        return LocalAdam(learning_rate=largest)
    if not isinstance(protocol, LocalSteps):
        return None
    rate = largest / protocol.steps(examples)
    return LocalAdam(learning_rate=rate, epochs=protocol.epochs, batch_size=protocol.batch_size)


def _fitting_protocols(
    objective: Objective, release: Release, batch: Batch, observed: Tensor, scale: float
) -> list[str]:
    """Other learning rates and numbers of epochs that make the update as long as it is, tried out."""
    protocol = release.protocol
    if not isinstance(protocol, LocalSteps):
        return []
    epochs = round(protocol.epochs * scale)
    rate = protocol.learning_rate * scale
    tried: dict[str, Protocol] = {f"learning_rate={rate:.3g}": replace(protocol, learning_rate=rate)}
    if 1 <= epochs <= 100 and epochs != protocol.epochs:
        tried[f"epochs={epochs}"] = replace(protocol, epochs=epochs)
    found = []
    for name, other in tried.items():
        mean = _mean(objective, Release(other, release.defenses), batch)
        if float((observed - mean).double().norm()) <= RESIDUAL * float(mean.double().norm()):
            found.append(name)
    return found


def _scale_causes(scale: float, examples: int) -> str:
    """Reasons why a gradient may be so many times too long, those that fit the number first."""
    causes = ["loss scaling, or a learning rate"]
    if not 0 < scale < math.inf:
        return causes[0]
    power = math.log2(scale)
    if examples > 1:
        exact = abs(scale / examples - 1) <= SCALE_TOLERANCE
        causes.insert(0 if exact else 1, f"sum instead of mean reduction (batch size {examples})")
    if abs(power) >= 8 and abs(power - round(power)) <= 0.01:
        causes.insert(0, f"mixed precision's loss scale of 2^{round(power)} that was not undone")
    if abs(scale - 0.5) <= 0.5 * SCALE_TOLERANCE or abs(scale - 2) <= 2 * SCALE_TOLERANCE:
        causes.insert(0, "a factor ½ in one of the two losses")
    return ", ".join(causes)


def _mean(objective: Objective, release: Release, batch: Batch) -> Tensor:
    batch = batch.to(objective.dtype)
    return objective.flatten(release.mean(objective, objective.params, batch)).detach()


def _cosine(first: Tensor, second: Tensor) -> float | None:
    first, second = first.double(), second.double()
    norms = first.norm() * second.norm()
    if not bool(torch.isfinite(norms)) or float(norms) == 0.0:
        return None
    return float(first @ second / norms)


def _scale(observed: Tensor, mean: Tensor) -> float | None:
    norm = float(mean.double().norm())
    return float(observed.double().norm()) / norm if norm > 0 else None

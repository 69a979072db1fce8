"""Causes of an update that is not what the auditor computes: each is tried by replaying the client with one thing changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from gradleak.audits.released.agreement import Agreement
from gradleak.audits.released.orders import POWER, Orders, powers
from gradleak.core import Batch, Mode, Objective, Protocol, Release, Update, UpdateKind
from gradleak.core.example_gradients import example_gradients
from gradleak.protocols import FedAvg, FedSGD, LocalAdam
from gradleak.protocols.local_steps import LocalSteps, mini_batches
from gradleak.results import GradleakError

# A replay fits if it leaves this share of the update, or what round-off leaves; a wrong one rarely comes so near.
FIT = 1e-3
ROUND_OFF = 4.0
# Of replays that fit, those are named that leave at most so many times what the best one leaves.
NEXT_TO_BEST = 4.0
SCALE_TOLERANCE = 0.01
# A number is fitted by so many secant steps.
STEPS = 6
MOMENTA = (0.3, 0.7, 0.93)
# Whether another split into mini-batches, or other weights of examples, made the update is tried for batches up to this.
MOST_EXAMPLES = 64
MOST_NUMBERS = 1 << 26
WHOLE_WEIGHTS = (
    "these are the client's weights, not their change: subtract them from the model that was sent, initial minus final "
    "(--kind weights, or Update.load(..., kind='weights'), does)"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """A computation that may have made the update.

    Attributes:
        text: the cause, as a clause for the reader.
        objective: the client's loss.
        release: its protocol and defenses.
        batch: its batch.
    """

    text: str
    objective: Objective
    release: Release
    batch: Batch

    def mean(self) -> Tensor | None:
        """The released mean (P,), or None where this cannot be computed."""
        try:
            return released_mean(self.objective, self.release, self.batch)
        except (GradleakError, RuntimeError, ValueError):
            return None


def released_mean(objective: Objective, release: Release, batch: Batch) -> Tensor:
    """The released mean (P,) of the batch, flat in the order of the shared parameters."""
    batch = batch.to(objective.dtype)
    return objective.flatten(release.mean(objective, objective.params, batch)).detach()


def causes_of(agreement: Agreement) -> Iterator[str]:
    """Likely causes of an update without noise that disagrees with the auditor's mean: those that fit, then those that remain.

    Whatever is said to fit does so in every tensor.

    Args:
        agreement: of the update with what the auditor believes.

    **Cost**: some 60 releases of the batch at most, and 99 more of a client that may have shuffled.
    """
    objective, mean = agreement.objective, agreement.mean
    believed = Replay(text="", objective=objective, release=agreement.release, batch=agreement.batch)
    observed = objective.flatten(agreement.update.tensors).to(objective.dtype)
    fitting = list(_fitting(believed, observed, agreement))
    scaled = list(_of_scale(agreement, observed, fitting))
    yield from scaled
    yield from fitting
    if fitting or scaled:
        return
    turned = list(agreement.turned(observed))
    yield from turned
    if turned:
        return
    cosine, scale = cosine_of(observed, mean), scale_of(observed, mean)
    if cosine is not None and scale and cosine >= 0.99:
        yield from agreement.causes(observed / scale)
        return
    yield from agreement.words(observed)
    yield "tried without success: the other mode, normalized inputs or not, reversed sign, transposed weights"
    yield (
        "remaining: another loss or label encoding, other parameters (another round), several local steps or "
        "other ones (shuffled mini-batches), an adaptive optimizer, another order of tensors, a defense that was "
        "not stated, or another batch"
    )


def _of_scale(agreement: Agreement, observed: Tensor, fitting: Sequence[str]) -> Iterator[str]:
    """Readings of the length and the sign of the update where, after they are undone, every tensor agrees."""
    cosine, scale = cosine_of(observed, agreement.mean), scale_of(observed, agreement.mean)
    if not cosine or not scale or abs(cosine) < 0.99:
        return
    if not agreement.holds(math.copysign(1.0, cosine) * observed / scale, agreement.mean):
        return
    kind = agreement.release.protocol.kind
    if cosine < 0:
        yield "the sign is reversed: load the update with sign=-1, or --sign -1 (a delta is initial minus final parameters)"
        if abs(scale - 1) > SCALE_TOLERANCE:
            yield f"besides, the update is {scale:.4g} times as long: a learning rate, sum reduction or loss scaling"
    elif abs(scale - 1) <= SCALE_TOLERANCE:
        return
    elif kind is UpdateKind.DELTA and not fitting:
        yield (
            f"the direction agrees, but the update is {scale:.4g} times as long: another learning rate, momentum "
            "or number of local steps, or sum instead of mean reduction; state the protocol as the client ran it"
        )
    elif kind is UpdateKind.GRADIENT and not fitting:
        yield (
            f"the direction agrees, but the update is {scale:.4g} times as long: "
            f"{_scale_causes(scale, agreement.batch.size)}; "
            f"divide the update by {scale:.6g}. Until then an attack that matches by L2 looks for another update than "
            "one that matches by cosine, so that neither gives a verdict"
        )


def _fitting(believed: Replay, observed: Tensor, agreement: Agreement) -> Iterator[str]:
    """Replays that explain the update, the best one and those that are next to it."""
    objective = believed.objective
    floor = _round_off(objective, believed.release.protocol, agreement.update, believed.batch.size)
    start = objective.flatten(objective.params).to(observed)
    whole = _misfit(start - observed, believed.mean())
    if whole <= max(FIT, ROUND_OFF * floor * float(start.norm() / (start - observed).norm().clamp(min=1e-30))):
        yield WHOLE_WEIGHTS
        return
    found: list[tuple[float, str]] = []
    for replay in _replays(believed, observed):
        mean = replay.mean()
        misfit = _misfit(observed, mean)
        if misfit <= max(FIT, ROUND_OFF * floor) and agreement.holds(observed, mean):
            found.append((misfit, replay.text))
    best = min((misfit for misfit, _ in found), default=0.0)
    near = [text for misfit, text in found if misfit <= NEXT_TO_BEST * max(best, floor)]
    if near:
        yield from dict.fromkeys(near)
        return
    yield from _weighted_examples(agreement, observed)
    yield from _shuffled(believed, observed)


def _replays(believed: Replay, observed: Tensor) -> Iterator[Replay]:
    """The client with one thing changed, numbers fitted to the update."""
    objective, release, batch = believed.objective, believed.release, believed.batch
    other = Mode.EVAL if objective.mode is Mode.TRAIN else Mode.TRAIN
    yield replace(
        believed,
        text=f"the client ran in {other.value} mode, the audit in {objective.mode.value} mode",
        objective=objective.in_mode(other),
    )
    if not batch.inputs.is_floating_point():
        pass
    elif batch.domain is not None and (batch.domain.mean is not None or batch.domain.std is not None):
        raw = batch.with_inputs(batch.domain.to_pixels(batch.inputs))
        yield replace(believed, text="the client did not normalize its inputs", batch=raw)
        twice = batch.with_inputs(batch.domain.from_pixels(batch.inputs))
        yield replace(believed, text="the inputs of the audit are not normalized, the client's were", batch=twice)
    if batch.inputs.is_floating_point():
        yield replace(believed, text="the client's inputs were in 0..255", batch=batch.with_inputs(batch.inputs * 255))
    protocol = release.protocol
    if protocol.kind is UpdateKind.DELTA:
        text = f"the update is one gradient, not what {type(protocol).__name__} makes"
        yield replace(believed, text=text, release=Release(FedSGD(), release.defenses))
    adam = _adam_like(protocol, batch.size, observed)
    if adam is not None:
        yield from _with(believed, "the client trained with Adam, see LocalAdam", adam)
        yield from _fitted(believed, observed, "learning_rate", adam, "the client trained with Adam, see LocalAdam: ")
    if isinstance(protocol, LocalSteps):
        yield from _local(believed, observed, protocol)
    elif protocol.shares_gradient and not release.defenses:
        yield from _decayed_gradient(believed, observed)


def _local(believed: Replay, observed: Tensor, protocol: LocalSteps) -> Iterator[Replay]:
    """Local training with another number in one place."""
    names = {field.name for field in fields(protocol)}
    for name in ("learning_rate", "weight_decay", "proximal"):
        if name in names:
            yield from _fitted(believed, observed, name, protocol)
    if "momentum" in names:
        # The way is far from linear in the momentum, so that the fit begins at several.
        for momentum, nesterov in product(MOMENTA, (False, True)):
            begin: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "dampening": 0.0}
            yield from _fitted(believed, observed, "momentum", replace(protocol, **begin))
    size = believed.batch.size
    scale = scale_of(observed, released_mean(believed.objective, believed.release, believed.batch)) or 1.0
    if protocol.schedule is None and protocol.order is None:
        near = round(protocol.epochs * scale)
        for epochs in sorted({near - 1, near, near + 1, protocol.epochs - 1, protocol.epochs + 1} - {protocol.epochs}):
            if 1 <= epochs <= 100:
                yield from _with(believed, "", replace(protocol, epochs=epochs))
    if size <= MOST_EXAMPLES:
        for count in range(1, size + 1):
            other = None if count == size else count
            if mini_batches(size, other) != mini_batches(size, protocol.batch_size):
                yield from _with(believed, "", replace(protocol, batch_size=other))


def _with(believed: Replay, text: str, protocol: LocalSteps) -> Iterator[Replay]:
    yield replace(
        believed,
        text=text
        or f"a client with {_difference(protocol, believed.release.protocol)} would fit: state the protocol as the client ran it",
        release=Release(protocol, believed.release.defenses),
    )


def _difference(protocol: LocalSteps, believed: Protocol) -> str:
    """The fields in which a protocol differs from another of its class, as they are written."""
    changed = [
        (field.name, getattr(protocol, field.name))
        for field in fields(protocol)
        if getattr(protocol, field.name) != getattr(believed, field.name)
    ]
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in changed
    )


def _fitted(believed: Replay, observed: Tensor, name: str, protocol: LocalSteps, text: str = "") -> Iterator[Replay]:
    """The protocol with the value of one field that comes nearest to the update, by secant steps on the residual."""

    def mean(value: float) -> Tensor | None:
        changed: dict[str, Any] = {name: value}
        other = replace(protocol, **changed)
        return replace(believed, release=Release(other, believed.release.defenses)).mean()

    value = float(getattr(protocol, name))
    low = {"learning_rate": 1e-3 * value, "momentum": 1e-6}.get(name, 0.0)
    high = 0.999 if name == "momentum" else math.inf
    other = value * 1.01 if value else 1e-3
    old = mean(value)
    for _ in range(STEPS):
        new = mean(other)
        if old is None or new is None or other == value:
            return
        slope = (new - old).double() / (other - value)
        square = float(slope @ slope)
        if not math.isfinite(square) or square == 0.0:
            return
        step = float(slope @ (observed - new).double()) / square
        value, old = other, new
        other = min(max(value + step, low), high)
        if abs(other - value) <= 1e-7 * abs(other):
            break
    if not math.isfinite(other):
        return
    changed: dict[str, Any] = {name: other}
    yield from _with(believed, text and f"{text}{name}={other:.3g} would fit", replace(protocol, **changed))


def _decayed_gradient(believed: Replay, observed: Tensor) -> Iterator[Replay]:
    """A gradient with weight decay in it: what is left over lies along the parameters."""
    rest = (observed - released_mean(believed.objective, believed.release, believed.batch)).double()
    start = believed.objective.flatten(believed.objective.params).to(rest)
    square = float(start @ start)
    decay = float(start @ rest) / square if square > 0 else 0.0
    if decay > 0:
        # One step of rate 1 is the gradient with decay.
        yield from _with(
            believed,
            f"the client added weight decay of about {decay:.3g} to its gradient: subtract {decay:.6g} times the parameters",
            FedAvg(learning_rate=1.0, weight_decay=decay),
        )


def _weighted_examples(agreement: Agreement, observed: Tensor) -> Iterator[str]:
    """Weights of single examples that explain a gradient which the mean of the batch does not."""
    batch, objective = agreement.batch, agreement.objective
    if (
        not agreement.release.protocol.shares_gradient
        or agreement.release.defenses
        or not 1 < batch.size <= MOST_EXAMPLES
    ):
        return
    try:
        gradients = example_gradients(objective, objective.params, batch.to(objective.dtype))
    except GradleakError:
        return
    rows = torch.stack([objective.flatten({n: t[i] for n, t in gradients.items()}) for i in range(batch.size)]).double()
    weights = torch.linalg.lstsq(rows.T, observed.double()[:, None], driver="gelsd").solution[:, 0]
    if _misfit(observed, weights @ rows) > FIT or not agreement.holds(observed, weights @ rows):
        return
    if float(weights.std() / weights.mean().abs()) < SCALE_TOLERANCE:
        return
    groups = _micro_batches(weights)
    if groups is not None:
        yield (
            f"gradient accumulation over micro-batches of {' + '.join(map(str, groups))}, the mean of their unequal means, "
            f"would fit: weigh each by its examples, or state AccumulatedGradient(micro_batches={groups})"
        )
        return
    shown = ", ".join(f"{float(weight):.3g}" for weight in weights[:8])
    yield f"the examples weigh {shown}{', …' if batch.size > 8 else ''} in the update, not {1 / batch.size:.3g} each"


def _micro_batches(weights: Tensor) -> list[int] | None:
    """Sizes n_k of consecutive micro-batches with weights 1/(K n_k) an example; None where there are no such."""
    sizes: list[int] = []
    place = 0
    values = [float(weight) for weight in weights]
    for parts in range(2, len(values)):
        sizes, place = [], 0
        while place < len(values) and values[place] > 0:
            size = round(1 / (parts * values[place]))
            within = values[place : place + size]
            if size < 1 or len(within) < size or any(abs(v * parts * size - 1) > SCALE_TOLERANCE for v in within):
                break
            sizes.append(size)
            place += size
        if place == len(values) and len(sizes) == parts:
            return sizes
    return None


def _shuffled(believed: Replay, observed: Tensor) -> Iterator[str]:
    """A sentence if a client that shuffles its mini-batches would come as near, where one that is wrong would not."""
    protocol, size = believed.release.protocol, believed.batch.size
    if not isinstance(protocol, LocalSteps) or protocol.order is not None:
        return
    if len(mini_batches(size, protocol.batch_size)) < 2:
        return
    release = Release(replace(protocol, shuffled=True), believed.release.defenses)
    try:
        orders = Orders.of(release, believed.objective, believed.batch)
    except (GradleakError, RuntimeError, ValueError):
        return
    if not orders.hold(observed):
        return
    told = powers(release, believed.objective, believed.batch, orders)
    if all(power >= POWER for power in told.values()):
        yield ("shuffled mini-batches fit: state shuffled=True, or give the orders that the client drew (order=...)")


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


def _round_off(objective: Objective, protocol: Protocol, update: Update, examples: int) -> float:
    """The relative residual that floating point alone leaves in the update."""
    eps = float(torch.finfo(update.dtype).eps) if update.dtype.is_floating_point else 0.0
    norm = float(objective.flatten(update.tensors).double().norm())
    if protocol.kind is not UpdateKind.DELTA or norm == 0.0:
        return eps
    # Every step rounds every parameter by at most half a unit in the last place.
    steps = protocol.steps(examples) if isinstance(protocol, LocalSteps) else 1
    whole = float(objective.flatten(objective.params).double().norm())
    return eps * (1.0 + whole / norm * math.sqrt(steps / 6))


def _misfit(observed: Tensor, mean: Tensor | None) -> float:
    """‖observed − mean‖/‖observed‖, infinite where there is none."""
    norm = float(observed.double().norm())
    if mean is None or norm == 0.0 or mean.shape != observed.shape:
        return math.inf
    misfit = float((observed.double() - mean.double()).norm()) / norm
    return misfit if math.isfinite(misfit) else math.inf


def cosine_of(first: Tensor, second: Tensor) -> float | None:
    """The cosine of two updates, or None where one of them is zero or not finite."""
    first, second = first.double(), second.double()
    norms = first.norm() * second.norm()
    if not bool(torch.isfinite(norms)) or float(norms) == 0.0:
        return None
    return float(first @ second / norms)


def scale_of(observed: Tensor, mean: Tensor) -> float | None:
    """‖observed‖/‖mean‖, or None for a mean of zero."""
    norm = float(mean.double().norm())
    return float(observed.double().norm()) / norm if norm > 0 else None

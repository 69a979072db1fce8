"""Dependence on an assumed protocol: other learning rates and numbers of steps, tried without the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import scipy
import torch
from torch import Tensor

from gradleak.attacks.attack import Attack
from gradleak.attacks.inversion.matching import CosineDistance
from gradleak.attacks.inversion.reading import LabelSource, draws_of, mean_release
from gradleak.core import Batch, Knowledge, Protocol, Reconstruction, Update
from gradleak.operators.kernels import differentiable_kernels
from gradleak.protocols.local_steps import LocalSteps
from gradleak.results import GradleakError, InputError, KnowledgeError, UnsupportedError

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""By which a learning rate is multiplied unless the caller says otherwise."""

EXPLAINED = 0.1
"""The largest relative residual of a claim whose norm is taken at its word."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProtocolTrial:
    """A claim held against the update under one assumed protocol; no truth is involved.

    Attributes:
        protocol: what was assumed.
        relative_residual: ‖g(x̂) − g*‖ / ‖g*‖ with all its local steps; None without a claim or where it is not finite.
        cosine_distance: 1 − cos(g(x̂), g*), which no factor of the update changes; None likewise.
        moved: pixel RMSE between this claim and the one under the protocol that `knowledge` names, paired one to one;
            None where claims are missing or nothing was run again.
        claim: what the attack claims under this protocol.
        note: why there is no claim.
    """

    protocol: Protocol
    relative_residual: float | None
    cosine_distance: float | None
    moved: float | None = None
    claim: Reconstruction | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LearningRateFit:
    """The learning rate under which a claim explains an update best.

    Attributes:
        learning_rate: η, with all else as assumed.
        relative_residual: of the claim there.
        at_limit: whether it lies at an end of the range that was searched, so that it says nothing.
        believable: whether the claim explains the update there, to a relative residual of 0.1, inside of the range and
            with labels that were not optimized. It is no proof: a claim whose gradients have another norm than those of
            the truth explains the update at another rate.
        note: why it is not believable, else "".
    """

    learning_rate: float
    relative_residual: float
    at_limit: bool
    believable: bool
    note: str


def neighboring_protocols(
    protocol: Protocol, *, rate_factors: Sequence[float] = FACTORS, epochs: Sequence[int] | None = None
) -> list[Protocol]:
    """Protocols that differ from one in its learning rate, or in its number of epochs, one at a time.

    Args:
        protocol: FedAvg or LocalAdam; any other stands alone.
        rate_factors: by which the learning rate is multiplied.
        epochs: to try in place of its own; None for half and twice as many.

    Returns:
        Without repeats; those with other learning rates come first, in the order of the factors.

    Examples:
        >>> from gradleak.protocols import FedAvg
        >>> [p.epochs for p in neighboring_protocols(FedAvg(learning_rate=0.1, epochs=4), rate_factors=[1.0])]
        [4, 2, 8]
    """
    if not isinstance(protocol, LocalSteps):
        return [protocol]
    counts = (max(1, protocol.epochs // 2), 2 * protocol.epochs) if epochs is None else epochs
    tried: list[Protocol] = [
        replace(protocol, learning_rate=protocol.learning_rate * factor) for factor in rate_factors
    ]
    tried += [replace(protocol, epochs=count) for count in counts]
    return list(dict.fromkeys(tried))


def residuals_under(
    found: Reconstruction, update: Update, knowledge: Knowledge, protocols: Sequence[Protocol] | None = None
) -> list[ProtocolTrial]:
    """Residuals of one claim under other assumed protocols, the attack not run again.

    A residual that is much the same everywhere says that the assumption hardly matters for this claim, or that the
    claim explains nothing; compare it with the first. One that is much smaller elsewhere points to a wrong assumption.

    Args:
        found: with inputs and targets.
        update: what the attack was given.
        knowledge: what the attack was given.
        protocols: to assume; None for `neighboring_protocols` of the one in `knowledge`.

    Raises:
        InputError: if nothing was claimed.
        KnowledgeError: without objective or protocol.

    **Cost**: one released mean a protocol: T gradients of its mini-batches.
    """
    base = _protocol(knowledge)
    if found.inputs is None or found.targets is None:
        raise InputError("residuals_under: expected a reconstruction with inputs and targets, got none")
    tried = neighboring_protocols(base) if protocols is None else protocols
    return [_trial(protocol, found, update, knowledge) for protocol in tried]


def rerun_under(
    attack: Attack,
    update: Update,
    knowledge: Knowledge,
    protocols: Sequence[Protocol] | None = None,
    *,
    seed: int,
) -> list[ProtocolTrial]:
    """The attack run again under other assumed protocols, from the same starts: the sensitivity of its claims.

    An adversary who does not know the protocol takes the claim of the smallest residual; scores against the truth are
    for whoever holds it.

    Args:
        attack: as configured.
        update: what the server saw.
        knowledge: with the protocol that the others are compared with.
        protocols: to assume; None for `neighboring_protocols` of the one in `knowledge`.
        seed: every run gets a generator of this seed.

    Raises:
        KnowledgeError: without objective or protocol, or what else the attack needs.

    **Cost**: the attack, once for every protocol and once for that of `knowledge` if it is not among them.
    """
    base = _protocol(knowledge)
    tried = neighboring_protocols(base) if protocols is None else list(protocols)
    runs: dict[Protocol, ProtocolTrial] = {}
    for protocol in dict.fromkeys([base, *tried]):
        facts = knowledge if protocol == base else replace(knowledge, protocol=protocol, assumed=("protocol",))
        try:
            claim = attack(update, facts, generator=torch.Generator().manual_seed(seed))
        except UnsupportedError as refusal:
            runs[protocol] = ProtocolTrial(
                protocol=protocol, relative_residual=None, cosine_distance=None, note=str(refusal)
            )
            continue
        runs[protocol] = replace(
            _trial(protocol, claim, update, knowledge), claim=claim, moved=_moved(claim, runs.get(base), knowledge)
        )
    return [runs[protocol] for protocol in tried]


def fit_learning_rate(
    found: Reconstruction, update: Update, knowledge: Knowledge, *, span: float = 64.0
) -> LearningRateFit:
    """The learning rate that explains the update best from one claim, all else as assumed.

    Minimizes ‖Δ_η(x̂) − Δ‖/‖Δ‖ over log η by Brent's method. It reads η off the norm of the update, so that it is as
    good as the claim: from a claim found by cosine matching without η (AGA), η comes out right as far as the claim's
    gradients have the norms of the truth's. A claim that leaves much of the update unexplained, or whose labels were
    optimized along with the inputs (soft labels near the model's own answer shorten every gradient), can put η off by a
    factor of five: the result then is not `believable`, and its note says why. It cannot mend a wrong number of
    steps, of which a short way tells next to nothing: only ηT is fixed then.

    Args:
        found: with inputs and targets.
        update: what the server saw.
        knowledge: with FedAvg or LocalAdam as protocol, known or assumed; its learning rate is the center.
        span: the search runs from 1/span to span times that.

    Raises:
        InputError: if nothing was claimed, or for another protocol.
        KnowledgeError: without objective or protocol.

    **Cost**: at most 40 released means.
    """
    base = _protocol(knowledge)
    if not isinstance(base, LocalSteps):
        raise InputError(
            f"fit_learning_rate: expected a protocol with a learning rate (FedAvg, LocalAdam), got {type(base).__name__}"
        )
    if found.inputs is None or found.targets is None:
        raise InputError("fit_learning_rate: expected a reconstruction with inputs and targets, got none")

    def residual(log_rate: float) -> float:
        trial = _trial(replace(base, learning_rate=math.exp(log_rate)), found, update, knowledge)
        # A rate at which training diverges explains nothing.
        return 1e6 if trial.relative_residual is None else min(trial.relative_residual, 1e6)

    center, reach = math.log(base.learning_rate), math.log(span)
    # A coarse grid first: the residual is flat at 1 for small rates and may have several minima for large ones.
    grid = [center + reach * (2 * place / 12 - 1) for place in range(13)]
    best = min(grid, key=residual)
    step = reach / 6
    low, high = max(best - step, center - reach), min(best + step, center + reach)
    fitted = scipy.optimize.minimize_scalar(
        residual, bounds=(low, high), method="bounded", options={"xatol": 1e-4, "maxiter": 27}
    )
    value = float(fitted.x)
    at_limit = abs(abs(value - center) - reach) < 1e-2
    doubts = _doubts(found, float(fitted.fun), at_limit=at_limit)
    return LearningRateFit(
        learning_rate=math.exp(value),
        relative_residual=float(fitted.fun),
        at_limit=at_limit,
        believable=not doubts,
        note="" if not doubts else f"the rate may be far off: {'; '.join(doubts)}",
    )


def _doubts(found: Reconstruction, residual: float, *, at_limit: bool) -> list[str]:
    """Reasons why the norm of a claim's update says nothing certain about the learning rate."""
    doubts = []
    if residual > EXPLAINED:
        doubts.append(
            f"the claim leaves a relative residual of {residual:.2g} at its best rate, more than {EXPLAINED:g}, so that it "
            "is not what the update was made from"
        )
    if found.details.get("labels") == LabelSource.OPTIMIZED:
        doubts.append("the labels were optimized with the inputs, and soft ones change the norm of every gradient")
    if at_limit:
        doubts.append("it lies at an end of the range that was searched")
    return doubts


def _protocol(knowledge: Knowledge) -> Protocol:
    knowledge.require(("objective", "protocol"), asker="the sensitivity to the protocol")
    assert knowledge.protocol is not None
    return knowledge.protocol


def _trial(protocol: Protocol, found: Reconstruction, update: Update, knowledge: Knowledge) -> ProtocolTrial:
    """One claim under one protocol."""
    nothing = ProtocolTrial(protocol=protocol, relative_residual=None, cosine_distance=None)
    objective = knowledge.objective
    if objective is None:
        raise KnowledgeError("the sensitivity to the protocol needs objective")
    if found.inputs is None or found.targets is None:
        return replace(nothing, note=found.note)
    release = replace(knowledge, protocol=protocol).release
    target = objective.flatten(update.align(objective).tensors).to(objective.device, torch.float64)
    batch = Batch(found.inputs, found.targets, knowledge.domain).to(objective.dtype)
    draws = draws_of(knowledge, objective, batch.targets)
    try:
        with torch.no_grad(), differentiable_kernels():
            mean = objective.flatten(mean_release(release, draws, batch)).double()
    except GradleakError as refusal:
        return replace(nothing, note=str(refusal))
    if not bool(torch.isfinite(mean).all()):
        return replace(nothing, note="local training of the claim diverges under this protocol")
    scale = target.abs().max()
    return ProtocolTrial(
        protocol=protocol,
        relative_residual=float(((mean - target) / scale).norm() / (target / scale).norm()),
        cosine_distance=float(CosineDistance()(mean, target)),
    )


def _moved(claim: Reconstruction, base: ProtocolTrial | None, knowledge: Knowledge) -> float | None:
    """Pixel RMSE between two claims, paired one to one: no order is recoverable."""
    first = claim.inputs
    second = claim.inputs if base is None else None if base.claim is None else base.claim.inputs
    if first is None or second is None or knowledge.domain is None:
        return None
    pixels = [_rows(knowledge.domain.to_pixels(inputs.double())) for inputs in (first, second)]
    squared = (pixels[0][:, None] - pixels[1][None]).square().mean(dim=2)
    rows, columns = scipy.optimize.linear_sum_assignment(squared.numpy())
    return float(squared[rows, columns].mean().sqrt())


def _rows(inputs: Tensor) -> Tensor:
    return inputs.detach().cpu().flatten(start_dim=1)

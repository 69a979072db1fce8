"""The average gradient approximation (AGA): local steps as one gradient at the shared parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, ExampleDefense, Objective, Protocol, Update, UpdateKind, mean_gradient
from gradleak.protocols.local_steps import step_gradient
from gradleak.results import FANG_2024, Citation, Count, InputError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class AverageGradient(Protocol):
    """The update of a protocol as if its parameters stood still: Σ_j w_j ∇L(θ₀; B_j), with that protocol's weights.

    Weight decay adds its part of θ₀ (`Protocol.decay`).

    For T local SGD steps of equal mini-batches without momentum this is ηT ∇L(θ₀; B), so that comparing it with the
    delta is comparing the gradient of a guess with Δ/(ηT), T the number of optimizer steps; with momentum ηT becomes
    the sum η Σ_s (1 − m^{T−s+1})/(1 − m) over all velocities. It is exact for one step, wrong by O(ηT) relative beyond,
    and wrong in direction too, which no learning rate mends. Matched by cosine the factor does not matter, and neither
    does an unknown learning rate.

    Mini-batches of different weight (a smaller last one, momentum with several) are taken by themselves; so are all of
    them in train mode, where BatchNorm normalizes by the mini-batch.

    **Assumptions**: a loss that is a mean over examples, and a protocol that states its `mini_batch_weights`.

    **Cost**: one plain gradient.

    **Source**: Fang et al. 2024, equations 12 and 13 (AGA). Deviations: T counts optimizer steps (the paper says epochs
    and steps); momentum, and weights for mini-batches of different size, where the paper has the mean over the batch:
    that way the error vanishes with η in every case. The factor multiplies the guess's gradient instead of dividing
    the delta, so that clipping and noise of the delta apply as they are.

    Attributes:
        protocol: what the client really computes.
        examples: b, the number of examples of the batch.
        together: whether the batch is taken as a whole; the mini-batches have to weigh as much as they hold.

    Raises:
        UnsupportedError: if the protocol states no weights, as adaptive optimizers do not.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.DELTA
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024,)

    protocol: Protocol
    examples: Count
    together: bool = False

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if self.together and not proportional(weights_of(self.protocol, self.examples)):
            raise InputError("AverageGradient.together: expected mini-batches of one weight an example, got others")

    def gradient_scale(self) -> float | None:
        """The factor of the gradient of the whole batch, where it is taken as a whole and nothing is added to it."""
        return None if self.protocol.decay(self.examples) else self._factor()

    def mini_batch_weights(self, examples: int) -> Sequence[tuple[slice, float]]:
        """Those of the protocol."""
        return weights_of(self.protocol, examples)

    def decay(self, examples: int) -> float:
        """Decay of the protocol."""
        return self.protocol.decay(examples)

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The weighted sum of gradients at `params`, by name."""
        scale, decay = self._factor(), self.decay(batch.size)
        update: dict[str, Tensor] = {}
        if scale is not None:
            gradient = mean_gradient(objective, params, batch, defenses)
            update = {name: scale * tensor for name, tensor in gradient.items()}
        else:
            for place, weight in weights_of(self.protocol, batch.size):
                gradient = step_gradient(objective, params, batch, place, defenses)
                for name, tensor in gradient.items():
                    update[name] = weight * tensor if name not in update else update[name] + weight * tensor
        return {name: tensor + decay * params[name] for name, tensor in update.items()} if decay else update

    def _factor(self) -> float | None:
        """The factor of the gradient of the whole batch; None where mini-batches are taken by themselves."""
        return sum(weight for _, weight in weights_of(self.protocol, self.examples)) if self.together else None


def average_gradient(
    update: Update, protocol: Protocol, examples: int, params: Mapping[str, Tensor] | None = None
) -> Update:
    """The average of the gradients behind an update, Δ / Σ_j w_j, as an update of kind "gradient".

    What weight decay added is taken out of Δ first.

    For T equal local SGD steps it is Δ/(ηT): an approximation of the gradient at the shared parameters, and labeled so
    in its provenance; for FedSGD it is the update itself. For what reads the scale of a gradient (class counts).

    **Source**: Fang et al. 2024, equation 12; T counts optimizer steps.

    Args:
        update: of that protocol.
        protocol: what the client computes, known or assumed.
        examples: b, the number of examples of the batch.
        params: the shared parameters by name; needed for a protocol with weight decay alone.

    Raises:
        InputError: for a protocol with weight decay and no parameters.
        UnsupportedError: for a protocol that no average gradient stands for.
    """
    if protocol.shares_gradient:
        return update
    if protocol.decay(examples):
        if params is None:
            raise InputError("average_gradient: expected params for a protocol with weight decay, got None")
        update = without_decay(update, protocol, examples, params)
    total = sum(weight for _, weight in weights_of(protocol, examples))
    return Update(
        tensors={name: tensor / total for name, tensor in update.tensors.items()},
        kind=UpdateKind.GRADIENT,
        provenance={**update.provenance, "approximation": f"a {update.kind.value} divided by {total:.6g}"},
    )


def without_decay(update: Update, protocol: Protocol, examples: int, params: Mapping[str, Tensor]) -> Update:
    """The update less what weight decay added to it, to first order in the step size; itself where there is none.

    Args:
        update: of that protocol.
        protocol: what the client computes.
        examples: b, the number of examples of the batch.
        params: the shared parameters by name.
    """
    decay = protocol.decay(examples)
    if not decay:
        return update
    tensors = {name: tensor - decay * params[name].to(tensor) for name, tensor in update.tensors.items()}
    return replace(update, tensors=tensors)


def weights_of(protocol: Protocol, examples: int) -> Sequence[tuple[slice, float]]:
    """The `mini_batch_weights` of a protocol.

    Raises:
        UnsupportedError: if it has none.
    """
    weights = protocol.mini_batch_weights(examples)
    if not weights:
        raise UnsupportedError(
            f"average gradient: expected a protocol whose update is a weighted sum of gradients for small steps (FedSGD, "
            f"FedAvg), got {type(protocol).__name__}, whose update is not a multiple of a gradient; match the unrolled "
            "steps, or assume FedAvg in the threat model and say so"
        )
    return weights


def proportional(weights: Sequence[tuple[slice, float]]) -> bool:
    """True if every mini-batch weighs as much as it holds, so that their sum is a gradient of the whole batch."""
    shares = [weight / (place.stop - place.start) for place, weight in weights]
    return bool(max(shares) - min(shares) <= 1e-9 * max(shares))

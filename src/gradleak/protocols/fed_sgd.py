"""FedSGD: the client shares the gradient of its batch, or the mean of those of its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from torch import Tensor

from gradleak.core import (
    Batch,
    Course,
    DiagonalGaussian,
    ExampleDefense,
    Noise,
    Objective,
    Protocol,
    UpdateKind,
    mean_gradient,
)
from gradleak.protocols.local_steps import step_gradient
from gradleak.results import Count, InputError


@dataclass(frozen=True, kw_only=True)
class FedSGD(Protocol):
    """The gradient of the loss at the shared parameters: one plain gradient, kind "gradient".

    The released mean is the derivative of the loss (mean or sum over the batch as the loss defines it) with respect
    to every shared parameter.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.GRADIENT
    shares_gradient: ClassVar[bool] = True

    def mini_batch_weights(self, examples: int) -> list[tuple[slice, float]]:
        """The whole batch with weight 1: the gradient itself."""
        return [(slice(0, examples), 1.0)]

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The gradient by parameter name; with per-example defenses, the mean of the defended gradients."""
        return mean_gradient(objective, params, batch, defenses)


@dataclass(frozen=True, kw_only=True)
class AccumulatedGradient(Protocol):
    """The mean (1/K) Σₖ ∇L(θ; Bₖ) of the gradients of K micro-batches, kind "gradient".

    What a training loop accumulates that divides the loss of every micro-batch by K. With micro-batches of one size it is the
    gradient of the batch (but for BatchNorm in train mode); with unequal ones the examples of a small micro-batch weigh more,
    1/(K nₖ) each.

    **Assumptions**: a loss that is a mean over examples. Noise of a defense of examples is drawn for every micro-batch.

    **Cost**: one plain gradient.

    Attributes:
        micro_batches: nₖ, in the order of the batch.

    Raises:
        InputError: without a micro-batch.

    Examples:
        >>> [weight for _, weight in AccumulatedGradient(micro_batches=[3, 1]).mini_batch_weights(4)]
        [0.5, 0.5]
    """

    kind: ClassVar[UpdateKind] = UpdateKind.GRADIENT

    micro_batches: Sequence[Count]

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if not self.micro_batches:
            raise InputError("AccumulatedGradient.micro_batches: expected at least one number of examples, got none")

    def mini_batch_weights(self, examples: int) -> list[tuple[slice, float]]:
        """The micro-batches, with 1/K each.

        Raises:
            InputError: for a batch of another number of examples.
        """
        ends = list(accumulate(self.micro_batches))
        if ends[-1] != examples:
            raise InputError(
                f"AccumulatedGradient.micro_batches: expected numbers that add up to the {examples} examples of the batch, got "
                f"{' + '.join(map(str, self.micro_batches))} = {ends[-1]}"
            )
        sizes = zip(ends, self.micro_batches, strict=True)
        return [(slice(end - size, end), 1 / len(ends)) for end, size in sizes]

    def course(self, examples: int) -> Course:
        """One epoch of the micro-batches; their number is fixed, whatever the batch."""
        part = 1 / len(self.micro_batches)
        sums = [(size, part) for size in self.micro_batches]
        return Course(epochs=1, sizes=list(self.micro_batches), whole=False, sums=sums)

    def noise(self, law: Callable[[int], Noise], examples: int) -> Noise:
        """The independent noises of all micro-batches, each over K."""
        total: Noise = None
        for size in self.micro_batches:
            own = law(size)
            if not isinstance(own, DiagonalGaussian):
                return own
            own = own.scaled(1 / len(self.micro_batches))
            total = own.added_to(total) if isinstance(total, DiagonalGaussian) else own
        return total

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The mean of the gradients by parameter name.

        Raises:
            InputError: for a batch of another number of examples.
        """
        total: dict[str, Tensor] = {}
        for place, weight in self.mini_batch_weights(batch.size):
            for name, tensor in step_gradient(objective, params, batch, place, defenses).items():
                total[name] = weight * tensor if name not in total else total[name] + weight * tensor
        return total

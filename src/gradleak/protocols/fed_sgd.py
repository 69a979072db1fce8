"""FedSGD: the client shares the gradient of its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, ExampleDefense, Objective, Protocol, UpdateKind, mean_gradient


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

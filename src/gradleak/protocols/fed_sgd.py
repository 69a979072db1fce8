"""FedSGD: the client shares the gradient of its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, Objective, Protocol, UpdateKind


@dataclass(frozen=True, kw_only=True)
class FedSGD(Protocol):
    """The gradient of the loss at the shared parameters: one plain gradient, kind "gradient".

    The released mean is the derivative of the loss (mean or sum over the batch as the loss defines it) with respect
    to every shared parameter.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.GRADIENT

    def mean(self, objective: Objective, params: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The gradient by parameter name."""
        return objective.gradient(params, batch)

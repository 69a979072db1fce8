"""Base of every protocol with local steps: numbers, mini-batches in a fixed order, and the gradient of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, Course, ExampleDefense, Mode, Objective, Protocol, UpdateKind, mean_gradient
from gradleak.results import Count, InputError, Positive


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Protocol):
    """A protocol whose client takes steps on mini-batches, in the order of the batch, and shares how far it moved.

    Attributes:
        learning_rate: η, positive.
        epochs: passes over the batch.
        batch_size: examples a step; None for the whole batch.

    Raises:
        InputError: for a value out of range.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.DELTA

    learning_rate: Positive
    epochs: Count = 1
    batch_size: Count | None = None

    def steps(self, examples: int) -> int:
        """The number of optimizer steps T on a batch of so many examples."""
        return self.epochs * len(mini_batches(examples, self.batch_size))

    def plain_gradients(self, examples: int) -> float:
        """One plain gradient of the whole batch an epoch."""
        return float(self.epochs)

    def course(self, examples: int) -> Course:
        """So many epochs of mini-batches; the sum of gradients at the shared parameters is for subclasses to say."""
        sizes = [place.stop - place.start for place in mini_batches(examples, self.batch_size)]
        return Course(epochs=self.epochs, sizes=sizes, whole=self.batch_size is None, sums=None)


def mini_batches(examples: int, batch_size: int | None) -> list[slice]:
    """The places of the mini-batches in the order of the batch, the last one smaller where they do not divide evenly.

    Args:
        examples: b, the number of examples of the batch.
        batch_size: examples a step; None for the whole batch.

    Examples:
        >>> mini_batches(5, 2)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = batch_size or examples
    return [slice(start, min(start + size, examples)) for start in range(0, examples, size)]


def step_gradient(
    objective: Objective,
    params: Mapping[str, Tensor],
    batch: Batch,
    place: slice,
    defenses: Sequence[ExampleDefense] = (),
) -> dict[str, Tensor]:
    """The gradient of one mini-batch at `params`, by name, each example's through the defenses.

    Raises:
        InputError: if it is a single example that BatchNorm in train mode cannot work on.
    """
    piece = Batch(batch.inputs[place], batch.targets[place], batch.domain)
    try:
        return mean_gradient(objective, params, piece, defenses)
    except ValueError as error:
        if objective.mode is Mode.EVAL or piece.size > 1 or batch.size == 1:
            raise
        raise InputError(
            f"batch_size: expected mini-batches that the model can train on, got one of a single example "
            f"out of {batch.size} ({error}); choose a batch_size that leaves no single example"
        ) from error

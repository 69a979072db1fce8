"""What every protocol with local steps shares: numbers, mini-batches in a fixed order, and the gradient of one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, Course, ExampleDefense, Mode, Objective, Protocol, UpdateKind, mean_gradient
from gradleak.results import InputError


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

    learning_rate: float
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        name = type(self).__name__
        check_positive(f"{name}.learning_rate", self.learning_rate)
        check_local_training(name, self.epochs, self.batch_size)

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


def check_positive(name: str, value: float) -> None:
    """Refuse what is not a positive finite number.

    Raises:
        InputError: naming the argument.
    """
    if not _is_number(value) or not 0 < value < math.inf:
        raise InputError(f"{name}: expected a positive number, got {value!r}")


def check_below_one(name: str, value: float) -> None:
    """Refuse what is not a number from 0 to below 1.

    Raises:
        InputError: naming the argument.
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise InputError(f"{name}: expected a number from 0 to below 1, got {value!r}")


def check_local_training(protocol: str, epochs: int, batch_size: int | None) -> None:
    """Refuse impossible numbers of epochs or examples a step.

    Raises:
        InputError: naming the protocol and the argument.
    """
    if not _is_count(epochs):
        raise InputError(f"{protocol}.epochs: expected a whole number of at least 1, got {epochs!r}")
    if batch_size is not None and not _is_count(batch_size):
        raise InputError(
            f"{protocol}.batch_size: expected a whole number of at least 1, or None for the whole batch, got "
            f"{batch_size!r}"
        )


def _is_number(value: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1

"""FedAvg: the client trains for some steps on its batch and shares how far its parameters moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, ExampleDefense, Mode, Objective, Protocol, UpdateKind, mean_gradient
from gradleak.results import MCMAHAN_2017, Citation, InputError


@dataclass(frozen=True, kw_only=True)
class FedAvg(Protocol):
    """The way θ₀ − θ_T that local SGD goes in T steps, kind "delta".

    v_t = m v_{t−1} + ∇L(θ_{t−1}; B_t), v_1 = ∇L(θ₀; B_1), θ_t = θ_{t−1} − η v_t: SGD as `torch.optim.SGD` does it. The
    sign is such that a delta points along the gradient; one full-batch step gives η times the gradient. All steps are
    unrolled, so A is the derivative of the whole way with respect to the inputs. It is computed as the difference of
    parameters, as a client does, with its round-off.

    The mini-batches B_t are the examples in the order of the batch, `batch_size` at a time, the last one smaller where
    it does not divide evenly, and the same in every epoch: nothing is shuffled.

    Per-example defenses act in every local step, defenses of the update once, on the delta.

    **Assumptions**: plain SGD with a constant learning rate. In train mode BatchNorm normalizes by the mini-batch, and
    the change of its running statistics is not shared (buffers are no parameters); dropout uses the same masks in
    every step.

    **Cost**: one plain gradient an epoch in mini-batches (T gradients of their size); a derivative keeps or replays
    all T steps, so memory grows with T.

    **Source**: McMahan et al. 2017, algorithm 1 (ClientUpdate), with the fixed order in place of a random split;
    momentum is ours.

    Attributes:
        learning_rate: η, positive.
        epochs: passes over the batch.
        batch_size: examples a step; None for the whole batch.
        momentum: m, in [0, 1).

    Raises:
        InputError: for a value out of range.

    Example:
        >>> FedAvg(learning_rate=0.1, epochs=3, batch_size=4).steps(10)
        9
    """

    kind: ClassVar[UpdateKind] = UpdateKind.DELTA
    citations: ClassVar[tuple[Citation, ...]] = (MCMAHAN_2017,)

    learning_rate: float
    epochs: int = 1
    batch_size: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not _is_number(self.learning_rate) or not 0 < self.learning_rate < math.inf:
            raise InputError(f"FedAvg.learning_rate: expected a positive number, got {self.learning_rate!r}")
        if not _is_count(self.epochs):
            raise InputError(f"FedAvg.epochs: expected a whole number of at least 1, got {self.epochs!r}")
        if self.batch_size is not None and not _is_count(self.batch_size):
            raise InputError(
                f"FedAvg.batch_size: expected a whole number of at least 1, or None for the whole batch, got "
                f"{self.batch_size!r}"
            )
        if not _is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise InputError(f"FedAvg.momentum: expected a number from 0 to below 1, got {self.momentum!r}")

    def steps(self, examples: int) -> int:
        """The number of optimizer steps T on a batch of so many examples."""
        return self.epochs * -(-examples // (self.batch_size or examples))

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The parameters before minus those after local training, by name.

        Raises:
            InputError: if a mini-batch of one example is left that BatchNorm in train mode cannot work on.
        """
        current, velocity = dict(params), dict[str, Tensor]()
        for _ in range(self.epochs):
            for piece in self._pieces(batch):
                gradient = self._gradient(objective, current, piece, batch, defenses)
                if self.momentum and velocity:
                    velocity = {name: self.momentum * velocity[name] + step for name, step in gradient.items()}
                else:
                    velocity = gradient
                current = {name: tensor - self.learning_rate * velocity[name] for name, tensor in current.items()}
        return {name: tensor - current[name] for name, tensor in params.items()}

    def _pieces(self, batch: Batch) -> Iterator[Batch]:
        size = self.batch_size or batch.size
        for start in range(0, batch.size, size):
            place = slice(start, start + size)
            yield Batch(batch.inputs[place], batch.targets[place], batch.domain)

    def _gradient(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        piece: Batch,
        batch: Batch,
        defenses: Sequence[ExampleDefense],
    ) -> dict[str, Tensor]:
        try:
            return mean_gradient(objective, params, piece, defenses)
        except ValueError as error:
            if objective.mode is Mode.EVAL or piece.size > 1 or batch.size == 1:
                raise
            raise InputError(
                f"FedAvg.batch_size: expected mini-batches that the model can train on, got one of a single example "
                f"out of {batch.size} ({error}); choose a batch_size that leaves no single example"
            ) from error


def _is_number(value: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 1

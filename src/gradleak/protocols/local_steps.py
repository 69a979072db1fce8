"""Local training before a release: its steps and their mini-batches, whatever the optimizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import (
    Batch,
    Course,
    ExampleDefense,
    Mode,
    NotGaussian,
    Objective,
    Protocol,
    UpdateKind,
    mean_gradient,
)
from gradleak.results import DIMITROV_2022, Citation, Count, InputError, Natural, NonNegative, Positive

Part = Callable[..., dict[str, Tensor]]
Step = tuple[float, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]]
"""A learning rate, and the function from parameters to the gradient by name."""


@dataclass(frozen=True, kw_only=True)
class LocalSteps(Protocol):
    """A protocol whose client takes steps on mini-batches and shares how far it moved.

    The gradient of a step is ∇L(θ; B) + λ θ + μ (θ − θ₀): weight decay as torch's optimizers add it, and the proximal
    term of FedProx.

    **Source** of the proximal term: Li et al. 2020, equation 2.

    Attributes:
        learning_rate: η, positive.
        epochs: passes over the batch.
        batch_size: examples a step; None for the whole batch.
        weight_decay: λ.
        proximal: μ of FedProx.
        schedule: factors of η, one an epoch; None for a constant learning rate.
        order: the places of the examples in every epoch, one permutation of the batch each; None for the order of the batch
            in all of them. A client that shuffles is replayed with the orders that it drew.
        shuffled: whether the client draws an order for every epoch that nobody else knows; `order` stays None then.

    Raises:
        InputError: for a value out of range.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.DELTA

    learning_rate: Positive
    epochs: Count = 1
    batch_size: Count | None = None
    weight_decay: NonNegative = 0.0
    proximal: NonNegative = 0.0
    schedule: Sequence[Positive] | None = None
    order: Sequence[Sequence[Natural]] | None = None
    shuffled: bool = False

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        for name, values in (("schedule", self.schedule), ("order", self.order)):
            if values is not None and len(values) != self.epochs:
                raise InputError(
                    f"{type(self).__name__}.{name}: expected one entry an epoch, {self.epochs} in all, got {len(values)}"
                )
        if self.shuffled and self.order is not None:
            raise InputError(
                f"{type(self).__name__}.shuffled: expected orders that nobody knows (shuffled=True) or known ones (order=...), "
                "got both"
            )
        for epoch in self.order or ():
            if sorted(epoch) != list(range(len(epoch))):
                raise InputError(
                    f"{type(self).__name__}.order: expected every place of the batch once an epoch, from 0 on, got "
                    f"{list(epoch)}"
                )

    def steps(self, examples: int) -> int:
        """The number of optimizer steps T on a batch of so many examples."""
        return self.epochs * len(mini_batches(examples, self.batch_size))

    def plain_gradients(self, examples: int) -> float:
        """One plain gradient of the whole batch an epoch, or one a step where the order is not known."""
        return float(self.steps(examples) if self.shuffles(examples) else self.epochs)

    def shuffles(self, examples: int | None) -> bool:
        """True if an order that nobody knows decides which examples a mini-batch holds."""
        if not self.shuffled or self.batch_size is None:
            return False
        return examples is None or len(mini_batches(examples, self.batch_size)) > 1

    def chance(self, examples: int | None) -> NotGaussian | None:
        """The order of the examples, where the client shuffles them."""
        if not self.shuffles(examples):
            return None
        return NotGaussian(
            reason="the client shuffles its examples, so that the order of its mini-batches, which nobody else knows, changes "
            "the update; the mean is that of steps on all examples of an epoch"
        )

    def by_epoch(self, examples: int) -> tuple[Protocol, int] | None:
        """The same steps on a batch of its own for every epoch, where the order is not known."""
        if not self.shuffles(examples):
            return None
        return EpochCopies(protocol=replace(self, shuffled=False), examples=examples), self.epochs

    def note(self, examples: int) -> str:
        """Note that the order is not known."""
        if not self.shuffles(examples):
            return ""
        return (
            "the order of the examples is not known: a guess is put through steps that each take the mean over all examples "
            "of the epoch"
        )

    def course(self, examples: int) -> Course:
        """So many epochs of mini-batches; the sum of gradients at the shared parameters is for subclasses to say."""
        sizes = [place.stop - place.start for place in mini_batches(examples, self.batch_size)]
        return Course(epochs=self.epochs, sizes=sizes, whole=self.batch_size is None, sums=None)

    def rates(self, examples: int) -> list[float]:
        """The learning rate of every step (T numbers)."""
        each = len(mini_batches(examples, self.batch_size))
        return [self.learning_rate * factor for factor in self.schedule or self.epochs * (1.0,) for _ in range(each)]

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The parameters before minus those after local training, by name.

        Where the order is not known, every step takes the mean over all examples in place of that over its mini-batch: the
        mean over all orders, to first order in the learning rate.

        Raises:
            InputError: for orders of another number of examples, or if a mini-batch of one example is left that BatchNorm
                in train mode cannot work on.
        """
        if self.shuffles(batch.size):
            return self._way(self._steps(objective, params, [batch], defenses, pooled=True), params)
        if self.order is not None and len(self.order[0]) != batch.size:
            raise InputError(
                f"{type(self).__name__}.order: expected places of the {batch.size} examples of the batch, got "
                f"{len(self.order[0])}"
            )
        epochs = [batch] if self.order is None else [_reordered(batch, places) for places in self.order]
        return self.over_epochs(objective, params, epochs, defenses)

    def over_epochs(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        epochs: Sequence[Batch],
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The parameters before minus those after local training on a batch of its own in every epoch, by name.

        Args:
            objective: the client's loss.
            params: where the client starts, by name.
            epochs: the batch of every epoch, in the order in which its mini-batches are taken; one for all of them.
            defenses: of the example stage.
        """
        return self._way(self._steps(objective, params, epochs, defenses), params)

    def draw(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense],
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """The update of one drawn order an epoch, where the client shuffles."""
        if not self.shuffles(batch.size):
            return self.mean(objective, params, batch, defenses)
        epochs = [
            _reordered(batch, torch.randperm(batch.size, generator=generator, device=generator.device).tolist())
            for _ in range(self.epochs)
        ]
        return self.over_epochs(objective, params, epochs, defenses)

    @abstractmethod
    def _way(self, steps: Iterable[Step], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The start minus where the optimizer ends after these steps, by name."""

    def _steps(
        self,
        objective: Objective,
        start: Mapping[str, Tensor],
        epochs: Sequence[Batch],
        defenses: Sequence[ExampleDefense],
        *,
        pooled: bool = False,
    ) -> Iterator[Step]:
        """The learning rate of every step, and the function from parameters to its gradient by name."""
        places = mini_batches(epochs[0].size, self.batch_size)
        take = _pooled_gradient if pooled else step_gradient
        for step, rate in enumerate(self.rates(epochs[0].size)):
            epoch, number = divmod(step, len(places))

            part = partial(take, objective, batch=epochs[epoch % len(epochs)], place=places[number], defenses=defenses)

            def gradient(params: Mapping[str, Tensor], part: Part = part) -> dict[str, Tensor]:
                return self._regularized(part(params=params), params, start)

            yield rate, gradient

    @property
    def _decay_in_gradient(self) -> float:
        """Weight decay that enters the gradient."""
        return self.weight_decay

    def _regularized(
        self, gradient: dict[str, Tensor], params: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The gradient with weight decay and the proximal term."""
        decay = self._decay_in_gradient
        if decay:
            gradient = {name: tensor + decay * params[name] for name, tensor in gradient.items()}
        if self.proximal:
            gradient = {
                name: tensor + self.proximal * (params[name] - start[name]) for name, tensor in gradient.items()
            }
        return gradient


@dataclass(frozen=True, kw_only=True)
class EpochCopies(Protocol):
    """Local steps on a batch that holds the examples of every epoch one after the other, each epoch in its own order.

    **Source**: Dimitrov et al. 2022, section 4.2: a copy of the examples for every epoch, since their order is not known.

    Attributes:
        protocol: the steps.
        examples: b of one epoch.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.DELTA
    citations: ClassVar[tuple[Citation, ...]] = (DIMITROV_2022,)

    protocol: LocalSteps
    examples: Count

    def plain_gradients(self, examples: int) -> float:
        """Cost of the steps, in gradients of the batch of all epochs."""
        return self.protocol.plain_gradients(self.examples) * self.examples / examples

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The parameters before minus those after local training, by name."""
        ends = range(0, batch.size, self.examples)
        epochs = [
            Batch(batch.inputs[at : at + self.examples], batch.targets[at : at + self.examples], batch.domain)
            for at in ends
        ]
        return self.protocol.over_epochs(objective, params, epochs, defenses)


def _reordered(batch: Batch, places: Sequence[int]) -> Batch:
    index = torch.tensor(places, device=batch.inputs.device)
    return Batch(batch.inputs[index], batch.targets[index], batch.domain)


def _pooled_gradient(
    objective: Objective,
    params: Mapping[str, Tensor],
    batch: Batch,
    place: slice,
    defenses: Sequence[ExampleDefense] = (),
) -> dict[str, Tensor]:
    """The mean of `step_gradient` over all examples that may stand at this place.

    What BatchNorm in train mode makes of a mini-batch depends on the others in it; there the batch is taken in mini-batches
    in its own order.
    """
    count = place.stop - place.start
    if objective.mode is Mode.EVAL or defenses:
        gradient = mean_gradient(objective, params, batch, defenses)
        # A defense may divide the sum by a constant, so that a whole batch counts more than a mini-batch.
        factor = _part_of_one(count, defenses) / _part_of_one(batch.size, defenses)
        return {name: factor * tensor for name, tensor in gradient.items()} if factor != 1 else gradient
    total: dict[str, Tensor] = {}
    for part in mini_batches(batch.size, count):
        share = (part.stop - part.start) / batch.size
        for name, tensor in step_gradient(objective, params, batch, part).items():
            total[name] = share * tensor if name not in total else total[name] + share * tensor
    return total


def _part_of_one(examples: int, defenses: Sequence[ExampleDefense]) -> float:
    """The average that defenses make of so many ones: 1 where they divide by the number."""
    ones = {"one": torch.ones(examples, 1, dtype=torch.float64)}
    return float(defenses[-1].average(ones)["one"]) if defenses else 1.0


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

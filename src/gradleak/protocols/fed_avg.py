"""Local training before a release: the steps, FedAvg, and local Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import (
    Batch,
    Course,
    DiagonalGaussian,
    ExampleDefense,
    Mode,
    Noise,
    Objective,
    Protocol,
    UpdateKind,
    mean_gradient,
)
from gradleak.results import KINGMA_2015, MCMAHAN_2017, BelowOne, Citation, Count, InputError, Positive


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


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalSteps):
    """The way θ₀ − θ_T that local SGD goes in T steps, kind "delta".

    v_t = m v_{t−1} + ∇L(θ_{t−1}; B_t), v_1 = ∇L(θ₀; B_1), θ_t = θ_{t−1} − η v_t: SGD as `torch.optim.SGD` does it. The
    sign is such that a delta points along the gradient; one full-batch step gives η times the gradient. All steps are
    unrolled, so A is the derivative of the whole way with respect to the inputs. It is computed as the difference of
    parameters, as a client does, with its round-off.

    The mini-batches B_t are the examples in the order of the batch, `batch_size` at a time, the last one smaller where
    it does not divide evenly, and the same in every epoch: nothing is shuffled.

    Per-example defenses act in every local step, defenses of the update once, on the delta.

    While the parameters stay near θ₀, the delta is Σ_j w_j ∇L(θ₀; B_j) (`mini_batch_weights`): step s of T enters all
    later velocities too and weighs η(1 − m^{T−s+1})/(1 − m), which is η without momentum, and w_j sums the epochs. For
    mini-batches of one size and m = 0 that is ηT times the gradient of the whole batch; a smaller last mini-batch
    weighs as much as a full one, so that its examples weigh more.

    **Assumptions**: plain SGD with a constant learning rate; neither weight decay, dampening nor Nesterov momentum. In
    train mode BatchNorm normalizes by the mini-batch, and the change of its running statistics is not shared (buffers
    are no parameters); dropout uses the same masks in every step.

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

    Examples:
        >>> FedAvg(learning_rate=0.1, epochs=3, batch_size=4).steps(10)
        9
    """

    citations: ClassVar[tuple[Citation, ...]] = (MCMAHAN_2017,)

    momentum: BelowOne = 0.0

    def course(self, examples: int) -> Course:
        """So many epochs of mini-batches; one step is η times the gradient."""
        one = [(examples, self.learning_rate)] if self.steps(examples) == 1 else None
        return replace(super().course(examples), sums=one)

    def noise(self, law: Callable[[int], Noise], examples: int) -> Noise:
        """One step carries η times the noise of its gradient; with more steps the noise is inside the training."""
        noise = law(examples)
        if isinstance(noise, DiagonalGaussian) and self.steps(examples) == 1:
            return noise.scaled(self.learning_rate)
        return super().noise(law, examples)

    def mini_batch_weights(self, examples: int) -> list[tuple[slice, float]]:
        """The factors w_j of ∇L(θ₀; B_j) in the delta, first order in η; they sum to ηT without momentum.

        Examples:
            >>> [w for _, w in FedAvg(learning_rate=0.5, epochs=2, batch_size=2).mini_batch_weights(3)]
            [1.0, 1.0]
            >>> [w for _, w in FedAvg(learning_rate=1.0, epochs=2, momentum=0.5).mini_batch_weights(3)]
            [2.5]
        """
        places = mini_batches(examples, self.batch_size)
        steps = len(places) * self.epochs
        kept = 1 - self.momentum
        of_step = [self.learning_rate * (1 - self.momentum ** (steps - step)) / kept for step in range(steps)]
        return [(place, sum(of_step[number :: len(places)])) for number, place in enumerate(places)]

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
        for place in self.epochs * mini_batches(batch.size, self.batch_size):
            gradient = step_gradient(objective, current, batch, place, defenses)
            if self.momentum and velocity:
                velocity = {name: self.momentum * velocity[name] + step for name, step in gradient.items()}
            else:
                velocity = gradient
            current = {name: tensor - self.learning_rate * velocity[name] for name, tensor in current.items()}
        return {name: tensor - current[name] for name, tensor in params.items()}


@dataclass(frozen=True, kw_only=True)
class LocalAdam(LocalSteps):
    """The way θ₀ − θ_T that Adam goes in T local steps, kind "delta".

    u_t = β₁ u_{t−1} + (1 − β₁) g_t, v_t = β₂ v_{t−1} + (1 − β₂) g_t² with u_0 = v_0 = 0 and g_t = ∇L(θ_{t−1}; B_t);
    θ_t = θ_{t−1} − η û_t / (√v̂_t + ε), û_t = u_t/(1 − β₁ᵗ), v̂_t = v_t/(1 − β₂ᵗ): as `torch.optim.Adam` does it. The
    state starts empty in every round, and the mini-batches are those of `FedAvg`. All steps are unrolled.

    A delta of this protocol is not a multiple of a gradient, at no step size. One step gives η g/(|g| + ε): the signs of
    the gradient, but for entries not much larger than ε, and its derivative ε/(|g| + ε)² per unit of g almost
    vanishes. In exact arithmetic every entry can be inverted; a float32 client's difference of parameters keeps
    about log₂(η/(|θ|·1.2e-7)) bits of it. Further steps say more: how each entry of the gradient changes.

    **Assumptions**: constant learning rate; neither weight decay (AdamW), AMSGrad nor a state that outlives the round.
    An entry that is exactly zero in every step takes no part, and √v has derivative 0 there, so that all derivatives
    are finite.

    **Cost**: one plain gradient an epoch in mini-batches; a derivative keeps or replays all T steps.

    **Source**: Kingma and Ba 2015, algorithm 1, inside McMahan et al. 2017, algorithm 1 (ClientUpdate). Deviation: a
    fixed order of mini-batches.

    Attributes:
        learning_rate: η, positive.
        epochs: passes over the batch.
        batch_size: examples a step; None for the whole batch.
        beta1: decay of the mean of gradients, in [0, 1).
        beta2: decay of the mean of squared gradients, in [0, 1).
        eps: ε, positive.

    Raises:
        InputError: for a value out of range.
    """

    citations: ClassVar[tuple[Citation, ...]] = (KINGMA_2015, MCMAHAN_2017)

    learning_rate: Positive = 1e-3
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8

    def note(self, examples: int) -> str:
        """Note that one step of Adam is almost a sign."""
        if self.steps(examples) > 1:
            return ""
        return (
            "one step of Adam sends almost nothing but the signs of its gradient, so that the derivative nearly "
            "vanishes; an attack that fails on it is no evidence of safety"
        )

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
        current = dict(params)
        first, second = dict[str, Tensor](), dict[str, Tensor]()
        for step, place in enumerate(self.epochs * mini_batches(batch.size, self.batch_size), start=1):
            gradient = step_gradient(objective, current, batch, place, defenses)
            first = _averaged(first, gradient, self.beta1)
            second = _averaged(second, {name: tensor.square() for name, tensor in gradient.items()}, self.beta2)
            rate = self.learning_rate / (1 - self.beta1**step)
            unbias = (1 - self.beta2**step) ** 0.5
            current = {
                name: tensor - rate * first[name] / (_square_root(second[name]) / unbias + self.eps)
                for name, tensor in current.items()
            }
        return {name: tensor - current[name] for name, tensor in params.items()}


def _averaged(state: Mapping[str, Tensor], values: Mapping[str, Tensor], decay: float) -> dict[str, Tensor]:
    """The running mean after one more value; an empty state stands for zeros."""
    if not state:
        return {name: (1 - decay) * tensor for name, tensor in values.items()}
    return {name: decay * state[name] + (1 - decay) * tensor for name, tensor in values.items()}


def _square_root(values: Tensor) -> Tensor:
    """√v with derivative 0 at 0, where the root itself has none."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).sqrt(), 0.0)

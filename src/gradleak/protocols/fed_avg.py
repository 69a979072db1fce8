"""FedAvg: the client trains for some steps on its batch and shares how far its parameters moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, Course, DiagonalGaussian, ExampleDefense, Noise, Objective
from gradleak.protocols.local_steps import LocalSteps, mini_batches, step_gradient
from gradleak.results import MCMAHAN_2017, BelowOne, Citation


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

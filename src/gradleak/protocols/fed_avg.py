"""Federated averaging, and local Adam: the optimizers of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Course, DiagonalGaussian, Noise
from gradleak.protocols.local_steps import LocalSteps, Step, mini_batches
from gradleak.results import (
    KINGMA_2015,
    LI_2020,
    LOSHCHILOV_2019,
    MCMAHAN_2017,
    BelowOne,
    Citation,
    InputError,
    Positive,
)


@dataclass(frozen=True, kw_only=True)
class FedAvg(LocalSteps):
    """The way θ₀ − θ_T that local SGD goes in T steps, kind "delta".

    g_t = ∇L(θ_{t−1}; B_t) + λ θ_{t−1} + μ (θ_{t−1} − θ₀), v_1 = g_1, v_t = m v_{t−1} + (1 − τ) g_t, and θ_t = θ_{t−1} − η v_t,
    or θ_{t−1} − η (g_t + m v_t) with Nesterov momentum: SGD as `torch.optim.SGD` does it. The sign is such that a delta
    points along the gradient; one full-batch step gives η times the gradient. All steps are unrolled, so A is the
    derivative of the whole way with respect to the inputs. It is computed as the difference of parameters, as a client does,
    with its round-off.

    The mini-batches B_t are the examples in the order of the batch, or of `order`, `batch_size` at a time, the last one
    smaller where it does not divide evenly.

    Per-example defenses act in every local step, defenses of the update once, on the delta.

    While the parameters stay near θ₀, the delta is Σ_j w_j ∇L(θ₀; B_j) (`mini_batch_weights`) plus λ Σ_j w_j θ₀ (`decay`):
    a step enters all later velocities too and weighs η(1 − m^{T−s+1})/(1 − m) under a constant rate, which is η without
    momentum, and w_j sums the epochs. For mini-batches of one size and m = 0 that is ηT times the gradient of the whole
    batch; a smaller last mini-batch weighs as much as a full one, so that its examples weigh more. Under `order` the
    mini-batches of epochs differ, and the weights are those of the mean over all orders: one, of the whole batch.

    A client that shuffles (`shuffled`) draws a new order in every epoch, which the adversary does not know. The released
    mean then is that of steps which each take the mean over all examples, exact to first order in η.

    **Assumptions**: in train mode BatchNorm normalizes by the mini-batch, and the change of its running statistics is not
    shared (buffers are no parameters); dropout uses the same masks in every step.

    **Cost**: one plain gradient an epoch in mini-batches (T gradients of their size); a derivative keeps or replays
    all T steps, so memory grows with T.

    **Source**: McMahan et al. 2017, algorithm 1 (ClientUpdate), with a stated order in place of a random split;
    Li et al. 2020 for the proximal term; momentum is ours.

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
        momentum: m, in [0, 1).
        dampening: τ, in [0, 1).
        nesterov: whether the momentum is Nesterov's; with m > 0 and τ = 0 alone, as torch has it.

    Raises:
        InputError: for a value out of range.

    Examples:
        >>> FedAvg(learning_rate=0.1, epochs=3, batch_size=4).steps(10)
        9
    """

    citations: ClassVar[tuple[Citation, ...]] = (MCMAHAN_2017, LI_2020)

    momentum: BelowOne = 0.0
    dampening: BelowOne = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise InputError(
                f"FedAvg.nesterov: expected a momentum above 0 and no dampening with it, got {self.momentum} and "
                f"{self.dampening}"
            )

    def course(self, examples: int) -> Course:
        """So many epochs of mini-batches; one step is a multiple of the gradient, and of the parameters, which are known."""
        one = [(examples, self._step_weights(examples)[0])] if self.steps(examples) == 1 else None
        return replace(super().course(examples), sums=one)

    def noise(self, law: Callable[[int], Noise], examples: int) -> Noise:
        """One step carries the noise of its gradient, times its weight; with more the noise is inside the training."""
        noise = law(examples)
        if isinstance(noise, DiagonalGaussian) and self.steps(examples) == 1:
            return noise.scaled(self._step_weights(examples)[0])
        return super().noise(law, examples)

    def mini_batch_weights(self, examples: int) -> Sequence[tuple[slice, float]] | None:
        """The factors w_j of ∇L(θ₀; B_j) in the delta, first order in η; they sum to ηT without momentum.

        Examples:
            >>> [w for _, w in FedAvg(learning_rate=0.5, epochs=2, batch_size=2).mini_batch_weights(3)]
            [1.0, 1.0]
            >>> [w for _, w in FedAvg(learning_rate=1.0, epochs=2, momentum=0.5).mini_batch_weights(3)]
            [2.5]
        """
        places, of_step = mini_batches(examples, self.batch_size), self._step_weights(examples)
        if self.order is not None or self.shuffles(examples):
            return [(slice(0, examples), sum(of_step))]
        return [(place, sum(of_step[number :: len(places)])) for number, place in enumerate(places)]

    def decay(self, examples: int) -> float:
        """λ Σ_j w_j, exact for one step."""
        return self.weight_decay * sum(self._step_weights(examples)) if self.weight_decay else 0.0

    def _way(self, steps: Iterable[Step], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The start minus where SGD ends after these steps, by name."""
        current, velocity = dict(start), dict[str, Tensor]()
        for rate, gradient_at in steps:
            gradient = gradient_at(current)
            if self.momentum and velocity:
                kept = 1 - self.dampening
                velocity = {name: self.momentum * velocity[name] + kept * step for name, step in gradient.items()}
            else:
                velocity = gradient
            step = velocity
            if self.nesterov:
                step = {name: tensor + self.momentum * velocity[name] for name, tensor in gradient.items()}
            current = {name: tensor - rate * step[name] for name, tensor in current.items()}
        return {name: tensor - current[name] for name, tensor in start.items()}

    def _step_weights(self, examples: int) -> list[float]:
        """The factor of every step's gradient in the delta (T numbers), as if no gradient changed on the way."""
        rates = self.rates(examples)
        weights, later = [0.0] * len(rates), 0.0
        for step in reversed(range(len(rates))):
            # Σ_{t ≥ s} η_t m^{t−s}: what a unit of velocity at step s moves in all.
            later = rates[step] + self.momentum * later
            # Without momentum there is no velocity to dampen.
            kept = 1.0 if step == 0 or not self.momentum else 1 - self.dampening
            weights[step] = rates[step] + self.momentum * later if self.nesterov else kept * later
        return weights


@dataclass(frozen=True, kw_only=True)
class LocalAdam(LocalSteps):
    """The way θ₀ − θ_T that Adam goes in T local steps, kind "delta".

    u_t = β₁ u_{t−1} + (1 − β₁) g_t, v_t = β₂ v_{t−1} + (1 − β₂) g_t² with u_0 = v_0 = 0 and g_t the gradient at θ_{t−1} with
    weight decay and proximal term; θ_t = θ_{t−1} − η û_t / (√v̂_t + ε), û_t = u_t/(1 − β₁ᵗ), v̂_t = v_t/(1 − β₂ᵗ): as
    `torch.optim.Adam` does it. With `decoupled` the parameters shrink by 1 − ηλ before every step instead (AdamW). The state
    starts empty in every round, and the mini-batches are those of `FedAvg`. All steps are unrolled.

    A delta of this protocol is not a multiple of a gradient, at no step size. One step gives η g/(|g| + ε): the signs of
    the gradient, but for entries not much larger than ε, and its derivative ε/(|g| + ε)² per unit of g almost
    vanishes. In exact arithmetic every entry can be inverted; a float32 client's difference of parameters keeps
    about log₂(η/(|θ|·1.2e-7)) bits of it. Further steps say more: how each entry of the gradient changes.

    **Assumptions**: neither AMSGrad nor a state that outlives the round.
    An entry that is exactly zero in every step takes no part, and √v has derivative 0 there, so that all derivatives
    are finite.

    **Cost**: one plain gradient an epoch in mini-batches; a derivative keeps or replays all T steps.

    **Source**: Kingma and Ba 2015, algorithm 1, inside McMahan et al. 2017, algorithm 1 (ClientUpdate); Loshchilov and
    Hutter 2019 for AdamW. Deviation: a stated order of mini-batches.

    Attributes:
        learning_rate: η, positive.
        epochs: passes over the batch.
        batch_size: examples a step; None for the whole batch.
        weight_decay: λ.
        proximal: μ of FedProx.
        schedule: factors of η, one an epoch; None for a constant learning rate.
        order: the places of the examples in every epoch, as `FedAvg` takes them.
        shuffled: whether the client draws them anew, as `FedAvg` takes it; every entry of Adam's way then is that of steps
            on all examples, which is an approximation at any step size.
        beta1: decay of the mean of gradients, in [0, 1).
        beta2: decay of the mean of squared gradients, in [0, 1).
        eps: ε, positive.
        decoupled: whether weight decay shrinks the parameters (AdamW) in place of entering the gradient.

    Raises:
        InputError: for a value out of range.
    """

    citations: ClassVar[tuple[Citation, ...]] = (KINGMA_2015, MCMAHAN_2017, LOSHCHILOV_2019)

    learning_rate: Positive = 1e-3
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Positive = 1e-8
    decoupled: bool = False

    @property
    def _decay_in_gradient(self) -> float:
        """None of it where it is decoupled."""
        return 0.0 if self.decoupled else self.weight_decay

    def note(self, examples: int) -> str:
        """Note that one step of Adam is almost a sign, or that the order is not known."""
        if self.steps(examples) > 1:
            return super().note(examples)
        return (
            "one step of Adam sends almost nothing but the signs of its gradient, so that the derivative nearly "
            "vanishes; an attack that fails on it is no evidence of safety"
        )

    def _way(self, steps: Iterable[Step], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The start minus where Adam ends after these steps, by name."""
        current = dict(start)
        first, second = dict[str, Tensor](), dict[str, Tensor]()
        for step, (rate, gradient_at) in enumerate(steps, start=1):
            gradient = gradient_at(current)
            first = _averaged(first, gradient, self.beta1)
            second = _averaged(second, {name: tensor.square() for name, tensor in gradient.items()}, self.beta2)
            unbiased, unbias = rate / (1 - self.beta1**step), (1 - self.beta2**step) ** 0.5
            if self.decoupled:
                current = {name: tensor * (1 - rate * self.weight_decay) for name, tensor in current.items()}
            current = {
                name: tensor - unbiased * first[name] / (_square_root(second[name]) / unbias + self.eps)
                for name, tensor in current.items()
            }
        return {name: tensor - current[name] for name, tensor in start.items()}


def _averaged(state: Mapping[str, Tensor], values: Mapping[str, Tensor], decay: float) -> dict[str, Tensor]:
    """The running mean after one more value; an empty state stands for zeros."""
    if not state:
        return {name: (1 - decay) * tensor for name, tensor in values.items()}
    return {name: decay * state[name] + (1 - decay) * tensor for name, tensor in values.items()}


def _square_root(values: Tensor) -> Tensor:
    """√v with derivative 0 at 0, where the root itself has none."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).sqrt(), 0.0)

"""LocalAdam: FedAvg with Adam in place of SGD on the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import Batch, ExampleDefense, Objective
from gradleak.protocols.local_steps import LocalSteps, mini_batches, step_gradient
from gradleak.results import KINGMA_2015, MCMAHAN_2017, BelowOne, Citation, Positive


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

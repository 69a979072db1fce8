"""Mutual information by a trained critic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import scipy.stats
import torch
from torch import Tensor
from torch.nn.functional import elu, one_hot

from gradleak.results import (
    BELGHAZI_2018,
    MCALLESTER_STRATOS_2020,
    MO_2021,
    Citation,
    Count,
    Positive,
    Whole,
)
from gradleak.risk.mutual_information.estimator import Estimate, InformationEstimator, Target, components_of

# Every so many steps the critic is scored on rows that it is not trained on, and training ends after so many in vain.
_CHECK = 20
_PATIENCE = 10
# Standard deviations at which components are cut off: one held-out row far outside would decide the value. A function of
# the gradients again, so it can only lower the information.
_FAR = 5.0
# Pairs that are scored at a time.
_BLOCK = 2**16


@dataclass(frozen=True, kw_only=True)
class MINE(InformationEstimator):
    """Mutual information of a layer's gradients with inputs or labels by a trained critic, Donsker–Varadhan's form.

    mean T(gᵢ, tᵢ) − log mean exp T(gᵢ, tⱼ), for a network T that is trained on one half of the rows (a fifth of which picks
    the step) and evaluated on the other, in turns; the mean of both halves. The second mean is over all m² pairs of the m
    evaluated rows.

    **Assumptions**: independent rows. For a fixed T and unlimited rows this is a lower bound on I. **Biases**: too low by
    what the critic misses; never above log m, the information between m rows and themselves, as any such estimator
    (near it the outcome is saturated), and drawn towards it from below since matched pairs are among the m²; too
    low by training on batches, whose own ceiling is the log of the batch size; with few rows it finds nothing, and
    estimates scatter about 0, negative ones included, or a little below. So 0 within the interval says that this critic
    found nothing in so many rows. G is a function of input, label and parameters: without noise I(G; input) is infinite
    for continuous inputs, and the number says what m rows resolve. The interval (normal, linearized) is for the draw of the
    evaluated rows, given the two critics; it misses the bias.

    Args:
        components: principal components kept, fitted on the training half and cut off at 5 standard deviations.
        hidden: width of the two hidden layers.
        steps: of Adam, at most.
        batch_size: rows a step, all pairs of which are used.
        learning_rate: of Adam.

    Raises:
        InputError: for a number below 1, a learning rate that is not positive, or (when measured) a target that is neither
            labels nor finite inputs.

    **Cost**: 2 · `steps` passes over `batch_size`² pairs, then m² pairs; 3 s a layer for 1,000 rows.

    **Source**: Belghazi et al. 2018, algorithm 1; McAllester and Stratos 2020 for the limit; Mo et al. 2021, section 4.1.
    Deviations: held-out rows (theirs are those of the training, which overstates); all pairs of a batch instead of one
    shuffle, and no moving average for the gradient of the logarithm.
    """

    name: ClassVar[str] = "mine_information"
    citations: ClassVar[tuple[Citation, ...]] = (BELGHAZI_2018, MCALLESTER_STRATOS_2020, MO_2021)
    summary: ClassVar[str] = "mutual information of a layer's gradients with inputs or labels, by a trained critic"

    hidden: Count = 64
    steps: Count = 400
    batch_size: Annotated[int, Whole(2)] = 64
    learning_rate: Positive = 2e-3

    @property
    def _least_rows(self) -> int:
        return 40

    def _estimate(self, rows: Tensor, target: Target, generator: torch.Generator) -> Estimate:
        halves = torch.randperm(len(rows), generator=generator).chunk(2)
        found, kept = [], 0
        for train, held_out in (halves, halves[::-1]):
            gradients = components_of(rows, self.components, fitted_on=train).clamp(-_FAR, _FAR).float()
            if target.entropy is None:
                other = components_of(target.values, self.components, fitted_on=train).clamp(-_FAR, _FAR).float()
            else:
                other = one_hot(target.values).float()
            kept = gradients.shape[1]
            critic = self._trained(gradients[train], other[train], generator)
            found.append(_evaluated(critic, gradients[held_out], other[held_out]))
        value = sum(one for one, _ in found) / 2
        error = math.hypot(*(error for _, error in found)) / 2
        reach = float(scipy.stats.norm.isf(0.025)) * error
        return Estimate(
            value=value,
            interval=(value - reach, value + reach),
            ceiling=math.log(max(len(half) for half in halves)),
            details={
                "components": kept,
                "halves": [one for one, _ in found],
                "held_out": [len(half) for half in halves[::-1]],
                "training_ceiling": math.log(min(self.batch_size, _training_rows(len(halves[0])))),
            },
        )

    def _trained(self, first: Tensor, second: Tensor, generator: torch.Generator) -> Critic:
        """The critic at the step that scores best on the last fifth of the rows."""
        split = _training_rows(len(first))
        critic = Critic.drawn(first.shape[1], second.shape[1], self.hidden, generator)
        optimizer = torch.optim.Adam(critic.weights, lr=self.learning_rate)
        best, best_critic, since = -math.inf, critic, 0
        for step in range(1, self.steps + 1):
            chosen = torch.randperm(split, generator=generator)[: self.batch_size]
            with torch.enable_grad():
                scores = critic.pairs(first[chosen], second[chosen])
                loss = scores.flatten().logsumexp(0) - scores.diagonal().mean()
                gradients = torch.autograd.grad(loss, critic.weights)
            for weight, gradient in zip(critic.weights, gradients, strict=True):
                weight.grad = gradient
            optimizer.step()
            if step % _CHECK == 0 or step == self.steps:
                value, _ = _evaluated(critic, first[split:], second[split:])
                since += 1
                if value > best:
                    best, best_critic, since = value, critic.copy(), 0
                if since == _PATIENCE:
                    break
        return best_critic


@dataclass(frozen=True, kw_only=True, eq=False)
class Critic:
    """T(g, t): a network of two hidden layers on both, in float32.

    Attributes:
        weights: of the gradients, of the target, first bias, second layer and bias, last layer.
    """

    weights: list[Tensor]

    @classmethod
    def drawn(cls, first: int, second: int, hidden: int, generator: torch.Generator) -> Critic:
        """A network that gives 0 for every pair and whose hidden layers are random."""

        def uniform(*shape: int, fan: int) -> Tensor:
            return (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(fan)

        fan = first + second
        weights = [
            uniform(first, hidden, fan=fan),
            uniform(second, hidden, fan=fan),
            uniform(hidden, fan=fan),
            uniform(hidden, hidden, fan=hidden),
            uniform(hidden, fan=hidden),
            torch.zeros(hidden),
        ]
        return cls(weights=[weight.requires_grad_() for weight in weights])

    def copy(self) -> Critic:
        """The same network, which further training leaves as it is."""
        return Critic(weights=[weight.detach().clone() for weight in self.weights])

    def pairs(self, first: Tensor, second: Tensor) -> Tensor:
        """T of every row of one with every row of the other, (a, b)."""
        of_first, of_second, bias, inner, inner_bias, last = self.weights
        hidden = elu((first @ of_first)[:, None] + (second @ of_second)[None] + bias)
        # The bias of the last layer would cancel.
        return elu(hidden @ inner + inner_bias) @ last


@torch.no_grad()
def _evaluated(critic: Critic, first: Tensor, second: Tensor) -> tuple[float, float]:
    """Donsker–Varadhan's value on these rows and its standard error, to first order in the rows."""
    count = len(first)
    scores = torch.cat([critic.pairs(block, second) for block in first.split(max(1, _BLOCK // count))]).double()
    matched = scores.diagonal()
    level = scores.flatten().logsumexp(0) - 2 * math.log(count)
    # exp T over its mean, by row and by column.
    ratio = (scores - level).exp()
    influence = matched - matched.mean() - (ratio.mean(dim=0) + ratio.mean(dim=1) - 2)
    return float(matched.mean() - level), float(influence.std()) / math.sqrt(count)


def _training_rows(count: int) -> int:
    """Number of rows of a half that the weights are fitted to."""
    return count - max(2, count // 5)

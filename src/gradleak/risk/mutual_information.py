"""Mutual information between inputs and gradients of layers: by neighbors (KSG) and by a trained critic (MINE)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn.functional import elu, one_hot

from gradleak.results import (
    BELGHAZI_2018,
    HOLMES_NEMENMAN_2019,
    KRASKOV_2004,
    MCALLESTER_STRATOS_2020,
    MO_2021,
    ROSS_2014,
    Citation,
    Count,
    InputError,
    Outcome,
    Positive,
    Score,
    Whole,
)
from gradleak.risk.layer_measure import GradientMeasure, coordinates
from gradleak.risk.neighbors import GaussianPairs, information_with_inputs, information_with_labels

# So near to the largest number that the sample can give, or so far below what it stands for, a value says how many rows
# there were.
_NEAR_CEILING = 0.5
# A critic misses half a nat and more this near to what the batches of its training can teach it.
_NEAR_TRAINING = 1.0
# Components with less of the largest standard deviation are round-off.
_FLAT = 1e-7


@dataclass(frozen=True, kw_only=True)
class InformationEstimator(GradientMeasure):
    """An estimate of I(G_l; T) in nats for each layer, T the labels (whole numbers) or the inputs (real numbers).

    Gradients and inputs are first put into their `components` leading principal components, each of unit variance:
    neither neighbors nor critics read thousands of entries from some hundred rows. What a function of G tells of T is
    at most what G tells, so this step can only lower I.

    Attributes:
        components: the number of principal components of the gradients, and of real inputs.
    """

    components: Count = 8

    @property
    def _unit(self) -> str:
        return "nat"

    @property
    @abstractmethod
    def _least_rows(self) -> int:
        """The fewest rows that an estimate is made from."""

    @abstractmethod
    def _estimate(self, rows: Tensor, target: Target, generator: torch.Generator) -> Estimate:
        """The estimate from rows (n, p) float64, in which distances are those of the gradients."""

    def _check(self, target: Tensor) -> None:
        if target.is_complex() or (target.is_floating_point() and not bool(torch.isfinite(target).all())):
            raise InputError("target: expected finite real inputs (n, ...) or whole numbers as labels (n,)")
        if not target.is_floating_point() and target.dim() != 1:
            raise InputError(
                f"target: expected one label a row, (n,), got whole numbers of shape {tuple(target.shape)}; give inputs "
                "as real numbers"
            )

    @final
    def _measure(self, matrix: Tensor, target: Tensor, generator: torch.Generator) -> Score:
        prepared = Target.of(target)
        facts: dict[str, Any] = {
            "rows": matrix.shape[0],
            "entries": matrix.shape[1],
            "target": "labels" if prepared.entropy is not None else "inputs",
        }
        if prepared.entropy is not None:
            facts["target_entropy"] = prepared.entropy
        if not bool((target != target[:1]).any()):
            return self._without_value(Outcome.NOT_RESOLVABLE, "every row has the same target", **facts)
        if not bool((matrix != matrix[:1]).any()):
            return self._without_value(Outcome.NO_SIGNAL, "every row has the same gradients in this layer", **facts)
        if matrix.shape[0] < self._least_rows:
            return self._without_value(
                Outcome.NOT_RESOLVABLE,
                f"an estimate needs at least {self._least_rows} rows, got {matrix.shape[0]}",
                **facts,
            )
        found = self._estimate(coordinates(matrix), prepared, generator)
        if not math.isfinite(found.value):
            return self._without_value(Outcome.NOT_FINITE, "the estimate is not finite", **facts)
        near = found.ceiling is not None and found.value > found.ceiling - _NEAR_CEILING
        low = found.calibrated is not None and found.calibrated - found.value > _NEAR_CEILING
        taught = found.training_ceiling is not None and found.value > found.training_ceiling - _NEAR_TRAINING
        # Near the ceiling the spread goes to 0 while the truth may be infinite.
        interval = None if near or low or taught else found.interval
        if near:
            note = f"{matrix.shape[0]} rows cannot tell more than {found.ceiling:.3g} nats"
        elif taught:
            note = f"a lower estimate: batches of the training teach a critic at most {found.training_ceiling:.3g} nats"
        elif low and found.calibrated == math.inf:
            note = f"a lower estimate: no Gaussian pairs of {matrix.shape[0]} rows, however dependent, give as much"
        elif low:
            truth = f"{found.calibrated:.3g} nats"
            note = f"a lower estimate: Gaussian pairs of {matrix.shape[0]} rows give as much where the truth is {truth}"
        elif interval is None:
            note = "too few rows for an interval"
        elif found.calibrated is not None:
            note = (
                "a lower estimate; the upper end allows for the bias that Gaussian pairs have, other laws may have more"
            )
        else:
            note = "the interval is for the draw of the rows, not for the bias of the estimator"
        known = {
            "ceiling": found.ceiling,
            "calibrated": found.calibrated,
            "training_ceiling": found.training_ceiling,
        }
        return self._score(
            found.value,
            n=matrix.shape[0],
            interval=interval,
            outcome=Outcome.SATURATED if near or low or taught else Outcome.CONVERGED,
            note=note,
            details=facts | {name: one for name, one in known.items() if one is not None} | dict(found.details),
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Result of an estimator.

    Attributes:
        value: in nats.
        interval: of 95 %, or None.
        ceiling: no sample of this size gives more, or None where nothing but the labels' entropy bounds it.
        calibrated: the truth at which pairs of a known law give this value, infinite where none does; None where unknown.
        details: further numbers for the score.
        training_ceiling: the log of the rows of a training batch, or None where nothing is trained.
    """

    value: float
    interval: tuple[float, float] | None
    ceiling: float | None
    details: Mapping[str, Any]
    calibrated: float | None = None
    training_ceiling: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """Labels or inputs, one a row.

    Attributes:
        values: labels (n,) from 0 to classes − 1, or inputs (n, p) float64 in which distances are those of the inputs.
        entropy: of the labels in nats, as often as they occur; None for inputs.
    """

    values: Tensor
    entropy: float | None

    @classmethod
    def of(cls, target: Tensor) -> Target:
        """The target as an estimator reads it."""
        if target.is_floating_point():
            return cls(values=coordinates(target.reshape(len(target), -1)), entropy=None)
        _, labels, counts = target.cpu().unique(return_inverse=True, return_counts=True)
        shares = counts.double() / counts.sum()
        return cls(values=labels, entropy=float(-(shares * shares.log()).sum()))


def components_of(rows: Tensor, count: int, *, fitted_on: Tensor | None = None) -> Tensor:
    """The leading principal components of rows (n, p), of unit variance on the rows that they are fitted on.

    Args:
        rows: float64.
        count: at most so many; fewer where the rows span less.
        fitted_on: row numbers; None for all.
    """
    known = rows if fitted_on is None else rows[fitted_on]
    center = known.mean(dim=0)
    directions: Tensor
    _, values, directions = torch.linalg.svd(known - center, full_matrices=False)
    kept = min(count, max(1, int((values > _FLAT * values[0]).sum())))
    spread = values[:kept] / (len(known) - 1) ** 0.5
    # Rows that are all alike on one half keep their scale.
    spread = torch.where(spread > 0, spread, 1.0)
    return (rows - center) @ directions[:kept].T / spread


_PARTS = 10
# Rows of a part that its estimate makes sense for.
_PART_ROWS = 20
# Breaks ties between equal rows; the components have unit variance.
_JITTER = 1e-10


@dataclass(frozen=True, kw_only=True)
class NeighborInformation(InformationEstimator):
    """Mutual information of a layer's gradients with inputs or labels, from distances to the k-th nearest neighbor.

    For inputs ψ(n) + ψ(k) − mean[ψ(n_G) + ψ(n_T)], with n_G and n_T the rows within the distance of the k-th joint
    neighbor (maximum norm), itself included. For labels ψ(n) + mean[ψ(kᵢ) − ψ(N_y) − ψ(mᵢ)] with N_y rows of the label
    and mᵢ rows nearer than the k-th of the same label.

    **Assumptions**: independent rows and a density that hardly changes among k neighbors. **Biases**: about 0 where
    nothing depends, so estimates may be a little negative and are not clipped; too low for strong dependence and for
    many components (with inputs, already at four and some hundred rows); never above ψ(n) − ψ(k) for inputs, near
    which the outcome is saturated. For inputs the bias is calibrated: `details["calibrated"]` is the information at which
    Gaussian pairs of as many rows and components, which depend in the same shares (of the canonical correlations of the
    data), give the same value. Where that is more than 0.5 nats above, the outcome is saturated, and the value a *lower
    estimate* without an interval. Other laws can be biased further. G is a function of input, label and parameters:
    without noise I(G; input) is infinite for continuous inputs, and any finite number says what n rows resolve. The
    interval (from 200 rows on; the variance of estimates on 10 parts, Student) is for the draw of the rows; its upper
    end is calibrated likewise. That of labels misses the bias.

    Args:
        neighbors: k; small for little bias, large for little variance.
        components: principal components kept.

    Raises:
        InputError: for numbers below 1, or (when measured) a target that is neither labels nor finite inputs.

    **Cost**: k-d trees, n log n for few components; for inputs some 4 to 20 such estimates for the calibration.

    **Source**: Kraskov et al. 2004, algorithm 1; Ross 2014 for labels; the variance as Holmes and Nemenman 2019 (from one
    size of parts); the calibration is ours. Mo et al. 2021, section 4.1, use MINE; this stands beside it.

    Examples:
        >>> draw = torch.Generator().manual_seed(0)
        >>> label = torch.arange(200) % 2
        >>> rows = label[:, None] + 0.01 * torch.randn(200, 1, generator=draw)
        >>> score = NeighborInformation()({"head": rows}, label)["head"]
        >>> round(score.value, 2), round(score.details["target_entropy"], 2)
        (0.7, 0.69)
    """

    name: ClassVar[str] = "neighbor_information"
    citations: ClassVar[tuple[Citation, ...]] = (KRASKOV_2004, ROSS_2014, HOLMES_NEMENMAN_2019, MO_2021)
    summary: ClassVar[str] = "mutual information of a layer's gradients with inputs or labels, by nearest neighbors"

    components: Count = 3
    neighbors: Count = 3

    @property
    def _least_rows(self) -> int:
        return 4 * (self.neighbors + 1)

    def _estimate(self, rows: torch.Tensor, target: Target, generator: torch.Generator) -> Estimate:
        gradients = _jittered(components_of(rows, self.components), generator)
        estimate: Callable[[np.ndarray, np.ndarray, int], float]
        if target.entropy is None:
            other = _jittered(components_of(target.values, self.components), generator)
            psi = scipy.special.digamma
            estimate, ceiling = information_with_inputs, float(psi(len(rows)) - psi(self.neighbors))
        else:
            other, estimate, ceiling = target.values.numpy(), information_with_labels, None
        value = estimate(gradients, other, self.neighbors)
        interval = None
        if len(rows) >= _PARTS * max(_PART_ROWS, self._least_rows):
            parts = np.array_split(torch.randperm(len(rows), generator=generator).numpy(), _PARTS)
            spread = np.std([estimate(gradients[part], other[part], self.neighbors) for part in parts], ddof=1)
            reach = float(scipy.stats.t.isf(0.025, _PARTS - 1) * spread / math.sqrt(_PARTS))
            interval = (value - reach, value + reach)
        calibrated = None
        if ceiling is not None:
            pairs = GaussianPairs.like(gradients, other, self.neighbors)
            calibrated = pairs.truth_of(value, 2.0 * ceiling)
            if interval is not None:
                interval = (interval[0], pairs.truth_of(interval[1], 2.0 * ceiling))
        details = {"neighbors": self.neighbors, "components": gradients.shape[1]}
        return Estimate(value=value, interval=interval, ceiling=ceiling, details=details, calibrated=calibrated)


def _jittered(rows: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    noise = torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
    return np.ascontiguousarray((rows + _JITTER * noise).numpy())


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
    low by training on batches, whose own ceiling is the log of the batch size: less than 1 nat below that the outcome is
    saturated too, the value a *lower estimate* without an interval (of three Gaussian components with 4 nats it finds
    3.4 from 400 rows and 3.6 from 1,000, of 2 nats 1.75 to 1.94); with few rows it finds nothing, and
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
            },
            training_ceiling=math.log(min(self.batch_size, _training_rows(len(halves[0])))),
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

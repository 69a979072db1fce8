"""Optimizers of a search, schedules of their learning rate, and the stages that use them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from gradleak.attacks.inversion.evaluation import PLAIN_GRADIENTS_PER_EVALUATION
from gradleak.attacks.inversion.populations import HandOn, PopulationOptimizer
from gradleak.attacks.inversion.variables import Part
from gradleak.results import (
    BelowOne,
    Count,
    InputError,
    NonNegative,
    Positive,
    Probability,
    Settings,
    Share,
    Whole,
)


class Schedule(Settings, ABC):
    """A factor of the learning rate, by how much of the run is done."""

    @abstractmethod
    def __call__(self, evaluation: int, evaluations: int) -> float:
        """The factor of the step after evaluation number `evaluation` (from 0) of `evaluations`."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """1, always."""

    def __call__(self, evaluation: int, evaluations: int) -> float:
        """One."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """factor^k once k of the milestones are reached.

    **Source**: Geiping et al. 2020, published code: 0.1 at 3/8, 5/8 and 7/8 of the run, the default.

    Attributes:
        milestones: fractions of the run, ascending, in (0, 1).
        factor: positive.

    Raises:
        InputError: for milestones out of (0, 1) or order, or a factor that is not positive.

    Examples:
        >>> [StepDecay()(done, 8) for done in (0, 3, 7)]
        [1.0, 0.1, 0.0010000000000000002]
    """

    milestones: Sequence[Share] = (3 / 8, 5 / 8, 7 / 8)
    factor: Positive = 0.1

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if list(self.milestones) != sorted(self.milestones):
            raise InputError(
                f"StepDecay.milestones: expected ascending fractions between 0 and 1, got {self.milestones}"
            )

    def __call__(self, evaluation: int, evaluations: int) -> float:
        """The factor to the power of the milestones passed."""
        return float(self.factor ** sum(evaluation >= int(fraction * evaluations) for fraction in self.milestones))


@dataclass(frozen=True, kw_only=True)
class CosineDecay(Schedule):
    """A linear warm-up, then half a cosine down to `floor`.

    With t the share of the run done and w the warm-up: t/w for t < w, else
    floor + (1 − floor) (1 + cos(π (t − w)/(1 − w)))/2. The first step is never 0.

    **Source**: Yin et al. 2021 (GradInversion), section 4.1: 50 of 20,000 iterations of warm-up, cosine decay.

    Attributes:
        warm_up: fraction of the run, in [0, 1).
        floor: the factor at the end, in [0, 1].

    Raises:
        InputError: for numbers out of range.

    Examples:
        >>> [round(CosineDecay()(done, 4), 3) for done in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    warm_up: BelowOne = 0.0
    floor: Probability = 0.0

    def __call__(self, evaluation: int, evaluations: int) -> float:
        """The factor."""
        warm = self.warm_up * evaluations
        if evaluation < warm:
            return (evaluation + 1) / (warm + 1)
        done = min(1.0, (evaluation - warm) / max(evaluations - warm, 1))
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, kw_only=True)
class LinearDecay(Schedule):
    """A linear warm-up, then a straight line down to 0 at the end of the run.

    **Source**: the schedule of `transformers` that TAG was published with (Deng et al. 2021).

    Attributes:
        warm_up: fraction of the run, in [0, 1).

    Raises:
        InputError: for a fraction out of range.

    Examples:
        >>> [round(LinearDecay(warm_up=0.5)(done, 4), 3) for done in range(5)]
        [0.333, 0.667, 1.0, 0.5, 0.0]
    """

    warm_up: BelowOne = 0.0

    def __call__(self, evaluation: int, evaluations: int) -> float:
        """The factor."""
        warm = self.warm_up * evaluations
        if evaluation < warm:
            return (evaluation + 1) / (warm + 1)
        return 1 - min(1.0, (evaluation - warm) / max(evaluations - warm, 1))


Draw = Callable[[], Tensor]
"""Fresh N(0, 1) numbers for all rows (s, n), each target's from its own generator."""


class Steps(ABC):
    """The state of one run over rows z (s, n)."""

    @abstractmethod
    def direction(self, gradient: Tensor, evaluation: int) -> Tensor:
        """The change of z (s, n) that the optimizer makes after evaluation number `evaluation`."""

    def decay(self, evaluation: int) -> float:
        """The share of z that the step after evaluation number `evaluation` takes off besides; 0 for none."""
        return 0.0

    @abstractmethod
    def moved(self, change: Tensor) -> None:
        """Told by how much z (s, n) really moved, after box and step shrinking."""

    @abstractmethod
    def reset(self, rows: Tensor) -> None:
        """Forget the past of the rows marked in a boolean mask (s,)."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All that the next direction depends on, for a checkpoint."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state of the same optimizer on rows of the same shape."""


class Optimizer(Settings, ABC):
    """Rule by which a search steps."""

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """Gradients of the objective in one iteration."""

    @abstractmethod
    def begin(self, start: Tensor, evaluations: int, draw: Draw | None = None) -> Steps:
        """Fresh state for rows like `start` (s, n) and a run of so many evaluations.

        Args:
            start: where the run begins.
            evaluations: its length.
            draw: noise, for optimizers that need it.
        """


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam, on the gradient or on its sign, with a schedule and, if asked for, Langevin noise.

    z ← z − η_t · m̂ / (√v̂ + 1e-8), as torch.optim.Adam; with `signed` the gradient is replaced by its sign first.
    η_t is the learning rate times the schedule. With `noise` a, a · η_t · N(0, 1) is added to each step; with
    `weight_decay` w, η_t · w · z is taken off besides, as AdamW does.

    **Source**: Kingma and Ba 2015; signed gradients: Geiping et al. 2020 (published code), Fang et al. 2024, appendix;
    noise: Yin et al. 2021, equation 12; decay: Loshchilov and Hutter 2019.

    Attributes:
        learning_rate: η, positive, in units of z.
        signed: whether the sign of the gradient is taken.
        schedule: of the learning rate.
        betas: decay rates of the two moments.
        noise: a, at least 0.
        weight_decay: w, at least 0.
        clip: gradients longer than this (L2, each start) are shortened to it first; None for none.

    Raises:
        InputError: for a learning rate or a clip that is not positive, or negative noise or decay.
    """

    learning_rate: Positive = 0.1
    signed: bool = False
    schedule: Schedule = field(default_factory=Constant)
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    noise: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    clip: Positive | None = None

    @property
    def evaluations(self) -> int:
        """One."""
        return 1

    def begin(self, start: Tensor, evaluations: int, draw: Draw | None = None) -> Steps:
        """Zero moments.

        Raises:
            InputError: if the optimizer adds noise and there is no source of it.
        """
        if self.noise > 0 and draw is None:
            raise InputError("Adam.begin: expected a source of noise, since noise > 0, got None")
        return _AdamSteps(
            self,
            evaluations,
            torch.zeros_like(start),
            torch.zeros_like(start),
            start.new_zeros(len(start)),
            draw if self.noise > 0 else None,
        )


@dataclass
class _AdamSteps(Steps):
    config: Adam
    evaluations: int
    first: Tensor
    second: Tensor
    count: Tensor
    draw: Draw | None

    def direction(self, gradient: Tensor, evaluation: int) -> Tensor:
        low, high = self.config.betas
        if self.config.clip is not None:
            gradient = gradient * (self.config.clip / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1)
        gradient = gradient.sign() if self.config.signed else gradient
        self.count = self.count + 1
        self.first = low * self.first + (1 - low) * gradient
        self.second = high * self.second + (1 - high) * gradient.square()
        mean = self.first / (1 - low**self.count)[:, None]
        spread = (self.second / (1 - high**self.count)[:, None]).sqrt()
        rate = self._rate(evaluation)
        step = -rate * mean / (spread + 1e-8)
        return step if self.draw is None else step + rate * self.config.noise * self.draw()

    def decay(self, evaluation: int) -> float:
        return self._rate(evaluation) * self.config.weight_decay if self.config.weight_decay else 0.0

    def _rate(self, evaluation: int) -> float:
        return self.config.learning_rate * self.config.schedule(evaluation, self.evaluations)

    def moved(self, change: Tensor) -> None:
        """Nothing to remember."""

    def reset(self, rows: Tensor) -> None:
        self.first = self.first.masked_fill(rows[:, None], 0.0)
        self.second = self.second.masked_fill(rows[:, None], 0.0)
        self.count = self.count.masked_fill(rows, 0.0)

    def state(self) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second, "count": self.count}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.first, self.second, self.count = state["first"], state["second"], state["count"]


@dataclass(frozen=True, kw_only=True)
class LBFGS(Optimizer):
    """Limited-memory BFGS without a line search, row by row as torch.optim.LBFGS.

    The two-loop recursion over the last `history` pairs (those with yᵀs > 1e-10, relative to nothing, as in torch),
    scaled by sᵀy/yᵀy; the first step of a row is η · min(1, 1/‖∇‖₁). An iteration is `inner_steps` steps, which
    is torch's `max_iter`. A row whose direction is not one of descent stays where it is.

    It visits the same points as torch.optim.LBFGS with both tolerances 0. The tolerances are left out since they
    depend on the scale of the loss; a search ends by the engine's own criteria.

    **Source**: Nocedal and Wright, Numerical Optimization, algorithm 7.4; defaults: Zhu et al. 2019.

    Attributes:
        learning_rate: η, positive.
        history: pairs kept.
        inner_steps: steps in an iteration.
    """

    learning_rate: Positive = 1.0
    history: Count = 100
    inner_steps: Count = 20

    @property
    def evaluations(self) -> int:
        """The inner steps."""
        return self.inner_steps

    def begin(self, start: Tensor, evaluations: int, draw: Draw | None = None) -> Steps:
        """An empty memory."""
        return _LBFGSSteps(self, start.new_ones(len(start), dtype=torch.bool))


_PAIR = ("change", "slope", "inverse")


@dataclass
class _LBFGSSteps(Steps):
    """Pairs are kept for all rows; a row that does not take part in one has weight 0 in it."""

    config: LBFGS
    fresh: Tensor
    gradient: Tensor | None = None
    change: Tensor | None = None
    scale: Tensor | None = None
    pairs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def direction(self, gradient: Tensor, evaluation: int) -> Tensor:
        if self.scale is None:
            self.scale = gradient.new_ones(len(gradient))
        self._remember(gradient)
        self.gradient = gradient
        step = self._two_loops(gradient)
        first = (1 / gradient.abs().sum(dim=1)).clamp(max=1.0)
        length = self.config.learning_rate * torch.where(self.fresh, first, 1.0)
        self.fresh = torch.zeros_like(self.fresh)
        descends = (step * gradient).sum(dim=1) < 0
        return torch.where(descends, length, 0.0)[:, None] * step.masked_fill(~descends[:, None], 0.0)

    def moved(self, change: Tensor) -> None:
        self.change = change

    def reset(self, rows: Tensor) -> None:
        self.fresh = self.fresh | rows
        if self.scale is not None:
            self.scale = torch.where(rows, 1.0, self.scale)
        self.pairs = [(s, y, weight.masked_fill(rows, 0.0)) for s, y, weight in self.pairs]
        if self.change is not None:
            self.change = self.change.masked_fill(rows[:, None], 0.0)

    def state(self) -> dict[str, Tensor]:
        named = {"gradient": self.gradient, "change": self.change, "scale": self.scale}
        state = {name: tensor for name, tensor in named.items() if tensor is not None}
        for number, pair in enumerate(self.pairs):
            state |= {f"pair.{number}.{part}": tensor for part, tensor in zip(_PAIR, pair, strict=True)}
        return {**state, "fresh": self.fresh, "pairs": torch.tensor(len(self.pairs))}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.fresh = state["fresh"]
        self.gradient, self.change, self.scale = (state.get(name) for name in ("gradient", "change", "scale"))
        self.pairs = [
            (state[f"pair.{number}.change"], state[f"pair.{number}.slope"], state[f"pair.{number}.inverse"])
            for number in range(int(state["pairs"]))
        ]

    def _remember(self, gradient: Tensor) -> None:
        if self.gradient is None or self.change is None or self.scale is None:
            return
        change, slope = self.change, gradient - self.gradient
        curvature = (change * slope).sum(dim=1)
        kept = (curvature > 1e-10) & ~self.fresh
        if not bool(kept.any()):
            return
        self.pairs = self.pairs[-(self.config.history - 1) :] if self.config.history > 1 else []
        inverse = torch.where(kept, 1 / torch.where(kept, curvature, 1.0), 0.0)
        clean = ~kept[:, None]
        self.pairs.append((change.masked_fill(clean, 0.0), slope.masked_fill(clean, 0.0), inverse))
        steep = slope.square().sum(dim=1)
        self.scale = torch.where(kept, curvature / torch.where(kept, steep, 1.0), self.scale)

    def _two_loops(self, gradient: Tensor) -> Tensor:
        assert self.scale is not None
        step = -gradient
        weights = []
        for change, slope, inverse in reversed(self.pairs):
            weight = inverse * (change * step).sum(dim=1)
            step = step - weight[:, None] * slope
            weights.append(weight)
        step = step * self.scale[:, None]
        for (change, slope, inverse), weight in zip(self.pairs, reversed(weights), strict=True):
            back = inverse * (slope * step).sum(dim=1)
            step = step + (weight - back)[:, None] * change
        return step


Iterations = Annotated[int, Whole(1, 10**8)]
"""No more than any search can be meant to take."""


@dataclass(frozen=True, kw_only=True)
class SearchStage(Settings):
    """One stretch of a search with one optimizer.

    Attributes:
        optimizer: how it steps, down the gradient or by populations of latents (`CMAES`).
        iterations: iterations of that optimizer, each of `optimizer.evaluations` gradients or of one population.
        restart_after: a start whose matching loss has not improved for so many evaluations goes back to its best
            iterate, with half the step and a fresh optimizer state; None for never. L-BFGS without a line search
            needs it where a step too long has led it away. Not for populations, which take no steps.
        part: what it moves of the unknowns behind a generator; the rest is held. Populations move latents.
    """

    optimizer: Optimizer | PopulationOptimizer
    iterations: Iterations
    restart_after: Count | None = None
    part: Part = Part.ALL

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if isinstance(self.optimizer, PopulationOptimizer):
            if self.part is Part.ALL:
                object.__setattr__(self, "part", Part.LATENTS)
            if self.part is Part.WEIGHTS or self.restart_after is not None:
                raise InputError(
                    "SearchStage: expected part='latents' and no restart_after for populations, got "
                    f"part={self.part.value!r} and restart_after={self.restart_after}"
                )

    @property
    def evaluations(self) -> int:
        """Gradients of the objective a start takes in this stage, without the last value; none for populations."""
        return self.iterations * self.optimizer.evaluations if isinstance(self.optimizer, Optimizer) else 0

    @property
    def planned(self) -> int:
        """Entries of the history if the stage does not end early."""
        if isinstance(self.optimizer, Optimizer):
            return self.evaluations + 1
        return self.iterations + (self.optimizer.hand_on is HandOn.SAMPLE)

    @property
    def passes(self) -> float:
        """The cost of a start in releases: 3 for a gradient of the matching loss, 1 for a value of a candidate."""
        if isinstance(self.optimizer, Optimizer):
            return PLAIN_GRADIENTS_PER_EVALUATION * self.planned
        return self.iterations * self.optimizer.population + float(self.optimizer.hand_on is HandOn.SAMPLE)

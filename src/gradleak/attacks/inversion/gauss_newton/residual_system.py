"""The loss linearized at an iterate: weighted residuals, their Jacobian, and the model of one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inversion.problem import Problem
from gradleak.attacks.inversion.reading import draws_of
from gradleak.attacks.inversion.sentences import as_numbers
from gradleak.core import Batch, Knowledge
from gradleak.core.objective import Tensors
from gradleak.operators import Linearization
from gradleak.operators.kernels import differentiable_kernels
from gradleak.operators.linearization import COPIES_A_COLUMN
from gradleak.operators.mixed_derivative import MixedDerivative

PLAIN_GRADIENTS_PER_PRODUCT = 2.0
"""A product with the derivative of the release, or with its adjoint: as much arithmetic as two releases."""

MOST_ROUND_OFF = 1e-2
"""Largest relative residual that is ever put down to round-off: beyond it nothing was explained."""

ROUND_OFF_MARGIN = 4.0
"""By how much one measurement of round-off may fall short of the client's own."""


class OutOfBudgetError(Exception):
    """Limit of plain gradients would be passed by what was about to be computed; nothing of it was."""


@dataclass(kw_only=True)
class Cost:
    """Cost of an attack so far, and its limit.

    Attributes:
        releases: evaluations of the released mean.
        products: vectors multiplied by its derivative or the adjoint.
        warm: plain gradients of first-order stages.
        release_cost: plain gradients of one release.
        limit: plain gradients at most, or None.
        reserve: of these, what is not to be spent yet.
    """

    releases: int = 0
    products: int = 0
    warm: float = 0.0
    release_cost: float = 1.0
    limit: float | None = None
    reserve: float = 0.0

    @property
    def plain_gradients(self) -> float:
        """All of it in plain gradients."""
        return self.warm + self.price(self.releases, self.products)

    @property
    def left(self) -> float:
        """Plain gradients that may still be spent."""
        return math.inf if self.limit is None else self.limit - self.reserve - self.plain_gradients

    def price(self, releases: int, products: int) -> float:
        """Plain gradients of so many releases and products."""
        return self.release_cost * (releases + PLAIN_GRADIENTS_PER_PRODUCT * products)

    def check(self, *, releases: int = 0, products: int = 0) -> None:
        """Refuse what would pass the limit.

        Raises:
            OutOfBudgetError: if so many more do not fit.
        """
        if self.price(releases, products) > self.left:
            raise OutOfBudgetError

    def spend(self, *, releases: int = 0, products: int = 0) -> None:
        """Count what is about to be computed.

        Raises:
            OutOfBudgetError: if it does not fit; then nothing is counted.
        """
        self.check(releases=releases, products=products)
        self.releases += releases
        self.products += products


class ResidualSystem:
    """r(z) = W (g(z) − g*) for unknowns z (n,), W the inverse std of known noise by entry, or 1.

    The floor is the norm that r has where the guess explains the update: what round-off leaves, or, for known noise,
    the root of (P − n)(1 + 4√(2/(P − n))).

    Args:
        problem: in float64.
        max_bytes: memory for a block of derivatives.
        cost: where evaluations are counted.

    Attributes:
        keeps_form: whether the unknowns mean the same at each step, so that an older Jacobian can be used again.
    """

    keeps_form: ClassVar[bool] = True

    def __init__(self, problem: Problem, max_bytes: int, cost: Cost) -> None:
        self.problem = problem
        self.max_bytes = max_bytes
        self.cost = cost
        self.low, self.high = problem.variables.bounds(problem.space)
        std = problem.noise_std
        # Entries with less noise weigh more, those without any most.
        self.noisy = std is not None
        self.weights: Tensor | None = None if std is None else 1 / std
        self.target = problem.target if self.weights is None else problem.target * self.weights
        self.scale = float(self.target.norm())
        self._batched = True
        # Entries that are only bounded have no residual of their own where the guess is right, nor have quiet ones, which
        # take the unknowns upon them.
        quiet = problem.noisy_entries < self.entries
        free = max(1, problem.noisy_entries - (0 if quiet else self.unknowns))
        statistical = math.sqrt(free * (1 + 4 * math.sqrt(2 / free))) if self.noisy else 0.0
        self.floor = self._least_floor = max(problem.round_off * self.scale, statistical)
        self.tight = not self.noisy and problem.round_off < 1e-12

    @property
    def unknowns(self) -> int:
        """The number of unknowns, n."""
        return int(self.low.numel())

    @property
    def entries(self) -> int:
        """The number of shared entries, P."""
        return self.problem.target.numel()

    @property
    def inputs(self) -> int:
        """Number of unknowns that are input entries; they come first."""
        return self.problem.variables.size(self.problem.space)

    @property
    def live_rows(self) -> Tensor:
        """Mask of the entries of the update that are not zero (P,); those of dead units and pruned ones tell little."""
        return self.target != 0

    @property
    def entry_std(self) -> float:
        """The error of an entry of r that has to be reckoned with: that of the noise (1), or round-off."""
        return 1.0 if self.noisy else self.floor / math.sqrt(self.entries)

    @property
    def spans(self) -> Tensor:
        """The width of the valid range of each input entry, in model-input units, whether or not it is a box."""
        space = self.problem.space
        low, high = (bound.reshape(-1) for bound in space.domain.bounds(self.low.new_zeros(())))
        return (high - low).expand(space.domain.size).repeat(space.batch_size)

    def refresh(self, flat: Tensor) -> Tensor:
        """The unknowns in the form that the next step works in; the same unless the form changes on the way."""
        return flat

    def explained(self, squared: float) -> bool:
        """True if a squared residual is at the floor."""
        return squared <= self.floor**2

    def guess(self, flat: Tensor) -> Batch:
        """Inputs and targets of z (n,)."""
        return Batch(*self.problem.variables.decode(self.problem.space, flat, self.problem.labels))

    def mean(self, flat: Tensor) -> Tensor:
        """The weighted release at z (n,), as it is read; pure."""
        return self.weighed(self.problem.mean(flat, self.problem.labels))

    def weighed(self, released: Tensor) -> Tensor:
        """Part of a release (P,) that is held against the weighted update; pure."""
        read = self.problem.read(released)
        return read if self.weights is None else read * self.weights

    def loss(self, params: Tensors, flat: Tensor) -> Tensor:
        """The training loss of the guess, whose gradient by the parameters is released."""
        return self.problem.objective.loss(params, self.guess(flat))

    def residual(self, flat: Tensor) -> Tensor:
        """The residual (P,) at z (n,)."""
        return self.residuals(flat[None])[0]

    def residuals(self, points: Tensor) -> Tensor:
        """Residuals (s, P) at each row of (s, n), side by side where the model allows it."""
        self.cost.spend(releases=len(points))
        with torch.no_grad(), differentiable_kernels():
            if len(points) > 1 and self._batched:
                try:
                    together: Tensor = torch.func.vmap(self.mean, randomness="same")(points)
                    return together - self.target
                except torch.OutOfMemoryError:
                    raise
                except (RuntimeError, NotImplementedError, ValueError):
                    self._batched = False
            return torch.stack([self.mean(row) for row in points]) - self.target

    def linearize(self, flat: Tensor) -> Linearization:
        """The derivative of r at z (n,), as products."""
        # The value, and the graph of the loss.
        self.cost.spend(releases=2)
        return Linearization(self.mean, flat, max_bytes=self.max_bytes, mixed=self._mixed(flat))

    def jacobians(self, points: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The residual (P,) and the transposed derivative (n, P) at each row of (s, n), side by side where that works."""
        rows, size = points.shape
        if rows > 1 and self._batched and self.side_by_side(size) >= rows:
            self.cost.check(releases=rows, products=rows * size)
            found = self._together(points)
            if found is not None:
                self.cost.spend(releases=rows, products=rows * size)
                return [(value - self.target, columns) for value, columns in zip(*found, strict=True)]
        return [self._alone(point) for point in points]

    def side_by_side(self, size: int) -> int:
        """Number of starts of n = `size` unknowns that fit the memory together."""
        return max(1, self.max_bytes // (COPIES_A_COLUMN * 8 * size * (self.entries + size)))

    def _alone(self, point: Tensor) -> tuple[Tensor, Tensor]:
        at = self.linearize(point)
        if not bool(torch.isfinite(at.value).all()):
            return at.value - self.target, at.value.new_full((point.numel(), self.entries), torch.nan)
        self.cost.spend(products=point.numel())
        identity = torch.eye(point.numel(), dtype=point.dtype, device=point.device)
        return at.value - self.target, at.push(identity)

    def _together(self, points: Tensor) -> tuple[Tensor, Tensor] | None:
        def column(point: Tensor, tangent: Tensor) -> Tensor:
            derivative: Tensor = torch.func.jvp(self.mean, (point,), (tangent,))[1]
            return derivative

        columns = torch.func.vmap(column, in_dims=(None, 0), randomness="same")
        starts = torch.func.vmap(columns, in_dims=(0, None), randomness="same")
        identity = torch.eye(points.shape[1], dtype=points.dtype, device=points.device)
        try:
            with differentiable_kernels():
                derivative = starts(points, identity)
                value = torch.func.vmap(self.mean, randomness="same")(points)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, ValueError):
            self._batched = False
            return None
        return value.detach(), derivative.detach()

    def _mixed(self, flat: Tensor) -> MixedDerivative | None:
        problem = self.problem
        after = problem.after_gradient
        if after is None or problem.objective.stops_gradients(self.guess(flat)):
            return None
        weights = None if self.weights is None else problem.objective.unflatten(self.weights)
        names = problem.reading.names
        seen = problem.reading.rows(problem.target)
        bounds = problem.reading.bounds(seen) if problem.reading.bounded else None

        def weighed(gradient: Tensors) -> Tensors:
            released = after(gradient)
            if bounds is not None:
                made = problem.reading.read([released[name] for name in names], seen, bounds)
                released = dict(zip(names, made, strict=True))
            if weights is None:
                return released
            return {name: tensor * weights[name] for name, tensor in released.items()}

        plain = weights is None and not problem.release.defenses and bounds is None
        return MixedDerivative(self.loss, problem.objective.params, flat, None if plain else weighed)

    def raise_floor(self, flat: Tensor) -> None:
        """Raise the floor to the round-off of the release itself, measured at z (n,); three releases.

        A saturated softmax makes the gradient a difference of nearly equal numbers, and its round-off far larger than
        eps. The same release in float32 shows by how much; round-off in float64 is smaller by the ratio of the eps.
        """
        if self.noisy or not self.problem.reading.keeps_scale:
            return
        self.cost.spend(releases=3)
        single, double = torch.float32, torch.float64
        objective = self.problem.objective.to(single)
        draws = [draw.to(single) for draw in self.problem.draws]
        low = replace(self.problem, objective=objective, draws=draws, space=replace(self.problem.space, dtype=single))
        labels = self.problem.labels
        if labels is not None and labels.is_floating_point():
            labels = labels.to(single)
        with torch.no_grad(), differentiable_kernels():
            rounded = low.mean(flat.to(single), labels).to(double)
            exact = self.problem.mean(flat.to(single).to(double), self.problem.labels)
        gap = float((rounded - exact).norm())
        share = torch.finfo(self.problem.update_dtype).eps / torch.finfo(single).eps
        if math.isfinite(gap):
            measured = min(ROUND_OFF_MARGIN * gap * share, MOST_ROUND_OFF * self.scale)
            self.floor = max(self._least_floor, measured)


def release_cost(knowledge: Knowledge) -> float:
    """Cost of one released mean, in plain gradients."""
    knowledge = as_numbers(knowledge)
    assert knowledge.objective is not None
    assert knowledge.batch_size is not None
    draws = draws_of(knowledge, knowledge.objective, knowledge.targets)
    return knowledge.release.protocol.plain_gradients(knowledge.batch_size) * len(draws)

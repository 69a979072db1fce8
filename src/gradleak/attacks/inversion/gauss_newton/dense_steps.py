"""Steps from the whole Jacobian, and from an older one by conjugate gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.descent import Steps
from gradleak.attacks.inversion.gauss_newton.local_model import FactoredModel, GramModel, LocalModel
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.operators import Linearization, layer_gram
from gradleak.results import Natural

DENSE_COPIES = 3
"""Matrices (n, n) that a dense step holds at once: the Gram matrix, a part of it, and its factor."""

LEAST_GAIN_RATIO = 0.5
"""Below it the last model was no good one, and an older one will not be better."""

LOOSEST = 1e-2
"""Relative residual at which conjugate gradients end far from the solution."""

TIGHTEST = 1e-8

LOOK_AFTER = 6
"""Iterations after which conjugate gradients give up, where at their pace they would not come to an end."""


@dataclass(frozen=True, kw_only=True)
class DenseSteps(Steps):
    """Steps from the Gram matrix AᵀA of the whole Jacobian A (P, n), or from that of an earlier step.

    The residual falls quadratically once it is small. Where the last step went as its model said, the next one is solved
    for by conjugate gradients on the new A as products, preconditioned by the Cholesky factor of the old AᵀA + μD: the
    same step to the relative residual min(1e-2, ‖r‖/‖g*‖), at a few products in the place of n. AᵀA is computed anew
    where they do not come to an end, where the gain ratio falls below 1/2, and at the end for the look at the rank.
    Starts of few unknowns are linearized side by side.

    **Cost**: n products with A in blocks, P·n² multiplications for the Gram matrix, n³/3 for each factor; 8·P·n bytes
    and three matrices of n × n. The linear algebra is not a plain gradient and is not counted. Where the release is the
    plain gradient, less: see `GhostDerivative`.

    Attributes:
        reuse: iterations of conjugate gradients a step, and at most n/8 (4 plain gradients each, as much as a quarter of
            a new matrix); 0 for a new matrix at each step.
    """

    side_by_side: ClassVar[bool] = True

    reuse: Natural = 40

    def linearize(self, system: ResidualSystem, points: Tensor, generator: torch.Generator) -> list[LocalModel]:
        """One model with its Gram matrix a point."""
        if len(points) == 1:
            return [_whole(system, system.linearize(points[0]))]
        return [GramModel(residual, residual, columns) for residual, columns in system.jacobians(points)]

    def again(self, system: ResidualSystem, point: Tensor, last: LocalModel, gain: float) -> LocalModel | None:
        """The Gram matrix of the last model, with the products of the new point."""
        # Words are read off models that hold AᵀA of the point itself.
        keeps = system.keeps_form and system.problem.space.sentences is None
        iterations = min(self.reuse, point.numel() // 8) if keeps else 0
        held = last.held if isinstance(last, _ReusedModel) else last
        if iterations < LOOK_AFTER or gain < LEAST_GAIN_RATIO or not isinstance(held, FactoredModel):
            return None
        return _ReusedModel(system, point, held, iterations)

    def needed_bytes(self, entries: int, unknowns: int) -> int:
        """A and three matrices of n × n in float64."""
        return 8 * (entries * unknowns + DENSE_COPIES * unknowns**2)

    def products(self, entries: int, unknowns: int) -> int:
        """One a column."""
        return unknowns


def _whole(system: ResidualSystem, at: Linearization) -> FactoredModel:
    """The model at a point with its Gram matrix: by layers where the release is the plain gradient, else from A."""
    residual = at.value - system.target
    gram = None
    size = at.point.numel()
    if bool(torch.isfinite(at.value).all()):
        system.cost.spend(products=size)
        gram = layer_gram(at, max_bytes=system.max_bytes)
        if gram is not None and bool(torch.isfinite(gram).all()):
            return _LayeredModel(system, at, residual, gram)
        return GramModel(residual, residual, at.push(torch.eye(size, dtype=at.point.dtype, device=at.point.device)))
    return GramModel(residual, residual, at.value.new_full((size, system.entries), torch.nan))


class _LayeredModel(FactoredModel):
    """A Gram matrix by layers, with A as products."""

    def __init__(self, system: ResidualSystem, at: Linearization, residual: Tensor, gram: Tensor) -> None:
        self._system = system
        self._at = at
        super().__init__(residual, residual, self.pull(residual), gram)

    def pull(self, residual: Tensor) -> Tensor:
        """By the kept graph."""
        self._system.cost.spend(products=1)
        return self._at.pull(residual[None])[0]


class _ReusedModel(LocalModel):
    """A as products at one point, and the Gram matrix of another until it fails.

    Args:
        system: the residual.
        point: where A is taken.
        held: the model of the Gram matrix.
        iterations: of conjugate gradients at most, all solves together.
    """

    def __init__(self, system: ResidualSystem, point: Tensor, held: FactoredModel, iterations: int) -> None:
        self._system = system
        self._at = system.linearize(point)
        self._left = iterations
        self._damping, self._free = 0.0, torch.ones_like(point, dtype=torch.bool)
        self.held = held
        self._is_old = True
        self.residual = self._at.value - system.target
        self.squared = float(self.residual.square().sum())
        self.weights = held.weights
        finite = bool(torch.isfinite(self.residual).all())
        self.slope = self.pull(self.residual) if finite else torch.full_like(point, torch.nan)
        reached = math.sqrt(self.squared) / system.scale if finite else 0.0
        self._tolerance = max(TIGHTEST, min(LOOSEST, reached))

    def pull(self, residual: Tensor) -> Tensor:
        """Aᵀu (n,)."""
        self._system.cost.spend(products=1)
        return self._at.pull(residual[None])[0]

    def measure(self, residual: Tensor) -> float:
        """‖r‖²."""
        return float(residual.square().sum())

    def curvature(self, move: Tensor) -> Tensor:
        """By two products, or the new Gram matrix."""
        if not self._is_old:
            return self.held.curvature(move)
        self._system.cost.spend(products=2)
        return self._at.normal(move[None])[0]

    def solve(self, right: Tensor, damping: float, free: Tensor) -> Tensor | None:
        """By conjugate gradients, and where these fail by the Gram matrix of this point."""
        self._damping, self._free, self.is_solved = damping, free, True
        if self._is_old:
            found = self._by_products(right)
            if found is not None:
                return found
            self._renew()
        return self.held.solve(right, damping, free)

    def correct(self, residual: Tensor) -> Tensor:
        """The last system of `solve` with the slope of a fresh residual."""
        slope = self.pull(residual)
        if self._is_old:
            self._left = max(self._left, 2 * LOOK_AFTER)
            found = self._by_products(slope)
            if found is not None:
                return -found
            self._renew()
        # Renewed here or by the look at the rank: not factored yet.
        if not self.held.is_solved and self.held.solve(slope, self._damping, self._free) is None:
            return torch.zeros_like(slope)
        return -self.held.by_factor(slope)

    def gram(self) -> Tensor | None:
        """AᵀA of this point."""
        if self._is_old:
            self._renew()
        return self.held.gram()

    def _renew(self) -> None:
        self.held = _whole(self._system, self._at)
        self.weights, self._is_old = self.held.weights, False

    def _by_products(self, right: Tensor) -> Tensor | None:
        """(AᵀA + μD)⁻¹ b over the free entries by preconditioned conjugate gradients; None where they take too long."""
        free, ridge = self._free, self._damping * self.weights
        residual = torch.where(free, right, 0.0)
        direction = self.held.solve(residual, self._damping, free)
        if direction is None:
            return None
        found, along, before = torch.zeros_like(right), direction, float(residual @ direction)
        first, done = before, 0
        while before > self._tolerance**2 * first:
            pace = (before / first) ** (0.5 / done) if done >= LOOK_AFTER else 0.0
            left = self._left if pace < 1 else -1
            if left <= 0 or pace**left * math.sqrt(before / first) > self._tolerance:
                return None
            self._system.cost.spend(products=2)
            image = torch.where(free, self._at.normal(along[None])[0] + ridge * along, 0.0)
            curved = float(along @ image)
            if not curved > 0:
                return None
            found = found + (before / curved) * along
            residual = residual - (before / curved) * image
            solved = self.held.by_factor(residual)
            after = float(residual @ solved)
            along, before = solved + (after / before) * along, after
            self._left -= 1
            done += 1
        return found

"""Steps from products with the Jacobian alone, for more unknowns than a matrix allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.local_model import LocalModel, raised
from gradleak.attacks.inversion.gauss_newton.products import ScaledNormal
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.attacks.inversion.gauss_newton.steps import Steps
from gradleak.linalg import LinearSolution, conjugate_gradient
from gradleak.results import Count, Natural, Share


@dataclass(frozen=True, kw_only=True)
class KrylovSteps(Steps):
    """Steps by conjugate gradients on (AᵀA + μD) h = −Aᵀr, preconditioned by D, without A as a matrix.

    D is the diagonal of AᵀA, estimated as the mean of (Aᵀu)² over `probes` vectors u of random signs: never negative,
    right in expectation, and within 40 % for 8 probes where no row dominates. A solve ends at ‖residual‖ ≤ `forcing`
    times the right-hand side or after `iterations` products with AᵀA: an inexact Newton step. Directions that so few
    products do not reach keep their error, so that on badly conditioned releases the residual falls linearly where
    dense steps fall quadratically.

    **Cost**: `probes` + 1 products with Aᵀ a step, two products an iteration; memory of the kept graph and ten vectors
    of n numbers.

    **Source**: truncated Newton steps after Steihaug 1983, "The conjugate gradient method and trust regions in large
    scale optimization"; the damping takes the place of the trust region. The preconditioner is the squared form of the
    estimator of Bekas, Kokiopoulou and Saad 2007, "An estimator for the diagonal of a matrix".

    Attributes:
        iterations: of conjugate gradients, a solve.
        forcing: relative residual at which a solve ends.
        probes: for the diagonal; 0 for none (D = the mean of the diagonal, from one probe).
    """

    rounds: ClassVar[int] = 3
    needs_matrix: ClassVar[bool] = False

    iterations: Count = 100
    forcing: Share = 1e-2
    probes: Natural = 8

    def linearize(self, system: ResidualSystem, points: Tensor, generator: torch.Generator) -> list[LocalModel]:
        """One model a point."""
        return [KrylovModel(self, system, point, generator) for point in points]

    def needed_bytes(self, entries: int, unknowns: int) -> int:
        """Vectors; the kept graph has a budget of its own."""
        return 8 * (10 * unknowns + 4 * entries)

    def products(self, entries: int, unknowns: int) -> int:
        """Those of one solve, of the diagonal and the slope."""
        return 2 * (self.iterations + 2) + self.probes + 1


class KrylovModel(LocalModel):
    """r and A at one point, A as products."""

    def __init__(self, steps: KrylovSteps, system: ResidualSystem, point: Tensor, generator: torch.Generator) -> None:
        self._steps = steps
        self._system = system
        self.at = system.linearize(point)
        self.residual = self.at.value - system.target
        self.squared = float(self.residual.square().sum())
        self.weights = torch.zeros_like(point)
        self._damping, self._free = 0.0, torch.ones_like(point, dtype=torch.bool)
        if not bool(torch.isfinite(self.residual).all()):
            self.slope = torch.full_like(point, torch.nan)
            return
        self.slope = self.pull(self.residual)
        probes = max(1, steps.probes)
        squares = torch.zeros_like(point)
        for _ in range(probes):
            signs = torch.randint(0, 2, (system.entries,), generator=generator, device=generator.device) * 2 - 1
            squares += self.pull(signs.to(point)).square() / probes
        self.weights = raised(squares if steps.probes else squares.mean().expand_as(squares))

    def pull(self, residual: Tensor) -> Tensor:
        """Aᵀu (n,)."""
        self._system.cost.spend(products=1)
        return self.at.pull(residual[None])[0]

    def measure(self, residual: Tensor) -> float:
        """‖r‖²."""
        return float(residual.square().sum())

    def curvature(self, move: Tensor) -> Tensor:
        """By two products."""
        self._system.cost.spend(products=2)
        return self.at.normal(move[None])[0]

    def solve(self, right: Tensor, damping: float, free: Tensor) -> Tensor | None:
        """Conjugate gradients up to the forcing term; an unfinished solution is still a step."""
        self._damping, self._free, self.is_solved = damping, free, True
        found, step = self._solve(right, damping, free, self._steps.forcing, self._steps.iterations)
        return step if bool(torch.isfinite(found.solution).all()) else None

    def correct(self, residual: Tensor) -> Tensor:
        """The last system of `solve` with the slope of a fresh residual."""
        slope = self.pull(residual)
        return -self._solve(slope, self._damping, self._free, self._steps.forcing, self._steps.iterations)[1]

    def shifted(
        self, right: Tensor, shift: float, scale: Tensor, free: Tensor, iterations: int, tolerance: float
    ) -> LinearSolution:
        """(S AᵀA S + shift) x = b over the free entries, S a diagonal scale (n,), b (k,) of the free ones."""
        places = free.nonzero()[:, 0]
        scales = scale[places][:, None]

        def into(block: Tensor) -> Tensor:
            out = block.new_zeros(free.numel(), block.shape[1])
            out[places] = scales * block
            return out

        def back(block: Tensor) -> Tensor:
            return scales * block[places]

        normal = ScaledNormal(self.at, into, back, size=len(places), like=right, cost=self._system.cost)
        return conjugate_gradient(normal, right, shift=shift, tolerance=tolerance, max_iterations=iterations)

    def _solve(
        self, right: Tensor, damping: float, free: Tensor, forcing: float, iterations: int
    ) -> tuple[LinearSolution, Tensor]:
        scale = self.weights.rsqrt()
        found = self.shifted((scale * right)[free], damping, scale, free, iterations, forcing)
        out = torch.zeros_like(right)
        out[free] = scale[free] * found.solution
        return found, out

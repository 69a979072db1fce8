"""Steps by Krylov and by sampled or sketched rows, and the choice among all steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.dense_steps import DENSE_COPIES, DenseSteps
from gradleak.attacks.inversion.gauss_newton.descent import Steps
from gradleak.attacks.inversion.gauss_newton.local_model import GramModel, LocalModel, raised
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.attacks.inversion.gauss_newton.scaled_normal import ScaledNormal
from gradleak.linalg import LinearSolution, conjugate_gradient
from gradleak.operators import Linearization
from gradleak.results import Count, Natural, Number, Share, UnsupportedError

FULL_ITERATIONS = 60
"""Conjugate gradients on all rows, preconditioned by the reduced factor: it needs some ten to twenty."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """S (m, P): every row of the residual goes to one of m places with a factor, or to none.

    Attributes:
        rows: which rows of the residual are kept (k,).
        places: where each goes (k,), in [0, m).
        factors: by what it is multiplied (k,).
        size: m.
    """

    rows: Tensor
    places: Tensor
    factors: Tensor
    size: int

    def __call__(self, block: Tensor) -> Tensor:
        """S applied along the last axis: (..., P) -> (..., m)."""
        picked = block[..., self.rows] * self.factors
        return block.new_zeros(*block.shape[:-1], self.size).index_add_(-1, self.places, picked)


@dataclass(frozen=True, kw_only=True)
class ReducedSteps(Steps):
    """Steps that descend ‖S r‖² for a reduction S (m, P) of the residual, with m = `rows_per_unknown` · n.

    An update without noise is explained exactly at the truth, so that S r vanishes there too and the steps converge
    quadratically for a fixed S; S is drawn anew where a start is stuck. Where the residual does not vanish (noise), the
    minimizer of ‖S r‖² is not that of ‖r‖²: conjugate gradients on all rows, preconditioned by the factor of the
    reduced system, lead to it in the last steps. Whether the update is explained is always decided on all rows.

    A falls to m·n numbers and its Gram matrix to m·n² multiplications. The n products with A remain.

    Attributes:
        rows_per_unknown: m/n, more than 1; with less than about 2 the reduced system is badly conditioned.
    """

    renewals: ClassVar[int] = 4

    rows_per_unknown: Annotated[float, Number(1, excluded="low")] = 4.0

    @abstractmethod
    def draw(self, live: Tensor, size: int, generator: torch.Generator) -> Reduction:
        """A reduction to `size` rows.

        Args:
            live: which entries of the update are not zero (P,).
            size: m.
            generator: of random numbers.
        """

    def linearize(self, system: ResidualSystem, points: Tensor, generator: torch.Generator) -> list[LocalModel]:
        """One reduced model a point."""
        size = min(system.entries, round(self.rows_per_unknown * points.shape[1]))
        reduction = self.draw(system.live_rows.to(generator.device), size, generator)
        return [_ReducedModel(system, point, reduction) for point in points]

    def needed_bytes(self, entries: int, unknowns: int) -> int:
        """S A and three matrices of n × n in float64, and one column of A."""
        rows = min(entries, round(self.rows_per_unknown * unknowns))
        return 8 * (rows * unknowns + DENSE_COPIES * unknowns**2 + 8 * entries)

    def products(self, entries: int, unknowns: int) -> int:
        """One a column, and conjugate gradients at the end."""
        return unknowns + 1


@dataclass(frozen=True, kw_only=True)
class RowSampledSteps(ReducedSteps):
    """Steps from m entries of the update, drawn without replacement, those that are not zero first.

    Cheaper to apply than a sketch, and blind to what no drawn entry holds; see `ReducedSteps`.

    **Cost**: n products with A in blocks, m·n² multiplications; 8·m·n bytes and three matrices of n × n.
    """

    def draw(self, live: Tensor, size: int, generator: torch.Generator) -> Reduction:
        """Rows at random."""
        order = torch.randperm(live.numel(), generator=generator, device=generator.device)
        # Stable: entries that are not zero first, each part in random order.
        first = order[(~live[order]).to(torch.int8).argsort(stable=True)][:size]
        kept = first.sort().values
        scale = (live.numel() / size) ** 0.5
        return Reduction(
            rows=kept,
            places=torch.arange(size, device=generator.device),
            factors=torch.full((size,), scale, dtype=torch.float64, device=generator.device),
            size=size,
        )


@dataclass(frozen=True, kw_only=True)
class SketchedSteps(ReducedSteps):
    """Steps from a sparse sketch of the update: every entry is added, with a random sign, to one of m sums.

    Every entry counts; see `ReducedSteps`.

    **Cost**: n products with A in blocks, P·n additions, m·n² multiplications; 8·m·n bytes and three matrices of n × n.

    **Source**: the sparse embedding of Clarkson and Woodruff 2013, "Low rank approximation and regression in input
    sparsity time".
    """

    def draw(self, live: Tensor, size: int, generator: torch.Generator) -> Reduction:
        """A sum for every entry."""
        count = live.numel()
        device = generator.device
        signs = torch.randint(0, 2, (count,), generator=generator, dtype=torch.float64, device=device) * 2 - 1
        # Every sum gets as many entries as the others, one more or less.
        places = torch.randperm(count, generator=generator, device=device) % size
        return Reduction(rows=torch.arange(count, device=device), places=places, factors=signs, size=size)


class _ReducedModel(GramModel):
    """S r and S A, with A at hand as products."""

    is_whole = False

    def __init__(self, system: ResidualSystem, point: Tensor, reduction: Reduction) -> None:
        self._system = system
        self._at: Linearization = system.linearize(point)
        reduction = Reduction(
            rows=reduction.rows.to(point.device),
            places=reduction.places.to(point.device),
            factors=reduction.factors.to(point),
            size=reduction.size,
        )
        self._reduction = reduction
        size = point.numel()
        finite = bool(torch.isfinite(self._at.value).all())
        system.cost.spend(products=size if finite else 0)
        columns = point.new_full((size, reduction.size), torch.nan)
        for start in range(0, size if finite else 0, self._at.chunk):
            width = min(self._at.chunk, size - start)
            block = point.new_zeros(width, size)
            block[:, start : start + width].fill_diagonal_(1.0)
            columns[start : start + width] = reduction(self._at.push(block))
        residual = self._at.value - system.target
        self._damping = 0.0
        super().__init__(residual, reduction(residual), columns)

    def measure(self, residual: Tensor) -> float:
        """‖S r‖²."""
        return float(self._reduction(residual).square().sum())

    def solve(self, right: Tensor, damping: float, free: Tensor) -> Tensor | None:
        """By a Cholesky factor of the reduced system."""
        self._damping = damping
        return super().solve(right, damping, free)

    def correct(self, residual: Tensor) -> Tensor:
        """A step of all rows: conjugate gradients, preconditioned by the factor of the reduced system."""
        factor, places = self._factor, self._free
        assert factor is not None
        assert places is not None
        size, cost = residual.new_zeros(self.columns.shape[0]), self._system.cost

        def into(block: Tensor) -> Tensor:
            out = size.new_zeros(len(size), block.shape[1])
            out[places] = torch.linalg.solve_triangular(factor.T, block, upper=True)
            return out

        def back(block: Tensor) -> Tensor:
            solved: Tensor = torch.linalg.solve_triangular(factor, block[places], upper=False)
            return solved

        cost.spend(products=1)
        slope = self._at.pull(residual[None])[0]
        # LᵀL holds the damping as well: what is left of it besides AᵀA is small and harmless.
        normal = ScaledNormal(self._at, into, back, size=len(places), like=size, cost=cost)
        found = conjugate_gradient(normal, back(slope[:, None])[:, 0], tolerance=1e-6, max_iterations=FULL_ITERATIONS)
        return -into(found.solution[:, None])[:, 0]


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


LEAST_GAIN = 2.0
"""A sketch is not worth its while unless the whole Jacobian has this many times as many rows."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Steps and why they were taken.

    Attributes:
        steps: how steps are computed.
        reason: one clause for the record.
    """

    steps: Steps
    reason: str


def choose_steps(named: Steps | None, *, entries: int, unknowns: int, max_unknowns: int, max_bytes: int) -> Choice:
    """The steps for P entries and n unknowns: dense, sketched, or by products, in this order, as memory allows.

    Args:
        named: steps that were asked for, or None.
        entries: P.
        unknowns: n.
        max_unknowns: most unknowns for which an n × n matrix is factored.
        max_bytes: memory for Jacobian and matrices.

    Raises:
        UnsupportedError: if the named steps do not fit the memory.
    """
    if named is not None:
        needed = named.needed_bytes(entries, unknowns)
        if needed > max_bytes:
            raise UnsupportedError(
                f"gauss_newton: expected steps that fit max_jacobian_bytes={max_bytes / 2**30:.1f} GiB, got "
                f"{type(named).__name__} for {unknowns} unknowns and {entries} entries, which take "
                f"{needed / 2**30:.1f} GiB; raise the limit, or use KrylovSteps, which hold no matrix"
            )
        return Choice(steps=named, reason="named")
    if unknowns > max_unknowns:
        return Choice(
            steps=KrylovSteps(), reason=f"{unknowns} unknowns are more than max_unknowns={max_unknowns} for a matrix"
        )
    dense, sketched = DenseSteps(), SketchedSteps()
    if dense.needed_bytes(entries, unknowns) <= max_bytes:
        return Choice(steps=dense, reason=f"{unknowns} unknowns, and the Jacobian fits the memory")
    enough = entries >= LEAST_GAIN * sketched.rows_per_unknown * unknowns
    if enough and sketched.needed_bytes(entries, unknowns) <= max_bytes:
        return Choice(steps=sketched, reason="the Jacobian does not fit the memory, a sketch of it does")
    return Choice(steps=KrylovSteps(), reason="neither the Jacobian nor a sketch of it fits the memory")

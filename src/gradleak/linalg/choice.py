"""Solvers as named choices: small frozen objects that a measure or a plan holds, and the rule that picks one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.linalg.lanczos_bounds import bounded_inverse
from gradleak.linalg.operator import Gram, LinearOperator
from gradleak.linalg.solvers import LinearSolution, conjugate_gradient, least_squares_descent, lsmr, neumann_series
from gradleak.linalg.trace import ShiftedInverse, TraceEstimate, Weights, hutchinson, hutchpp, lanczos_quadrature
from gradleak.results import (
    Count,
    Outcome,
    Positive,
    Seed,
    Settings,
    Share,
    Whole,
)

# AᵀA, its eigenvectors and the work space of divide and conquer.
_DENSE_COPIES = 5


@dataclass(frozen=True, kw_only=True)
class Solver(Settings, ABC):
    """Solver of the inverse in a closed-form measure.

    Attributes:
        label: the method, as scores name it.
    """

    label: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class InverseSolver(Solver):
    """A way to (AᵀA + εI)⁻¹Aᵀδ, or to A⁺δ for ε = 0."""

    @abstractmethod
    def solve(self, factor: LinearOperator, target: Tensor, projected: Tensor, epsilon: float) -> LinearSolution:
        """The solution for A (m, n), δ (m,) and Aᵀδ (n,), with its residual against Aᵀδ."""


@dataclass(frozen=True, kw_only=True)
class TraceSolver(Solver):
    """A way to tr(W (AᵀA + εI)⁻¹ Wᵀ)."""

    @abstractmethod
    def estimate(self, gram: LinearOperator, epsilon: float, weights: Weights) -> TraceEstimate:
        """The trace for AᵀA (n, n) and W: its diagonal (n,), an operator (n, n), or None for the identity."""


@dataclass(frozen=True, kw_only=True)
class DenseSolver(Solver):
    """The whole spectrum of AᵀA: exact, for the inverse and for traces.

    Cost: AᵀA (d JVPs, far less for linear layers), then 9 d³ operations; 40·d² bytes.
    """

    label: ClassVar[str] = "dense spectrum"


@dataclass(frozen=True, kw_only=True)
class ConjugateGradient(InverseSolver):
    """Conjugate gradients on AᵀA + εI: the fastest for ε > 0.

    Args:
        tolerance: relative residual.
        max_iterations: budget.

    Cost: a JVP and a VJP an iteration, about √κ · log(1/tolerance) of them.

    Source: Zhang et al. 2023, appendix A.1.
    """

    label: ClassVar[str] = "conjugate gradients"

    tolerance: Share = 1e-8
    max_iterations: Count = 1000

    def solve(self, factor: LinearOperator, target: Tensor, projected: Tensor, epsilon: float) -> LinearSolution:
        """The solution by `conjugate_gradient`."""
        return conjugate_gradient(
            Gram(factor), projected, shift=epsilon, tolerance=self.tolerance, max_iterations=self.max_iterations
        )


@dataclass(frozen=True, kw_only=True)
class GaussRadau(InverseSolver):
    """Conjugate gradients that end as soon as the norm of the solution is known well enough: few products for ε > 0.

    The norm of every iterate is a lower bound of the norm of the solution (Gauss quadrature of (λ + ε)⁻²), and Gauss–Radau
    quadrature gives an upper bound; both hold for any spectrum. Residuals, which other solvers wait for, bound the error by
    1/ε times themselves and are far too careful.

    Args:
        tolerance: relative distance of the bounds at which it ends.
        max_iterations: budget.

    Cost: a JVP and a VJP an iteration; one vector of d an iteration is kept.

    Source: Golub and Meurant 1994, "Matrices, moments and quadrature".
    """

    label: ClassVar[str] = "conjugate gradients with Gauss-Radau bounds"

    tolerance: Share = 0.05
    max_iterations: Count = 1000

    def solve(self, factor: LinearOperator, target: Tensor, projected: Tensor, epsilon: float) -> LinearSolution:
        """The solution by `bounded_inverse`; unsupported for ε = 0, where nothing bounds it."""
        if epsilon == 0.0:
            return LinearSolution(
                solution=torch.zeros_like(projected), residual=math.inf, iterations=0, matvecs=0,
                outcome=Outcome.UNSUPPORTED, note="Gauss-Radau bounds need epsilon > 0: take LSMR",
            )  # fmt: skip
        return bounded_inverse(
            Gram(factor), projected, shift=epsilon, tolerance=self.tolerance, max_steps=self.max_iterations
        )


@dataclass(frozen=True, kw_only=True)
class LSMR(InverseSolver):
    """LSMR on A with damping √ε: the one to take for ε = 0 beyond dense sizes.

    Args:
        tolerance: relative residual of the normal equations.
        max_iterations: budget.

    Cost: a JVP and a VJP an iteration.

    Source: Fong and Saunders 2011.
    """

    label: ClassVar[str] = "LSMR"

    tolerance: Share = 1e-8
    max_iterations: Count = 1000

    def solve(self, factor: LinearOperator, target: Tensor, projected: Tensor, epsilon: float) -> LinearSolution:
        """The solution by `lsmr`."""
        return lsmr(factor, target, shift=epsilon, tolerance=self.tolerance, max_iterations=self.max_iterations)


@dataclass(frozen=True, kw_only=True)
class NeumannSeries(InverseSolver):
    """The Neumann series, for comparison; unsupported where it cannot converge.

    Args:
        scale: α; 1 is the paper's, None is 1/(λmax + ε), ours.
        tolerance: relative residual.
        max_terms: budget.
        seed: of the start vectors for λmax.

    Cost: λmax, then a JVP and a VJP a term, about κ · log(1/tolerance) of them.

    Source: Zhang et al. 2023, appendix A.1.
    """

    label: ClassVar[str] = "Neumann series"

    scale: Positive | None = 1.0
    tolerance: Share = 1e-8
    max_terms: Count = 1000
    seed: Seed = 0

    def solve(self, factor: LinearOperator, target: Tensor, projected: Tensor, epsilon: float) -> LinearSolution:
        """The solution by `neumann_series`."""
        return neumann_series(
            Gram(factor), projected, generator=_generator(self.seed), shift=epsilon, scale=self.scale,
            tolerance=self.tolerance, max_terms=self.max_terms,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LeastSquaresDescent(InverseSolver):
    """Gradient descent on ½‖δ − Ax‖² + ½ε‖x‖², the paper's own solver, for comparison.

    Args:
        step: the step size, or None for 1/(λmax + ε).
        tolerance: relative residual of the normal equations.
        max_iterations: budget.
        seed: of the start vectors for λmax.

    Cost: λmax, then a JVP and a VJP an iteration, about κ · log(1/tolerance) of them.

    Source: Zhang et al. 2023, section 3.1.
    """

    label: ClassVar[str] = "least-squares gradient descent"

    step: Positive | None = None
    tolerance: Share = 1e-8
    max_iterations: Count = 1000
    seed: Seed = 0

    def solve(self, factor: LinearOperator, target: Tensor, projected: Tensor, epsilon: float) -> LinearSolution:
        """The solution by `least_squares_descent`."""
        return least_squares_descent(
            factor, target, generator=_generator(self.seed), shift=epsilon, step=self.step, tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Hutchinson(TraceSolver):
    """Hutchinson's estimator with conjugate gradients inside.

    Args:
        samples: random vectors, at least 2.
        tolerance: relative residual of the inner solves.
        max_iterations: their budget.
        seed: of the random vectors.

    Cost: samples · iterations products, all samples side by side.

    Source: Hutchinson 1989.
    """

    label: ClassVar[str] = "Hutchinson with conjugate gradients"

    samples: Annotated[int, Whole(2)] = 30
    tolerance: Share = 1e-6
    max_iterations: Count = 500
    seed: Seed = 0

    def estimate(self, gram: LinearOperator, epsilon: float, weights: Weights) -> TraceEstimate:
        """The trace by `hutchinson`."""
        inverse = ShiftedInverse(
            gram, shift=epsilon, weights=weights, tolerance=self.tolerance, max_iterations=self.max_iterations
        )
        return hutchinson(inverse, generator=_generator(self.seed), samples=self.samples)


@dataclass(frozen=True, kw_only=True)
class HutchPlusPlus(TraceSolver):
    """Hutch++ with conjugate gradients inside: more exact where few small eigenvalues make the sum.

    Args:
        samples: products with the inverse, at least 6.
        tolerance: relative residual of the inner solves.
        max_iterations: their budget.
        seed: of the random vectors.

    Cost: samples · iterations products, in three blocks.

    Source: Meyer, Musco, Musco and Woodruff 2021.
    """

    label: ClassVar[str] = "Hutch++ with conjugate gradients"

    samples: Annotated[int, Whole(6)] = 48
    tolerance: Share = 1e-6
    max_iterations: Count = 500
    seed: Seed = 0

    def estimate(self, gram: LinearOperator, epsilon: float, weights: Weights) -> TraceEstimate:
        """The trace by `hutchpp`."""
        inverse = ShiftedInverse(
            gram, shift=epsilon, weights=weights, tolerance=self.tolerance, max_iterations=self.max_iterations
        )
        return hutchpp(inverse, generator=_generator(self.seed), samples=self.samples)


@dataclass(frozen=True, kw_only=True)
class LanczosQuadrature(TraceSolver):
    """Stochastic Lanczos quadrature of 1/(λ + ε), of 1/λ over the range for ε = 0.

    Args:
        samples: Lanczos runs, at least 2.
        steps: of each run, at least 2.
        seed: of the random vectors.

    Cost: samples · steps products in blocks; samples · steps vectors of d.

    Source: Ubaru, Chen and Saad 2017.
    """

    label: ClassVar[str] = "stochastic Lanczos quadrature"

    samples: Annotated[int, Whole(2)] = 16
    steps: Annotated[int, Whole(2)] = 64
    seed: Seed = 0

    def estimate(self, gram: LinearOperator, epsilon: float, weights: Weights) -> TraceEstimate:
        """The trace by `lanczos_quadrature`."""
        return lanczos_quadrature(
            gram, lambda nodes: 1.0 / (nodes + epsilon), generator=_generator(self.seed), samples=self.samples,
            steps=self.steps, weights=weights, range_only=epsilon == 0.0,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A solver and why it was taken.

    Attributes:
        solver: the object.
        reason: one line for the details of a score.
    """

    solver: Solver
    reason: str


def choose_inverse_solver(
    shape: tuple[int, int], epsilon: float, *, max_bytes: int, limit: int, at_hand: bool = False, item_bytes: int = 8
) -> Choice:
    """The solver for (AᵀA + εI)⁻¹Aᵀδ by the size of A, ε and the memory budget.

    The spectrum where it is at hand already, or d is at most `limit`, its 40·d² bytes fit and either ε = 0 or A fits
    too; else conjugate gradients for ε > 0 (a few products where AᵀA takes 2d of them) and LSMR for ε = 0.

    Args:
        shape: (P, d).
        epsilon: ε.
        max_bytes: memory budget.
        limit: largest d for a whole spectrum.
        at_hand: whether the spectrum was computed already.
        item_bytes: bytes of a number.

    Examples:
        >>> choose_inverse_solver((10**6, 3072), 1.0, max_bytes=2**30, limit=4096).solver.label
        'conjugate gradients'
    """
    rows, size = shape
    if at_hand:
        return Choice(solver=DenseSolver(), reason="the spectrum is at hand")
    refusal = _too_large_for_dense(size, max_bytes, limit, item_bytes)
    if refusal is None:
        held = rows * size * item_bytes
        if epsilon == 0.0 or held <= max_bytes:
            return Choice(solver=DenseSolver(), reason=f"d = {size} is at most {limit} and fits {max_bytes} bytes")
        refusal = f"A needs {held} bytes of {max_bytes}, so AᵀA takes 2d products"
    if epsilon > 0.0:
        return Choice(solver=ConjugateGradient(), reason=f"{refusal}; epsilon > 0")
    return Choice(solver=LSMR(), reason=f"{refusal}; epsilon = 0")


def choose_trace_solver(
    shape: tuple[int, int], *, max_bytes: int, limit: int, at_hand: bool = False, item_bytes: int = 8
) -> Choice:
    """The solver for tr((AᵀA)⁻¹): the spectrum where it fits, else stochastic Lanczos quadrature.

    Args:
        shape: (P, d).
        max_bytes: memory budget.
        limit: largest d for a whole spectrum.
        at_hand: whether the spectrum was computed already.
        item_bytes: bytes of a number.
    """
    size = shape[1]
    refusal = None if at_hand else _too_large_for_dense(size, max_bytes, limit, item_bytes)
    if refusal is not None:
        return Choice(solver=LanczosQuadrature(), reason=refusal)
    reason = "the spectrum is at hand" if at_hand else f"d = {size} is at most {limit} and fits {max_bytes} bytes"
    return Choice(solver=DenseSolver(), reason=reason)


def _too_large_for_dense(size: int, max_bytes: int, limit: int, item_bytes: int) -> str | None:
    if size > limit:
        return f"d = {size} is above {limit}, the limit for a whole spectrum"
    needed = _DENSE_COPIES * item_bytes * size**2
    return f"a whole spectrum needs {needed} bytes of {max_bytes}" if needed > max_bytes else None


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

"""Least squares by gradient descent, as the I²F paper solves them."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.linalg.conjugate_gradient import LinearSolution
from gradleak.linalg.neumann import neumann_series
from gradleak.linalg.operator import Gram, LinearOperator
from gradleak.results import InputError, check_count, check_positive


def least_squares_descent(
    factor: LinearOperator,
    target: Tensor,
    *,
    generator: torch.Generator,
    shift: float = 0.0,
    step: float | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 1000,
) -> LinearSolution:
    """The minimizer x of ½‖δ − Ax‖² + ½·shift·‖x‖² by gradient descent from zero with a fixed step.

    xₜ₊₁ = xₜ + η(Aᵀ(δ − Axₜ) − shift·xₜ). From zero these are the partial sums of the Neumann series with α = η, so the
    condition is the same, η(λmax + shift) < 2, and it is checked first: unsupported, with a note, where it fails.

    Args:
        factor: A, (m, n).
        target: δ, (m,).
        generator: source of the start vectors for λmax.
        shift: ε, at least 0.
        step: η; None is 1/(λmax + shift).
        tolerance: stop at ‖Aᵀ(δ − Ax) − shift·x‖ <= tolerance · ‖Aᵀδ‖.
        max_iterations: budget.

    Returns:
        The last iterate with its residual; a spent budget comes with the iterations that its rate predicts.

    Raises:
        InputError: for a shape that does not fit, a shift, tolerance or budget that is no number of at least 0, or a step
            that is not positive.

    Cost: λmax to 1e-3, then one product with A and one with Aᵀ an iteration; about κ · log(1/tolerance) iterations.

    Source: Zhang et al. 2023 (I²F), section 3.1, "least square trick". Deviation: they state no step size and no
    criterion.

    Examples:
        >>> from gradleak.linalg import DenseOperator
        >>> matrix = DenseOperator(torch.tensor([[2.0], [0.0]], dtype=torch.float64))
        >>> right = torch.tensor([6.0, 5.0]).double()
        >>> found = least_squares_descent(matrix, right, generator=torch.Generator().manual_seed(0))
        >>> round(float(found.solution), 6)
        3.0
    """
    if step is not None:
        check_positive("step", step)
    check_count("max_iterations", max_iterations, least=0)
    if tuple(target.shape) != (factor.shape[0],):
        raise InputError(
            f"least_squares_descent: expected a right-hand side ({factor.shape[0]},), got {tuple(target.shape)}"
        )
    before = factor.matvecs
    projected = factor.adjoint_matmat(target[:, None])[:, 0]
    found = neumann_series(
        Gram(factor), projected, generator=generator, shift=shift, scale=step, tolerance=tolerance,
        max_terms=max_iterations,
    )  # fmt: skip
    return LinearSolution(
        solution=found.solution,
        residual=found.residual,
        iterations=found.iterations,
        matvecs=factor.matvecs - before,
        outcome=found.outcome,
        note=found.note.replace("the series", "the descent").replace("scale", "step").replace("terms", "iterations"),
    )

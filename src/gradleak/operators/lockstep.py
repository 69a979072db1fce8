"""The derivatives of the examples of a batch, each released by itself, computed side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.core import Batch, Exposure
from gradleak.operators.agreement import drawn_rows, same_product
from gradleak.operators.derivative_check import DerivativeCheck
from gradleak.operators.gradient_jacobian import DENSE_LIMIT, GradientJacobian, check_options
from gradleak.operators.kernels import differentiable_kernels
from gradleak.operators.linearization import BLOCK_COLUMNS, COPIES_A_COLUMN
from gradleak.results import InputError

# Columns of all examples of a group together. Measured on the MLP 12-32-16-3 (float64, one thread) for A of 64
# examples: 810 ms one by one, 83 ms with 96 columns a call, 29 ms with 192, 13 ms with 384, 21 ms with 768. A larger
# network fills a call with one example.
GROUP_COLUMNS = 6 * BLOCK_COLUMNS


def example_matrices(
    exposure: Exposure, *, dtype: torch.dtype = torch.float64, max_bytes: int = 2**30, lockstep: bool = True
) -> Iterator[Tensor | None]:
    """A (P, d) of each example, released by itself, or None where it is not computed in lockstep.

    Where several examples fit one block of columns (small inputs), their matrices are computed in one call, by JVPs
    under vmap over examples and columns. None stands for all examples where that does not pay, or where the model does
    not allow it; `example_operators` then computes each by itself.

    Args:
        exposure: a batch of independent examples that share the parameters.
        dtype: of all computations.
        max_bytes: memory budget of one group, roughly.
        lockstep: False for None everywhere.

    Raises:
        InputError: at the first example, for no exposure, or an invalid dtype or budget.

    Cost: d JVPs an example; for small networks dispatch is paid once a group.
    """
    if not isinstance(exposure, Exposure):
        raise InputError(f"expected an Exposure, got {type(exposure).__name__}")
    check_options(dtype, max_bytes)
    here = exposure.to(dtype)
    count, size = here.batch.size, here.batch.inputs[0].numel()
    a_column = COPIES_A_COLUMN * (here.objective.size + size) * here.batch.inputs.element_size()
    group = min(GROUP_COLUMNS // size, max_bytes // (a_column * size), count)
    if not lockstep or group < 2 or size > DENSE_LIMIT:
        group = 0
    start = 0
    while start < count:
        members = slice(start, start + max(group, 1))
        found = _together(here, members) if group else None
        if found is None:
            yield from [None] * (count - start)
            return
        yield from (matrix.T for matrix in found)
        start += group


def example_operators(
    exposure: Exposure,
    *,
    dtype: torch.dtype = torch.float64,
    max_bytes: int = 2**30,
    lockstep: bool = True,
    check: DerivativeCheck | None = None,
) -> Iterator[GradientJacobian]:
    """The operator A of each example, released by itself, in the order of the batch; see `example_matrices`.

    Args:
        exposure: a batch of independent examples that share the parameters.
        dtype: of all computations.
        max_bytes: memory budget of one group, and of each operator.
        lockstep: False to compute every operator by itself; the values are the same to round-off.
        check: of their derivative, where it was made already; else what the first of them finds serves the others.

    Raises:
        InputError: if the release of an example is not finite.
    """
    matrices = example_matrices(exposure, dtype=dtype, max_bytes=max_bytes, lockstep=lockstep)
    for index, matrix in enumerate(matrices):
        alone = replace(exposure, batch=exposure.batch.example(index))
        operator = GradientJacobian(alone, dtype=dtype, max_bytes=max_bytes, check=check)
        if matrix is not None:
            operator.hold(matrix)
        yield operator
        check = operator.shared_check


def _together(exposure: Exposure, members: slice) -> Tensor | None:
    """The transposed matrices (k, d, P) of some examples, or None if they cannot be computed under vmap."""
    batch, objective, release = exposure.batch, exposure.objective, exposure.release
    shape = (1, *batch.inputs.shape[1:])

    def column(inputs: Tensor, target: Tensor, tangent: Tensor) -> Tensor:
        def released(flat: Tensor) -> Tensor:
            single = Batch(flat.reshape(shape), target[None], batch.domain)
            return objective.flatten(release.mean(objective, objective.params, single))

        out: Tensor = torch.func.jvp(released, (inputs,), (tangent,))[1]
        return out

    columns = torch.func.vmap(column, in_dims=(None, None, 0), randomness="same")
    examples = torch.func.vmap(columns, in_dims=(0, 0, None), randomness="same")
    points = batch.inputs[members].flatten(1)
    identity = torch.eye(points.shape[1], dtype=points.dtype, device=points.device)
    try:
        with differentiable_kernels():
            out: Tensor = examples(points, batch.targets[members], identity).detach()
            probe = drawn_rows(1, points.shape[1], points)[0]
            alone = column(points[0], batch.targets[members][0], probe).detach()
        return out if same_product(probe @ out[0], alone) else None
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, ValueError, AssertionError):  # the last from inside of torch.func
        return None

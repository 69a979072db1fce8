"""AᵀA as preconditioned conjugate gradients see it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.residual_system import Cost
from gradleak.linalg import LinearOperator
from gradleak.operators import Linearization

Change = Callable[[Tensor], Tensor]


class ScaledNormal(LinearOperator):
    """BᵀAᵀA B (k, k), symmetric: AᵀA as conjugate gradients preconditioned by BBᵀ see it.

    Args:
        at: A, as products.
        into: B, from (k, c) to (n, c).
        back: Bᵀ, from (n, c) to (k, c).
        size: k.
        like: any tensor of the dtype and on the device.
        cost: where products are counted.
    """

    def __init__(self, at: Linearization, into: Change, back: Change, *, size: int, like: Tensor, cost: Cost) -> None:
        super().__init__((size, size), dtype=like.dtype, device=like.device)
        self._at = at
        self._into = into
        self._back = back
        self._cost = cost

    def _matmat(self, block: Tensor) -> Tensor:
        self._cost.spend(products=2 * block.shape[1])
        return self._back(self._at.normal(self._into(block).T.contiguous()).T)

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        return self._matmat(block)

"""Linear operators that are known by their products alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from gradleak.results import InputError


class LinearOperator(ABC):
    """A matrix of shape (m, n) that gives products with blocks of vectors.

    Authors write `_matmat` and `_adjoint_matmat`; the public methods check shapes and count.

    Attributes:
        shape: (m, n).
        dtype: of the matrix and of the vectors that it takes.
        device: where the products are computed.
        matvecs: how many columns were multiplied so far, by the matrix or its adjoint.
    """

    def __init__(self, shape: tuple[int, int], *, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.matvecs = 0

    @abstractmethod
    def _matmat(self, block: Tensor) -> Tensor:
        """A X for X of shape (n, k), as (m, k)."""

    @abstractmethod
    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        """Aᵀ U for U of shape (m, k), as (n, k)."""

    @final
    def matmat(self, block: Tensor) -> Tensor:
        """A X: the product with a block of k columns, (n, k) -> (m, k).

        Raises:
            InputError: for another shape.
        """
        self._check(block, self.shape[1], "matmat")
        self.matvecs += block.shape[1]
        return self._matmat(block)

    @final
    def adjoint_matmat(self, block: Tensor) -> Tensor:
        """Aᵀ U: the product of the adjoint with a block of k columns, (m, k) -> (n, k).

        Raises:
            InputError: for another shape.
        """
        self._check(block, self.shape[0], "adjoint_matmat")
        self.matvecs += block.shape[1]
        return self._adjoint_matmat(block)

    def normal(self, block: Tensor) -> Tensor:
        """AᵀA X: (n, k) -> (n, k), two products a column; overridden where A X need not be formed.

        Raises:
            InputError: for another shape.
        """
        return self.adjoint_matmat(self.matmat(block))

    def _check(self, block: Tensor, rows: int, name: str) -> None:
        if block.dim() != 2 or block.shape[0] != rows:
            raise InputError(
                f"{name}: expected a block of shape ({rows}, k), got {tuple(block.shape)}; "
                "a single vector needs a second axis: v[:, None]"
            )
        if not block.is_floating_point():
            raise InputError(f"{name}: expected floating point numbers, got {block.dtype}")


@final
class DenseOperator(LinearOperator):
    """A matrix that is held whole.

    Args:
        matrix: (m, n).

    Examples:
        >>> DenseOperator(torch.eye(2)).matmat(torch.ones(2, 1)).tolist()
        [[1.0], [1.0]]
    """

    def __init__(self, matrix: Tensor) -> None:
        if matrix.dim() != 2:
            raise InputError(f"DenseOperator: expected a matrix (m, n), got shape {tuple(matrix.shape)}")
        super().__init__((matrix.shape[0], matrix.shape[1]), dtype=matrix.dtype, device=matrix.device)
        self._matrix = matrix

    def _matmat(self, block: Tensor) -> Tensor:
        return self._matrix @ block

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        return self._matrix.T @ block


@final
class Gram(LinearOperator):
    """AᵀA (n, n) of an operator A (m, n), symmetric and positive semidefinite; one column costs two products.

    Args:
        factor: A.

    Examples:
        >>> Gram(DenseOperator(torch.tensor([[3.0, 4.0]]))).matmat(torch.eye(2)).tolist()
        [[9.0, 12.0], [12.0, 16.0]]
    """

    def __init__(self, factor: LinearOperator) -> None:
        size = factor.shape[1]
        super().__init__((size, size), dtype=factor.dtype, device=factor.device)
        self._factor = factor

    def _matmat(self, block: Tensor) -> Tensor:
        return self._factor.normal(block)

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        return self._matmat(block)

"""Linear operators, and their dense spectra at small size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import final

import scipy
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from gradleak.core.process import ONE_CALL
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """The eigenvalues and eigenvectors of a symmetric positive semidefinite matrix.

    Attributes:
        values: (n,), ascending; round-off below zero is set to zero.
        vectors: (n, n), column i belongs to value i.
        of_factor: whether they are squared singular values of a factor, which carry less round-off.
    """

    values: Tensor
    vectors: Tensor
    of_factor: bool = False

    @property
    def threshold(self) -> float:
        """The bound n · eps · λmax: eigenvalues up to it count as zero."""
        return zero_threshold(self.values)

    @property
    def rank(self) -> int:
        """The number of eigenvalues above the threshold."""
        return int((self.values > self.threshold).sum())


def relative_round_off(values: Tensor, smallest: float, *, of_factor: bool = False) -> float:
    """About the relative error that round-off leaves in an eigenvalue of AᵀA.

    AᵀA has the squared condition of A: its small eigenvalues carry the round-off of the largest, eps · λmax/λ. Squared
    singular values of A itself carry 2 · eps · √(λmax/λ).

    Args:
        values: all eigenvalues (n,), ascending.
        smallest: the eigenvalue λ in question, positive.
        of_factor: whether they came from A.
    """
    condition = float(values[-1]) / smallest
    eps = torch.finfo(values.dtype).eps
    return 2.0 * eps * condition**0.5 if of_factor else eps * condition


def zero_threshold(values: Tensor) -> float:
    """The bound n · eps · λmax for ascending eigenvalues (n,): those up to it count as zero."""
    return values.numel() * torch.finfo(values.dtype).eps * float(values[-1])


def dense_spectrum(matrix: Tensor) -> Spectrum:
    """All eigenvalues, ascending, and eigenvectors of a symmetric positive semidefinite matrix.

    Args:
        matrix: (n, n), n at least 1; only its lower triangle is read.

    Raises:
        InputError: if it is not square, or not finite.

    Cost: about 9 n³ floating point operations; 16 n² bytes in float64 besides the matrix.

    Examples:
        >>> dense_spectrum(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).values.tolist()
        [1.0, 3.0]
    """
    _check(matrix, "dense_spectrum")
    if _by_scipy(matrix):
        # Divide and conquer of SciPy's LAPACK: 25 % faster than torch's on the CPUs that were measured.
        with _threads_of_torch():
            pair = scipy.linalg.eigh(matrix.numpy(), driver="evd", check_finite=False)
        values, vectors = torch.from_numpy(pair[0]), torch.from_numpy(pair[1])
    else:
        values, vectors = torch.linalg.eigh(matrix)
    return Spectrum(values=values.clamp_min(0.0), vectors=vectors)


def dense_eigenvalues(matrix: Tensor) -> Tensor:
    """All eigenvalues, ascending, of a symmetric positive semidefinite matrix, without vectors.

    They agree with those of `dense_spectrum` to round-off of the largest one, at less than half of the cost.

    Args:
        matrix: (n, n), n at least 1; only its lower triangle is read.

    Raises:
        InputError: if it is not square, or not finite.

    Cost: about 4/3 n³ floating point operations.
    """
    _check(matrix, "dense_eigenvalues")
    if _by_scipy(matrix):
        with _threads_of_torch():
            found = scipy.linalg.eigh(matrix.numpy(), driver="evr", eigvals_only=True, check_finite=False)
        values = torch.from_numpy(found)
    else:
        values = torch.linalg.eigvalsh(matrix)
    return values.clamp_min(0.0)


def factor_spectrum(matrix: Tensor) -> Spectrum:
    """All eigenvalues of AᵀA, ascending, and eigenvectors, from the singular values of A (m, n) itself.

    Small eigenvalues have twice as many right digits as those of `dense_spectrum(dense_gram(A))`.

    Args:
        matrix: A, real.

    Raises:
        InputError: if it is not a matrix with columns, or not finite.

    Cost: a QR factorization, 2 m n² floating point operations, and the singular values of an (n, n) matrix; a copy of A.

    Examples:
        >>> factor_spectrum(torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))).values.sqrt().tolist()
        [1e-09, 1.0]
    """
    if matrix.dim() != 2 or matrix.shape[1] == 0:
        raise InputError(f"factor_spectrum: expected a matrix with columns, got shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("factor_spectrum: expected finite entries, got NaN or infinity")
    rows, columns = matrix.shape
    small = torch.linalg.qr(matrix, mode="r").R if rows > columns else matrix
    _, singular, vectors = torch.linalg.svd(small, full_matrices=True)
    values = torch.zeros(columns, dtype=matrix.dtype, device=matrix.device)
    values[: len(singular)] = singular.square()
    return Spectrum(values=values.flip(0), vectors=vectors.T.flip(1), of_factor=True)


def dense_gram(matrix: Tensor) -> Tensor:
    """AᵀA (n, n) of a matrix A (m, n), exactly symmetric.

    On the CPU by the symmetric BLAS routine, which computes one triangle only: for (17,038, 784) in float64 it takes
    less than half of the time of `A.T @ A`. It is free of copies if A is the transpose of a contiguous tensor.

    Args:
        matrix: (m, n), real.
    """
    if _by_scipy(matrix) and matrix.numel() > 0:
        rows = matrix.detach().T.contiguous().numpy()
        with _threads_of_torch():
            lower = torch.from_numpy(scipy.linalg.blas.dsyrk(1.0, rows.T, trans=1, lower=1))
        strict = torch.tril(lower, -1)
        return lower.tril() + strict.T
    product = matrix.T @ matrix
    return (product + product.T) / 2


class GramSum:
    """AᵀA (n, n) of a matrix A that comes by blocks of rows, one triangle at a time; none of the blocks is kept.

    Args:
        size: n.
        like: a tensor of the dtype and device of A.

    Examples:
        >>> gram = GramSum(2, torch.empty(0, dtype=torch.float64))
        >>> gram.add(torch.tensor([[1.0], [2.0]], dtype=torch.float64))
        >>> gram.total().tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self.size = size
        self._sum = like.new_zeros(size, size)
        self._half: Tensor | None = None

    def add(self, block: Tensor) -> None:
        """Add the rows of a block, given as its transpose (n, k)."""
        block = block.detach()
        if not _by_scipy(block):
            self._sum.addmm_(block, block.T)
        elif block.numel() > 0:
            rows, into = block.contiguous().numpy(), self._sum.numpy()
            with _threads_of_torch():
                scipy.linalg.blas.dsyrk(1.0, rows.T, beta=1.0, c=into.T, trans=1, lower=1, overwrite_c=1)

    def add_cross(self, left: Tensor, right: Tensor) -> None:
        """Add L Rᵀ + R Lᵀ for L and R (n, k)."""
        if self._half is None:
            self._half = left @ right.T
        else:
            self._half.addmm_(left, right.T)

    def total(self) -> Tensor:
        """The sum, exactly symmetric."""
        # In row-major order the routine's lower triangle is the upper one.
        if self._half is not None:
            self._sum += self._half
            self._sum += self._half.T
            self._half = None
        upper = torch.triu(self._sum)
        return upper + torch.triu(self._sum, 1).T


def _check(matrix: Tensor, name: str) -> None:
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InputError(f"{name}: expected a square matrix, got shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise InputError(f"{name}: expected finite entries, got NaN or infinity")


def _by_scipy(matrix: Tensor) -> bool:
    return matrix.device.type == "cpu" and matrix.dtype == torch.float64


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def _threads_of_torch() -> Iterator[None]:
    """SciPy's BLAS with as many threads as torch has, so that one thread means one thread, and the same bits."""
    with ONE_CALL, _controller().limit(limits=torch.get_num_threads(), user_api="blas"):
        yield

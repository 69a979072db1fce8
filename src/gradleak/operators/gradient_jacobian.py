"""The derivative of what leaves the client with respect to the private input."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TypedDict, final

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.linalg import (
    Gram,
    LinearOperator,
    Spectrum,
    TopEigenpairs,
    block_lanczos,
    dense_eigenvalues,
    dense_gram,
    dense_spectrum,
    zero_threshold,
)
from gradleak.operators.linearization import Linearization, Route
from gradleak.results import InputError, UnsupportedError

# Up to here a whole spectrum takes seconds to minutes on one core and at most 128 MiB.
DENSE_LIMIT = 4096


class _Options(TypedDict):
    max_bytes: int
    chunk: int | None
    route: Route | None


@final
class GradientJacobian(LinearOperator):
    """A = ∂g/∂x, shape (P, d): how the released mean g changes with the private batch x, at the truth.

    x stacks all examples of the batch (d = b · example size), g all shared tensors in the order of
    `objective.params`, each row-major. Defenses are part of g. Releases that differ by their noise alone share A, so
    one operator serves all noise levels. The I²F paper writes J = Aᵀ.

    Products run by blocks of JVPs and VJPs within the memory budget. `dense`, `gram` and `spectrum` are computed once
    and kept (`gram` does not keep A). Where A does not fit the budget, the Gram matrix is built from column blocks,
    Aᵀ(A E), and A is never held.

    Args:
        exposure: objective, batch and release; read, never changed.
        dtype: of all computations; float64 unless you know why not.
        max_bytes: memory budget of A itself and, separately, of one block of products (roughly).
        chunk: columns a block, or None to derive it from the budget.
        route: the only derivative route to use, or None for the first that the model supports.

    Raises:
        InputError: if g is not finite at the truth.
        UnsupportedError: at the first product, if the model cannot be differentiated by any route.

    Cost: one plain gradient on construction; A takes about 0.5 plain gradients a column on a small network.

    Source: Zhang et al. 2023 (I²F), section 3.1, whose J is Aᵀ.
    """

    def __init__(
        self,
        exposure: Exposure,
        *,
        dtype: torch.dtype = torch.float64,
        max_bytes: int = 2**30,
        chunk: int | None = None,
        route: Route | None = None,
    ) -> None:
        if max_bytes < 1 or (chunk is not None and chunk < 1):
            raise InputError(f"GradientJacobian: expected max_bytes >= 1 and chunk >= 1, got {max_bytes} and {chunk}")
        self.exposure = exposure.to(dtype)
        self._options: _Options = {"max_bytes": max_bytes, "chunk": chunk, "route": route}
        point = self.exposure.inputs
        self._at = Linearization(self.exposure.mean, point, **self._options)
        if not bool(torch.isfinite(self._at.value).all()):
            raise InputError(
                "GradientJacobian: expected a finite released mean at the private batch, got NaN or infinity; "
                "check the model's parameters and the data"
            )
        super().__init__((self._at.value.numel(), point.numel()), dtype=dtype, device=point.device)
        self._max_bytes = max_bytes
        self._dense: Tensor | None = None

    def at(self, inputs: Tensor) -> GradientJacobian:
        """The same derivative at other inputs (d,): a new operator with nothing computed yet."""
        batch = self.exposure.batch.with_inputs(inputs.detach().reshape(self.exposure.batch.inputs.shape))
        return GradientJacobian(replace(self.exposure, batch=batch), dtype=self.dtype, **self._options)

    @property
    def value(self) -> Tensor:
        """g(x) at the truth, (P,)."""
        return self._at.value

    @property
    def route(self) -> str:
        """How block products are computed, for the record: for instance "jvp(vmap)"."""
        return self._at.route.value

    @property
    def is_dense(self) -> bool:
        """Whether d is small enough (4096) for AᵀA as a matrix and its whole spectrum."""
        return self.shape[1] <= DENSE_LIMIT

    @property
    def fits(self) -> bool:
        """Whether A itself stays within the memory budget."""
        return self.shape[0] * self.shape[1] * self.value.element_size() <= self._max_bytes

    def dense(self) -> Tensor:
        """A as a tensor (P, d), kept for later products.

        Raises:
            UnsupportedError: if it does not fit the memory budget.
        """
        if self._dense is None:
            if not self.fits:
                need = self.shape[0] * self.shape[1] * self.value.element_size()
                raise UnsupportedError(
                    f"A of shape {self.shape} needs {need} bytes, the budget is max_bytes={self._max_bytes}; "
                    "raise it, or use gram(), which never holds A"
                )
            self._dense = self._columns()
        return self._dense

    def gram(self) -> Tensor:
        """AᵀA, (d, d), symmetric; computed once.

        Raises:
            UnsupportedError: if the derivative is not finite.

        Cost: d JVPs and P·d² multiplications where A fits the budget, else d JVPs and d VJPs.
        """
        return self._gram

    @cached_property
    def _gram(self) -> Tensor:
        if self._dense is not None:
            gram = dense_gram(self._dense)
        else:
            # A is let go again: with the Gram matrix at hand, single products are cheaper on the kept graph.
            gram = dense_gram(self._columns()) if self.fits else self._gram_by_blocks()
        if not bool(torch.isfinite(gram).all()):
            raise UnsupportedError(
                "expected a finite derivative of the release at the private batch, got NaN or infinity; the loss is "
                "not differentiable there (a root or a norm at zero, for instance)"
            )
        return gram

    @cached_property
    def spectrum(self) -> Spectrum:
        """The eigenvalues and eigenvectors of AᵀA, computed once."""
        return dense_spectrum(self.gram())

    def gram_spectrum(self) -> Tensor:
        """The eigenvalues of AᵀA, (d,), ascending; computed once.

        Cost: that of `gram` and the eigenvalues of a (d, d) matrix: for d = 784 about 25 plain gradients of a small
        network, or nothing if `spectrum` is there.
        """
        return self._eigenvalues

    @cached_property
    def _eigenvalues(self) -> Tensor:
        return self.spectrum.values if "spectrum" in self.__dict__ else dense_eigenvalues(self.gram())

    @property
    def rank(self) -> int:
        """How many eigenvalues of AᵀA exceed d · eps · λmax."""
        values = self.gram_spectrum()
        return int((values > zero_threshold(values)).sum())

    @property
    def has_spectrum(self) -> bool:
        """Whether the eigenvalues were computed already, so that using them costs nothing."""
        return "spectrum" in self.__dict__ or "_eigenvalues" in self.__dict__

    def largest_eigenvalue(
        self,
        *,
        count: int = 1,
        tolerance: float = 1e-9,
        max_matvecs: int = 4000,
        generator: torch.Generator | None = None,
    ) -> TopEigenpairs:
        """The largest eigenvalue of AᵀA by block Lanczos, with vector, residual and multiplicity.

        Args:
            count: how many eigenvalues.
            tolerance: relative residual.
            max_matvecs: budget of products with AᵀA, each a JVP and a VJP.
            generator: of the start vectors; None is a fresh one with seed 0.
        """
        return block_lanczos(
            Gram(self),
            count,
            generator=generator or torch.Generator().manual_seed(0),
            tolerance=tolerance,
            max_matvecs=max_matvecs,
        )

    def _matmat(self, block: Tensor) -> Tensor:
        if self._dense is not None:
            return self._dense @ block
        return self._at.push(block.T.contiguous()).T

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        if self._dense is not None:
            return self._dense.T @ block
        return self._at.pull(block.T.contiguous()).T

    def _columns(self) -> Tensor:
        self.matvecs += self.shape[1]
        return self._at.push(torch.eye(self.shape[1], dtype=self.dtype, device=self.device)).T

    def _gram_by_blocks(self) -> Tensor:
        size = self.shape[1]
        gram = torch.empty(size, size, dtype=self.dtype, device=self.device)
        identity = torch.eye(size, dtype=self.dtype, device=self.device)
        for start in range(0, size, self._at.chunk):
            columns = slice(start, start + self._at.chunk)
            gram[:, columns] = self.adjoint_matmat(self.matmat(identity[:, columns]))
        return (gram + gram.T) / 2

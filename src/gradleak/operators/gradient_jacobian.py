"""The derivative of what leaves the client with respect to the private input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TypedDict, final

import torch
from torch import Tensor

from gradleak.core import Exposure, derive_generator, out_of_scale
from gradleak.core.module_copy import first_line
from gradleak.linalg import (
    Gram,
    LinearOperator,
    Spectrum,
    TopEigenpairs,
    block_lanczos,
    dense_eigenvalues,
    dense_gram,
    dense_spectrum,
    factor_spectrum,
    relative_round_off,
    zero_threshold,
)
from gradleak.operators.agreement import drawn_rows
from gradleak.operators.derivative_check import DerivativeCheck, check_at_truth, check_derivative
from gradleak.operators.ghost_gram import GhostDerivative, ghost_derivative
from gradleak.operators.linearization import Linearization
from gradleak.operators.once_differentiable import refuse_once_differentiable
from gradleak.operators.routes import AdjointRoute, Route
from gradleak.results import GradleakError, InputError, Outcome, UnsupportedError, check_count

# Beyond this relative round-off in AᵀA its spectrum is taken from A, where that is held or fits the budget.
SIX_DIGITS = 1e-6
# Up to here a whole spectrum takes seconds to minutes on one core and at most 128 MiB.
DENSE_LIMIT = 4096

# What models and losses say of data that they do not take.
_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError)


class _Options(TypedDict):
    max_bytes: int
    chunk: int | None
    route: Route | None
    adjoint: AdjointRoute | None


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
        dtype: of all computations, float32 or float64; float64 unless you know why not.
        max_bytes: memory budget of A itself and, separately, of one block of products (roughly).
        chunk: columns a block, or None to derive it from the budget.
        route: the only route of A v to use, or None for the first that the model supports.
        adjoint: the only route of Aᵀu to use, or None for the kept graph where it fits the budget.
        check: the check of this derivative, where it was made already; it holds for every batch of the same release.

    Raises:
        InputError: for an invalid dtype, budget, chunk or route, if g is not finite at the truth, or if the batch is
            none that the model and its loss take.
        UnsupportedError: if torch.func cannot differentiate the model; at the first product, if two evaluations of g
            differ, or the model cannot be differentiated by any route or says that it has no second derivative.

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
        adjoint: AdjointRoute | None = None,
        check: DerivativeCheck | None = None,
    ) -> None:
        if not isinstance(exposure, Exposure):
            raise InputError(f"GradientJacobian: expected an Exposure, got {type(exposure).__name__}")
        check_options(dtype, max_bytes, chunk)
        if not isinstance(route, Route | None) or not isinstance(adjoint, AdjointRoute | None):
            raise InputError(
                f"GradientJacobian: expected a Route and an AdjointRoute or None, for instance Route.JVP_VMAP, got "
                f"{route!r} and {adjoint!r}"
            )
        self.exposure = exposure.to(dtype)
        self._options: _Options = {"max_bytes": max_bytes, "chunk": chunk, "route": route, "adjoint": adjoint}
        point = self.exposure.inputs.detach()
        try:
            self._at = Linearization.of(self.exposure, **self._options)
        except _REFUSALS as error:
            exposure.objective.check(exposure.batch)  # says what is wrong with the data, if it is they
            if isinstance(error, GradleakError):
                raise
            raise UnsupportedError(
                f"expected a model that torch.func can differentiate, got one that stops with {first_line(error)!r}; take "
                "out of its forward what leaves torch or asks for memory (numpy, packed sequences)"
            ) from error
        self.exposure.objective.check_pairs(self.exposure.batch)
        if not bool(torch.isfinite(self._at.value).all()):
            raise InputError(
                "GradientJacobian: expected a finite released mean at the private batch, got NaN or infinity; "
                f"{self.out_of_scale or 'check the parameters of the model and the data'}"
            )
        super().__init__((self._at.value.numel(), point.numel()), dtype=dtype, device=point.device)
        self._max_bytes = max_bytes
        self._dense: Tensor | None = None
        self._ghost_route: str | None = None
        self.shared_check = check

    def at(self, inputs: Tensor) -> GradientJacobian:
        """The same derivative at other inputs (d,): a new operator with nothing computed yet.

        Raises:
            InputError: for another number of inputs.
        """
        if inputs.numel() != self.shape[1]:
            raise InputError(f"at: expected {self.shape[1]} inputs, got {inputs.numel()}")
        batch = self.exposure.batch.with_inputs(inputs.detach().reshape(self.exposure.batch.inputs.shape))
        there = replace(self.exposure, batch=batch)
        return GradientJacobian(there, dtype=self.dtype, **self._options, check=self.shared_check)

    @cached_property
    def check(self) -> DerivativeCheck:
        """The check whether A is what differences of the released mean say, beside the private batch and at it.

        `shared_check` holds the first part from then on, for operators of other batches of the same release.

        Cost: that of `check_derivative`, and of `check_at_truth` with a product, once an operator; the latter alone where
        the operator was given the check.
        """
        if self.shared_check is None:
            self.shared_check = check_derivative(
                self.exposure,
                generator=derive_generator(0, "derivative check"),
                dtype=self.dtype,
                route=self._options["route"],
                adjoint=self._options["adjoint"],
                max_bytes=self._max_bytes,
            )
        found = self.shared_check
        if found.outcome not in (Outcome.CONVERGED, Outcome.NOT_INFORMATIVE):
            return found
        direction, product = self._probe()
        if not bool(torch.isfinite(product).all()):
            return DerivativeCheck(
                outcome=Outcome.NOT_FINITE,
                route=found.route,
                note="the derivative of the release is infinite or NaN at the private batch (a root or a norm at zero, for "
                "instance)",
            )
        return check_at_truth(self.exposure, self.value, direction, product, found)

    def _probe(self) -> tuple[Tensor, Tensor]:
        """A drawn direction (d,) and A times it, from A where it is held."""
        if self._dense is None:
            return self._at.probe()
        direction = drawn_rows(1, self.shape[1], self._dense)[0]
        return direction, self._dense @ direction

    @property
    def value(self) -> Tensor:
        """g(x) at the truth, (P,)."""
        return self._at.value

    @property
    def route(self) -> str:
        """Route by which products were computed so far, for the record; before the first one, how blocks would be.

        For instance "reverse_over_reverse(vmap), double_backward, math attention"; or how AᵀA was, by the ghost route.
        """
        if self._ghost_route is not None:
            return self._ghost_route
        return ", ".join(self._at.routes_used) or self._at.route.value

    @cached_property
    def out_of_scale(self) -> str:
        """Numbers of the model that keep anything from coming through the model, or "": see `gradleak.core.out_of_scale`."""
        return out_of_scale(self.exposure.objective, self.exposure.batch.inputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model for a reader of the record, or nothing: tensors released as zeros, hooks ..."""
        objective = self.exposure.objective
        zeros = [name for name, tensor in objective.unflatten(self.value).items() if not bool(tensor.any())]
        notes = list(objective.notes)
        if objective.draws(self.exposure.batch.inputs, self.exposure.batch.targets):
            drawn = f"one of many releases: {', '.join(objective.random_layers) or 'model or loss'} draw the masks of"
            notes.append(f"{drawn} mask_seed={objective.mask_seed}")
        if self.out_of_scale:
            notes.append(self.out_of_scale)
        if zeros:
            why = "what was just said" if self.out_of_scale else "unused by the loss, or dead units"
            notes.append(f"released as zeros ({why}): {', '.join(zeros)}")
        if objective.frozen:
            notes.append(f"frozen, not released: {', '.join(objective.frozen)}")
        if objective.tied:
            notes.append("tied, released once: " + ", ".join(f"{k} = {v}" for k, v in objective.tied.items()))
        return (*notes, *self._at.exchanged_kernels)

    @property
    def is_dense(self) -> bool:
        """True if d is small enough (4096) for AᵀA as a matrix and its whole spectrum."""
        return self.shape[1] <= DENSE_LIMIT

    @property
    def max_bytes(self) -> int:
        """The memory budget."""
        return self._max_bytes

    @property
    def fits(self) -> bool:
        """True if A itself stays within the memory budget."""
        return self.shape[0] * self.shape[1] * self.value.element_size() <= self._max_bytes

    @property
    def is_at_hand(self) -> bool:
        """True if A is held, or fits the budget."""
        return self._dense is not None or self.fits

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

    def columns(self) -> Tensor:
        """A as a tensor (P, d): the one that is held, or computed and not kept.

        Raises:
            UnsupportedError: if it does not fit the memory budget.
        """
        return self._columns() if self._dense is None and self.fits else self.dense()

    def hold(self, matrix: Tensor) -> None:
        """Use A (P, d) that was computed elsewhere, together with that of other examples for instance.

        Raises:
            InputError: for another shape.
        """
        if tuple(matrix.shape) != self.shape:
            raise InputError(f"hold: expected A of shape {self.shape}, got {tuple(matrix.shape)}")
        self._dense = matrix.detach().to(self.dtype)

    def column_blocks(self) -> Iterator[Tensor]:
        """A by blocks of columns (P, k), from left to right, within the memory budget; A is not kept.

        Cost: d JVPs in blocks, nothing where A is held.
        """
        if self._dense is not None:
            yield from torch.split(self._dense, self._at.chunk, dim=1)
            return
        for block in self._unit_blocks(self.shape[1]):
            yield self.matmat(block)

    def row_blocks(self) -> Iterator[Tensor]:
        """A by blocks of rows (k, d), from top to bottom, within the memory budget; A is not kept.

        Cost: P VJPs in blocks, nothing where A is held.
        """
        if self._dense is not None:
            yield from torch.split(self._dense, self._at.chunk, dim=0)
            return
        for block in self._unit_blocks(self.shape[0]):
            yield self.adjoint_matmat(block).T

    def _unit_blocks(self, size: int) -> Iterator[Tensor]:
        """The identity (size, size) by blocks of columns, never whole."""
        for start in range(0, size, self._at.chunk):
            block = torch.zeros(size, min(self._at.chunk, size - start), dtype=self.dtype, device=self.device)
            block[start : start + block.shape[1]].fill_diagonal_(1.0)
            yield block

    def gram(self) -> Tensor:
        """AᵀA, (d, d), symmetric; computed once.

        Raises:
            UnsupportedError: if the derivative is not finite.

        Cost: d JVPs and P·d² multiplications where A fits the budget, else d JVPs and d VJPs. Much less for plain
        gradients of networks whose parameters are mostly linear layers (`ghost_gram`).
        """
        return self._gram

    @cached_property
    def _gram(self) -> Tensor:
        if self._dense is not None:
            gram = dense_gram(self._dense)
        elif (ghost := self._by_layers(GhostDerivative.gram)) is not None:
            self.matvecs += self.shape[1]
            gram = ghost
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
        """The eigenvalues and eigenvectors of AᵀA, computed once.

        Where round-off in AᵀA may change the smallest of them by more than 1e-6 of itself and A is held or fits the budget,
        they are those of A's singular values (`factor_spectrum`).
        """
        found = dense_spectrum(self.gram())
        return factor_spectrum(self.columns()) if self._is_ill_conditioned(found.values) else found

    def gram_spectrum(self) -> Tensor:
        """The eigenvalues of AᵀA, (d,), ascending; computed once.

        Cost: that of `gram` and the eigenvalues of a (d, d) matrix: for d = 784 about 25 plain gradients of a small
        network, or nothing if `spectrum` is there; more where AᵀA is ill-conditioned (see `spectrum`).
        """
        return self._eigenvalues

    @cached_property
    def _eigenvalues(self) -> Tensor:
        if "spectrum" in self.__dict__:
            return self.spectrum.values
        found = dense_eigenvalues(self.gram())
        return self.spectrum.values if self._is_ill_conditioned(found) else found

    @property
    def eigenvalues_are_of_factor(self) -> bool:
        """True if the eigenvalues of AᵀA are squared singular values of A, for they are small."""
        self.gram_spectrum()
        return "spectrum" in self.__dict__ and self.spectrum.of_factor

    def _is_ill_conditioned(self, values: Tensor) -> bool:
        """True if A itself would give better eigenvalues than AᵀA gave, and is available."""
        kept = values[values > zero_threshold(values)]
        return self.is_at_hand and len(kept) > 0 and relative_round_off(values, float(kept[0])) > SIX_DIGITS

    @property
    def rank(self) -> int:
        """Number of eigenvalues of AᵀA that exceed d · eps · λmax."""
        values = self.gram_spectrum()
        return int((values > zero_threshold(values)).sum())

    @property
    def has_spectrum(self) -> bool:
        """True if the eigenvalues were computed already, so that using them costs nothing."""
        return "spectrum" in self.__dict__ or "_eigenvalues" in self.__dict__

    def largest_eigenvalue(
        self,
        *,
        count: int = 1,
        tolerance: float = 1e-9,
        max_matvecs: int = 4000,
        generator: torch.Generator | None = None,
        certify: bool = True,
    ) -> TopEigenpairs:
        """The largest eigenvalue of AᵀA by block Lanczos, with vector, residual and multiplicity.

        Args:
            count: how many eigenvalues.
            tolerance: relative residual; with `certify=False`, the relative error of the value as Lanczos estimates it.
            max_matvecs: budget of products with AᵀA, each a JVP and a VJP.
            generator: of the start vectors; None is a fresh one with seed 0.
            certify: False for a single vector: a third of the products on large networks, but copies of a repeated
                eigenvalue are not looked for, and the error is an estimate.
        """
        # Aᵀg, the ascent direction of ‖g‖²/2, halves the iterations on ResNet-18.
        start = None if certify else self.adjoint_matmat(self.value[:, None])[:, 0]
        return block_lanczos(
            Gram(self),
            count,
            generator=generator or torch.Generator().manual_seed(0),
            block=4 if certify else 1,
            tolerance=tolerance,
            max_matvecs=max_matvecs,
            certify=certify,
            start=start,
        )

    def normal(self, block: Tensor) -> Tensor:
        """AᵀA X, (d, k) -> (d, k), without A X where the graph of the loss is kept; counts as two products a column."""
        self._check(block, self.shape[1], "normal")
        self.matvecs += 2 * block.shape[1]
        if self._dense is not None:
            return self._dense.T @ (self._dense @ block)
        refuse_once_differentiable(self.exposure)
        return self._at.normal(block.T.contiguous()).T

    def _matmat(self, block: Tensor) -> Tensor:
        if self._dense is not None:
            return self._dense @ block
        refuse_once_differentiable(self.exposure)
        return self._at.push(block.T.contiguous()).T

    def _adjoint_matmat(self, block: Tensor) -> Tensor:
        if self._dense is not None:
            return self._dense.T @ block
        refuse_once_differentiable(self.exposure)
        return self._at.pull(block.T.contiguous()).T

    def _columns(self) -> Tensor:
        self.matvecs += self.shape[1]
        found = self._by_layers(GhostDerivative.columns)
        if found is None:
            found = self._at.push(torch.eye(self.shape[1], dtype=self.dtype, device=self.device))
        return found.T

    def _by_layers(self, compute: Callable[[GhostDerivative], Tensor | None]) -> Tensor | None:
        """A or AᵀA without gradients of the weights of layers, where that applies and pays; a named route is obeyed instead."""
        refuse_once_differentiable(self.exposure)
        if self._options["route"] is not None:
            return None
        ghost = ghost_derivative(self._at, max_bytes=self._max_bytes, chunk=self._options["chunk"])
        found = None if ghost is None else compute(ghost)
        if ghost is not None and found is not None:
            self._ghost_route = ghost.route
        return found

    def _gram_by_blocks(self) -> Tensor:
        size = self.shape[1]
        gram = torch.empty(size, size, dtype=self.dtype, device=self.device)
        identity = torch.eye(size, dtype=self.dtype, device=self.device)
        for start in range(0, size, self._at.chunk):
            columns = slice(start, start + self._at.chunk)
            gram[:, columns] = self.normal(identity[:, columns])
        return (gram + gram.T) / 2


def check_options(dtype: torch.dtype, max_bytes: int, chunk: int | None = None) -> None:
    """Refuse a dtype without linear algebra (half precisions, integers), or a budget or chunk that is no count.

    Raises:
        InputError: naming the option.
    """
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"dtype: expected torch.float64 or torch.float32, got {dtype}")
    check_count("max_bytes", max_bytes)
    if chunk is not None:
        check_count("chunk", chunk)

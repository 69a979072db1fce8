"""Derivatives of a vector function at a point, by the cheapest route that the function allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.core.module_copy import first_line
from gradleak.operators.agreement import REFUSALS, are_adjoint, batching_rules_only, drawn_rows, same_product
from gradleak.operators.kernels import KernelWatch, differentiable_kernels
from gradleak.operators.mixed_derivative import MixedDerivative
from gradleak.operators.pullback import Function, pullback
from gradleak.operators.routes import AdjointRoute, Route
from gradleak.results import UnsupportedError

# Columns a block. Measured on the 28x28 LeNet (P = 17,038, float64, one thread) for all of A, in plain gradients:
# 740 with 8, 520 with 16, 420 with 32, 390 with 64, 460 with 98, 500 with 128 columns: small blocks pay for
# dispatch, large ones leave the cache and fault in fresh pages.
BLOCK_COLUMNS = 64
# Up to here the kept graph wins (1.1 to 1.3 plain gradients a vector on the same LeNet; a fresh JVP costs 3.6).
FEW_COLUMNS = 4
# Larger networks have no use for the kept graph of a double VJP: on ResNet-18 24 plain gradients a vector, a JVP 5.
FEW_ENTRIES = 200_000
# A vmapped column holds its tangents in every layer, the output and its concatenation: a rough count of copies.
COPIES_A_COLUMN = 8

_ANOTHER = "torch gives another product for a block than for a vector by itself"


@dataclass(frozen=True)
class _Blocks:
    """Rows a call under vmap."""

    rows: int

    def of(self, block: Tensor) -> Iterator[Tensor]:
        # Equal pieces: 784 rows as 13 pieces of 60 or 61, not as 12 of 64 and a rest of 16.
        pieces = -(-block.shape[0] // self.rows)
        yield from block.tensor_split(max(1, pieces))


class Linearization:
    """The derivative of `function` at `point`: x + t -> f(x) + A t, with A of shape (P, n), never stored.

    `push` gives A t for a block of tangents, `pull` gives Aᵀu for a block of cotangents, `normal` gives AᵀA t. The
    block route is the first `Route` that the function supports: a network whose layers have no forward derivative or no
    batching rule gets a slower route with the same value. Kernels without second derivatives are exchanged
    (`differentiable_kernels`); `routes_used` says by what.

    Args:
        function: maps (n,) to (P,), pure.
        point: (n,), the place of the derivative.
        chunk: rows of a block computed at once, or None to derive it from `max_bytes`.
        max_bytes: memory that one block may take, roughly; a graph above it is not kept.
        route: the only route to try, or None for the first that works.
        adjoint: the only route of `pull`, or None for the kept graph, and forward over reverse where it exceeds
            `max_bytes`.
        mixed: `function` as a mixed derivative, where it is one; it is checked against the value of `function`.

    Cost: a row of a block costs about half a plain gradient where the function is a gradient, a single vector one to
    four. The graph of one evaluation is kept for single vectors.

    Raises:
        UnsupportedError: if no route works; it lists what each of them said.
    """

    def __init__(
        self,
        function: Function,
        point: Tensor,
        *,
        chunk: int | None = None,
        max_bytes: int = 2**30,
        route: Route | None = None,
        adjoint: AdjointRoute | None = None,
        mixed: MixedDerivative | None = None,
    ) -> None:
        self._function = function
        self.point = point.detach()
        watch = KernelWatch()
        with differentiable_kernels(), watch, torch.no_grad():
            self.value: Tensor = function(self.point).detach()
        self.exchanged_kernels: tuple[str, ...] = watch.exchanged
        if chunk is None:
            per_row = COPIES_A_COLUMN * (self.value.numel() + point.numel()) * point.element_size()
            chunk = max(1, min(BLOCK_COLUMNS, max_bytes // per_row))
        self.chunk = chunk
        self._max_bytes = max_bytes
        self._allowed = tuple(r for r in Route if mixed or not r.is_mixed) if route is None else (route,)
        self._adjoint = adjoint
        self.mixed = mixed
        self._used: dict[str, None] = {}
        self._reasons: dict[Route, str] = {}
        self._route: Route | None = None
        self._pull_by_vmap: bool | None = None
        self._push_few: bool | None = None if route is None else False
        self._pull_kept: Function | None = None
        self._push_kept: Function | None = None
        self._forward_works: bool | None = None
        self._tried: set[Route] = set()
        self._objections: dict[tuple[Route, bool], str] = {}
        self._symmetric: bool | None = None
        self._repeats = False

    @classmethod
    def of(
        cls,
        exposure: Exposure,
        *,
        max_bytes: int = 2**30,
        chunk: int | None = None,
        route: Route | None = None,
        adjoint: AdjointRoute | None = None,
    ) -> Linearization:
        """The derivative A of the released mean of an exposure at its batch."""
        return cls(
            exposure.mean,
            exposure.inputs,
            mixed=MixedDerivative.of(exposure),
            max_bytes=max_bytes,
            chunk=chunk,
            route=route,
            adjoint=adjoint,
        )

    @property
    def route(self) -> Route:
        """The route of `push` for blocks; the first call tries them out on one vector."""
        if self._route is None:
            found = next((route for route in self._allowed if self._supports(route)), None)
            if found is None:
                said = "; ".join(f"{route.value}: {self.reasons.get(route, _ANOTHER)}" for route in self._allowed)
                raise _not_differentiable(said)
            self._route = found
        return self._route

    @property
    def routes_used(self) -> tuple[str, ...]:
        """The routes of the products so far and the kernels that were exchanged for them, for the record."""
        return (*self._used, *(self.exchanged_kernels if self._used else ()))

    @property
    def reasons(self) -> dict[Route, str]:
        """Reasons why the routes that were tried and not taken do not work."""
        graph = {route: said for (route, is_push), said in self._objections.items() if said and is_push}
        return {**graph, **self._reasons}

    def push(self, tangents: Tensor) -> Tensor:
        """A t for each row: (k, n) -> (k, P)."""
        rows = tangents.shape[0]
        if rows == 0:
            return tangents.new_empty(0, self.value.numel())
        self.check_repeats()
        width = self.value.numel()
        found = self._by_mixed(
            tangents, width, lambda mixed, batched, block, out: mixed.push(block, batched=batched, out=out)
        )
        if found is not None:
            return found
        if rows <= FEW_COLUMNS and self.value.numel() <= FEW_ENTRIES and self._has_double_derivative():
            self._used[Route.DOUBLE_VJP_LOOP.value] = None
            forward: Function = self._few
        else:
            self._used[self.route.value] = None
            forward = self._rows(self.route)
        with differentiable_kernels():
            return self._by_blocks(lambda block, out: out.copy_(forward(block)), tangents, width)

    def pull(self, cotangents: Tensor) -> Tensor:
        """Aᵀu for each row: (k, P) -> (k, n)."""
        if cotangents.shape[0] == 0:
            return cotangents.new_empty(0, self.point.numel())
        self.check_repeats()
        if self._pulls_forward():
            assert self.mixed is not None
            self._used[AdjointRoute.FORWARD_OVER_REVERSE.value] = None
            return self.mixed.pull_forward(cotangents)
        found = self._by_mixed(
            cotangents,
            self.point.numel(),
            lambda mixed, batched, block, out: out.copy_(mixed.pull(block, batched=batched)),
            pushes=False,
            pulls=True,
        )
        self._used[AdjointRoute.DOUBLE_BACKWARD.value] = None
        try:
            return self._pull_rows(cotangents) if found is None else found
        except NotImplementedError as error:
            raise _not_differentiable(first_line(error)) from error

    def normal(self, tangents: Tensor) -> Tensor:
        """AᵀA t for each row: (k, n) -> (k, n), without A t as a vector where the graph allows it."""
        found = None
        self.check_repeats()
        if tangents.shape[0] and self._adjoint is not AdjointRoute.FORWARD_OVER_REVERSE:
            found = self._by_mixed(
                tangents,
                self.point.numel(),
                lambda mixed, batched, block, out: out.copy_(mixed.normal(block, batched=batched)),
                pulls=True,
            )
        if found is None:
            return self.pull(self.push(tangents))
        self._used[AdjointRoute.DOUBLE_BACKWARD.value] = None
        return found

    def probe(self) -> tuple[Tensor, Tensor]:
        """A drawn direction t (n,) and A t (P,), which `routes_used` leaves out."""
        tangents = self._probes(1)[0]
        with self._off_the_record():
            return tangents[0], self.push(tangents)[0]

    def fits_adjoint(self, tangent: Tensor, pushed: Tensor) -> bool:
        """True if a product A t, (1, n) and P entries, fits Aᵀu for a drawn u; also where there is no Aᵀu to compare with."""
        if self._symmetric or not bool(torch.isfinite(pushed).all()):
            return True
        cotangent = self._probes(1)[1]
        try:
            with self._off_the_record():
                return are_adjoint(tangent, pushed, cotangent, self.pull(cotangent))
        except torch.OutOfMemoryError:
            raise
        except (*REFUSALS, UnsupportedError):
            return True

    @contextmanager
    def _off_the_record(self) -> Iterator[None]:
        """Products that `routes_used` leaves out."""
        used = dict(self._used)
        try:
            yield
        finally:
            self._used.clear()
            self._used |= used

    def check_repeats(self) -> None:
        """Refuse a function that gives another value at the same point: its derivative would be noise.

        Runs once, before the first product; the graph of the loss serves as the second evaluation where there is one.

        Raises:
            UnsupportedError: if two values differ by more than the root of the dtype's precision.
        """
        if self._repeats:
            return
        if not (self.mixed is not None and self._graph_fits() and self._agrees()):
            with differentiable_kernels(), torch.no_grad():
                again = self._function(self.point)
            told = again.isfinite() | self.value.isfinite()  # where neither is finite, out_of_scale says why
            error, size = (float(one[told].norm()) for one in (again - self.value, self.value))
            if not error <= torch.finfo(again.dtype).eps ** 0.5 * size:
                raise UnsupportedError(
                    "operator not deterministic: expected the same released mean from two evaluations at the same "
                    f"batch, got a relative difference of {error / max(float(again.norm()), size):.1e}; a layer draws "
                    "random numbers that are not torch's (numpy, a generator of its own): fix its draws"
                )
        self._repeats = True

    def _by_mixed(
        self,
        rows: Tensor,
        width: int,
        product: Callable[[MixedDerivative, bool, Tensor, Tensor], object],
        *,
        pushes: bool = True,
        pulls: bool = False,
    ) -> Tensor | None:
        """A product on the kept graph of the loss, under vmap where that works; None where it is not to be used."""
        mixed = self.mixed
        loop, batched = Route.REVERSE_OVER_REVERSE_LOOP, Route.REVERSE_OVER_REVERSE_VMAP
        count = min(rows.shape[0], self.chunk)
        for route in (batched, loop) if count > 1 else (loop, batched):
            if route not in self._allowed:
                continue
            if route is loop and rows.shape[0] > FEW_COLUMNS and count > 1 and self.route is not loop:
                continue  # a JVP under vmap is cheaper
            if (pushes and self._objection(route, is_push=True)) or (pulls and self._objection(route, is_push=False)):
                continue
            assert mixed is not None
            try:
                with batching_rules_only():
                    out = self._by_blocks(partial(product, mixed, route.is_batched), rows, width)
            except torch.OutOfMemoryError:
                raise
            except REFUSALS as error:
                self._objections |= dict.fromkeys(((route, True), (route, False)), first_line(error))
                continue
            if pushes:
                self._used[route.value] = None
            return out
        return None

    def _pulls_forward(self) -> bool:
        asked = self._adjoint is AdjointRoute.FORWARD_OVER_REVERSE
        too_large = self._adjoint is None and self.mixed is not None and not self._graph_fits()
        if not (asked or too_large):
            return False
        if self._forward_works is None:
            self._forward_works = self.mixed is not None and self._forward_is_adjoint(self.mixed)
        if asked and not self._forward_works:
            raise UnsupportedError(
                "forward over reverse: expected a release that is a function of the plain gradient of the batch, and a "
                "model with forward derivatives, got another; leave adjoint=None"
            )
        return self._forward_works

    def _forward_is_adjoint(self, mixed: MixedDerivative) -> bool:
        tangent, cotangent = self._probes(1)
        try:
            with differentiable_kernels():
                pushed = self._jvp(tangent[0]).detach()
            return are_adjoint(tangent, pushed, cotangent, mixed.pull_forward(cotangent))
        except torch.OutOfMemoryError:
            raise
        except REFUSALS:
            return False

    def _graph_fits(self) -> bool:
        try:
            return self.mixed is not None and self.mixed.needed_bytes <= self._max_bytes
        except torch.OutOfMemoryError:
            raise
        except REFUSALS:
            return False

    def _agrees(self) -> bool:
        """True if the gradient in the graph of the loss is the value of the function."""
        assert self.mixed is not None
        try:
            value = self.mixed.value
        except torch.OutOfMemoryError:
            raise
        except REFUSALS:
            return False
        tolerance = torch.finfo(value.dtype).eps ** 0.5
        return bool((value - self.value).norm() <= tolerance * self.value.norm())

    def _supports(self, route: Route) -> bool:
        """True if a route works, tried once; a reason is kept for one that does not."""
        if route.is_mixed:
            return not any(self._objection(route, is_push=is_push) for is_push in (True, False))
        if route in self._tried:
            return route not in self._reasons
        self._tried.add(route)
        probe = drawn_rows(min(2, self.chunk), self.point.numel(), self.point)
        try:
            with differentiable_kernels(), batching_rules_only():
                block, alone = self._rows(route)(probe), self._one(route)(probe[0])
                if not same_product(block[0], alone):
                    self._reasons[route] = _ANOTHER
                elif self.value.numel() <= FEW_ENTRIES and not self.fits_adjoint(probe[:1], alone):
                    self._reasons[route] = "products with A and with its adjoint contradict each other"
        except torch.OutOfMemoryError:
            raise
        except REFUSALS as error:
            self._reasons[route] = first_line(error)
        return route not in self._reasons

    def _objection(self, route: Route, *, is_push: bool) -> str:
        """The reason why the graph of the loss is not to be used for products with A, or with Aᵀ; "" where it is."""
        if (route, is_push) not in self._objections:
            try:
                said = self._tried_graph(route, is_push=is_push)
            except torch.OutOfMemoryError:
                raise
            except REFUSALS as error:
                said = first_line(error)
            self._objections[route, is_push] = said
        return self._objections[route, is_push]

    def _by_blocks(self, product: Callable[[Tensor, Tensor], object], rows: Tensor, width: int) -> Tensor:
        """One product a block, each written to its place."""
        out = rows.new_empty(rows.shape[0], width)
        start = 0
        for block in _Blocks(self.chunk).of(rows):
            product(block, out[start : start + block.shape[0]])
            start += block.shape[0]
        return out.detach()

    def _tried_graph(self, route: Route, *, is_push: bool) -> str:
        """An objection: size, another value, wrong first derivatives, or a block that is not like its vectors.

        Layers with a gradient of their own making (straight-through, gradient reversal) have no symmetric second
        derivative: Aᵀ is right by definition there, and A is taken from it by another route.
        """
        mixed = self.mixed
        if mixed is None:
            return "the release is not a function of the plain gradient of the batch"
        if mixed.needed_bytes > self._max_bytes:
            return f"the graph takes {mixed.needed_bytes} bytes, the budget is max_bytes={self._max_bytes}"
        if not self._agrees():
            return "the gradient of the loss is not the released mean"
        if not is_push and not route.is_batched:
            return ""
        tangents, cotangents = self._probes(2)
        alone = mixed.push(tangents[:1], batched=False) if is_push else mixed.pull(cotangents[:1], batched=False)
        if is_push and self._symmetric is None:
            pulled = mixed.pull(cotangents[:1], batched=False)
            self._symmetric = are_adjoint(tangents[:1], alone, cotangents[:1], pulled)
        if is_push and not self._symmetric:
            return "the loss has no symmetric second derivative (a gradient that is not its own)"
        if not route.is_batched:
            return ""
        with batching_rules_only():
            block = mixed.push(tangents, batched=True) if is_push else mixed.pull(cotangents, batched=True)
        return "" if same_product(block[0], alone[0]) else _ANOTHER

    def _probes(self, rows: int) -> tuple[Tensor, Tensor]:
        """Drawn tangents (rows, n) and cotangents (rows, P)."""
        sizes = (self.point.numel(), self.value.numel())
        return drawn_rows(rows, sizes[0], self.point), drawn_rows(rows, sizes[1], self.point, seed=1)

    def _pull_rows(self, cotangents: Tensor) -> Tensor:
        """Aᵀu on the kept graph of the function."""
        with differentiable_kernels():
            pull = self._pull()
            if self._pull_by_vmap is None and cotangents.shape[0] > FEW_COLUMNS:
                self._pull_by_vmap = _works(lambda: same_product(_vmap(pull)(cotangents[:2])[0], pull(cotangents[0])))
            if self._pull_by_vmap and cotangents.shape[0] > FEW_COLUMNS:
                rows = [_vmap(pull)(block) for block in _Blocks(self.chunk).of(cotangents)]
                return torch.cat(rows).detach()
            return _stack(pull, cotangents, self.point.numel())

    def _has_double_derivative(self) -> bool:
        # A named route is obeyed, and a function without double backward keeps to its route.
        if self._push_few is None:
            self._push_few = _works(lambda: bool(self._double()(torch.zeros_like(self.point)).numel()))
        return self._push_few

    def _few(self, block: Tensor) -> Tensor:
        return _stack(self._double(), block, self.value.numel())

    def _rows(self, route: Route) -> Function:
        """A function from a block of tangents (k, n) to (k, P)."""
        mixed = self.mixed
        if route.is_mixed and mixed is not None:
            return lambda block: mixed.push(block, batched=route.is_batched)
        one = self._one(route)
        if route.is_batched:
            return _vmap(one)
        return lambda block: _stack(one, block, self.value.numel())

    def _one(self, route: Route) -> Function:
        """A function from a tangent (n,) to (P,)."""
        return self._jvp if route in (Route.JVP_VMAP, Route.JVP_LOOP) else self._double()

    def _jvp(self, tangent: Tensor) -> Tensor:
        out: Tensor = torch.func.jvp(self._function, (self.point,), (tangent,))[1]
        return out

    def _pull(self) -> Function:
        if self._pull_kept is None:
            self._pull_kept = pullback(self._function, self.point)[1]
        return self._pull_kept

    def _double(self) -> Function:
        """A t as the derivative of the linear map u -> Aᵀu, whose graph is kept."""
        if self._push_kept is None:
            with differentiable_kernels():
                push = torch.func.vjp(self._pull(), torch.zeros_like(self.value))[1]
            self._push_kept = lambda tangent: push(tangent)[0]
        return self._push_kept


def _not_differentiable(said: str) -> UnsupportedError:
    return UnsupportedError(
        "expected a release that can be differentiated with respect to its input, got none of the routes to work "
        f"({said}); replace the layer that is named there"
    )


def _vmap(one: Function) -> Function:
    # "same": dropout masks in train mode belong to the release, not to the direction of derivative.
    batched: Function = torch.func.vmap(one, randomness="same")
    return batched


def _stack(one: Function, block: Tensor, width: int) -> Tensor:
    out = block.new_empty(block.shape[0], width)
    for place, row in enumerate(block):
        out[place] = one(row).detach()
    return out


def _works(attempt: Callable[[], bool]) -> bool:
    try:
        with batching_rules_only():
            return attempt()
    except torch.OutOfMemoryError:
        raise
    except REFUSALS:
        return False

"""Derivatives of a vector function at a point, by the cheapest route that the function allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradleak.results import UnsupportedError

Function = Callable[[Tensor], Tensor]

# Columns a block. Measured on the 28x28 LeNet (P = 17,038, float64, one thread) for all of A, in plain gradients:
# 740 with 8, 520 with 16, 420 with 32, 390 with 64, 460 with 98, 500 with 128 columns: small blocks pay for
# dispatch, large ones leave the cache and fault in fresh pages.
BLOCK_COLUMNS = 64
# Up to here the kept graph wins (1.1 to 1.3 plain gradients a vector on the same LeNet; a fresh JVP costs 3.6).
FEW_COLUMNS = 4
# A vmapped column holds its tangents in every layer, the output and its concatenation: a rough count of copies.
COPIES_A_COLUMN = 8


class Route(StrEnum):
    """How products with a block of columns are computed."""

    JVP_VMAP = "jvp(vmap)"
    JVP_LOOP = "jvp(loop)"
    DOUBLE_VJP_VMAP = "double_vjp(vmap)"
    DOUBLE_VJP_LOOP = "double_vjp(loop)"


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

    `push` gives A t for a block of tangents, `pull` gives Aᵀu for a block of cotangents. The block route is the first
    of jvp(vmap), jvp(loop), double_vjp(vmap), double_vjp(loop) that the function supports: a network whose layers
    have no forward derivative or no batching rule gets a slower route with the same value. Attention runs on the math
    backend, since the fused ones have neither a JVP nor a double backward.

    Args:
        function: maps (n,) to (P,), pure.
        point: (n,), the place of the derivative.
        chunk: rows of a block computed at once, or None to derive it from `max_bytes`.
        max_bytes: memory that one block may take, roughly.
        route: the only route to try, or None for the first that works.

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
    ) -> None:
        self._function = function
        self._point = point.detach()
        with _math_attention(), torch.no_grad():
            self.value: Tensor = function(self._point).detach()
        if chunk is None:
            per_row = COPIES_A_COLUMN * (self.value.numel() + point.numel()) * point.element_size()
            chunk = max(1, min(BLOCK_COLUMNS, max_bytes // per_row))
        self.chunk = chunk
        self._allowed = tuple(Route) if route is None else (route,)
        self._route: Route | None = None
        self._pull_by_vmap: bool | None = None
        self._push_few: bool | None = None if route is None else False
        self._pull_kept: Function | None = None
        self._push_kept: Function | None = None

    @property
    def route(self) -> Route:
        """The route of `push` for blocks; the first call tries them out on one vector."""
        if self._route is None:
            self._route = self._first_that_works()
        return self._route

    def push(self, tangents: Tensor) -> Tensor:
        """A t for each row: (k, n) -> (k, P)."""
        out = tangents.new_empty(tangents.shape[0], self.value.numel())
        if tangents.shape[0] == 0:
            return out
        few = tangents.shape[0] <= FEW_COLUMNS and self._has_double_derivative()
        forward = self._few if few else self._rows(self.route)
        start = 0
        for block in _Blocks(self.chunk).of(tangents):
            with _math_attention():
                out[start : start + block.shape[0]] = forward(block).detach()
            start += block.shape[0]
        return out

    def pull(self, cotangents: Tensor) -> Tensor:
        """Aᵀu for each row: (k, P) -> (k, n)."""
        with _math_attention():
            pull = self._pull()
            if self._pull_by_vmap is None and cotangents.shape[0] > FEW_COLUMNS:
                self._pull_by_vmap = _works(lambda: _vmap(pull)(cotangents[:2]))
            if self._pull_by_vmap and cotangents.shape[0] > FEW_COLUMNS:
                rows = [_vmap(pull)(block) for block in _Blocks(self.chunk).of(cotangents)]
                return torch.cat(rows).detach()
            return _stack(pull, cotangents, self._point.numel())

    def _has_double_derivative(self) -> bool:
        # A named route is obeyed, and a function without double backward keeps to its route.
        if self._push_few is None:
            self._push_few = _works(lambda: self._double()(torch.zeros_like(self._point)))
        return self._push_few

    def _few(self, block: Tensor) -> Tensor:
        return _stack(self._double(), block, self.value.numel())

    def _rows(self, route: Route) -> Function:
        """A function from a block of tangents (k, n) to (k, P)."""
        forward = route in (Route.JVP_VMAP, Route.JVP_LOOP)
        one = self._jvp if forward else self._double()
        if route in (Route.JVP_VMAP, Route.DOUBLE_VJP_VMAP):
            return _vmap(one)
        return lambda block: _stack(one, block, self.value.numel())

    def _jvp(self, tangent: Tensor) -> Tensor:
        out: Tensor = torch.func.jvp(self._function, (self._point,), (tangent,))[1]
        return out

    def _pull(self) -> Function:
        if self._pull_kept is None:
            self._pull_kept = pullback(self._function, self._point)[1]
        return self._pull_kept

    def _double(self) -> Function:
        """A t as the derivative of the linear map u -> Aᵀu, whose graph is kept."""
        if self._push_kept is None:
            with _math_attention():
                push = torch.func.vjp(self._pull(), torch.zeros_like(self.value))[1]
            self._push_kept = lambda tangent: push(tangent)[0]
        return self._push_kept

    def _first_that_works(self) -> Route:
        probe = torch.zeros_like(self._point).repeat(min(2, self.chunk), 1)
        reasons = []
        for route in self._allowed:
            try:
                with _math_attention(), warnings.catch_warnings():
                    # The first forward derivative of a process makes torch script its own rules, with a warning.
                    warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
                    self._rows(route)(probe)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError, ValueError) as error:
                line = (str(error).strip().splitlines() or [type(error).__name__])[0]
                reasons.append(f"{route.value}: {line}")
            else:
                return route
        raise UnsupportedError(
            "expected a release that can be differentiated with respect to its input, got none of the routes to work "
            f"({'; '.join(reasons)}); replace the layer that is named there"
        )


def pullback(function: Function, point: Tensor) -> tuple[Tensor, Function]:
    """The value (P,) of a function at a point, and the map u -> Aᵀu from (P,) to (n,) on its kept graph.

    Args:
        function: maps (n,) to (P,), pure.
        point: (n,).

    Cost: about two plain gradients where f is a gradient, then one a product.

    Example:
        >>> value, pull = pullback(lambda x: x**2, torch.tensor([1.0, 3.0]))
        >>> value.tolist(), pull(torch.tensor([1.0, 1.0])).tolist()
        ([1.0, 9.0], [2.0, 6.0])
    """
    with _math_attention():
        value, pull = torch.func.vjp(function, point)[:2]

    def apply(cotangent: Tensor) -> Tensor:
        with _math_attention():
            out: Tensor = pull(cotangent)[0]
            return out

    return value.detach(), apply


def dense_jacobian(
    function: Function, point: Tensor, *, max_bytes: int = 2**30, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """The value (P,) and the whole Jacobian A = ∂f/∂x (P, n) of a function at a point.

    A is filled by blocks of JVPs under vmap (or the first slower route that the function allows). It is the transpose
    of a contiguous (n, P) tensor, so `A.T` and `A.T @ v` cost no copy. Values are not checked for NaN.

    Args:
        function: maps (n,) to (P,), pure.
        point: (n,).
        max_bytes: memory that one block may take besides A itself, roughly.
        chunk: columns a block, or None to derive it from `max_bytes`.

    Returns:
        f(x) of shape (P,) and A of shape (P, n), both detached.

    Raises:
        UnsupportedError: if the function cannot be differentiated by any route.

    Cost: n JVPs in blocks, about half an evaluation of f each where f is a gradient; 8·P·n bytes in float64.

    Example:
        >>> value, A = dense_jacobian(lambda x: x**2, torch.tensor([1.0, 3.0]))
        >>> value.tolist(), A.tolist()
        ([1.0, 9.0], [[2.0, 0.0], [0.0, 6.0]])
    """
    at = Linearization(function, point, max_bytes=max_bytes, chunk=chunk)
    return at.value, at.push(torch.eye(point.numel(), dtype=point.dtype, device=point.device)).T


def _vmap(one: Function) -> Function:
    # "same": dropout masks in train mode belong to the release, not to the direction of derivative.
    batched: Function = torch.func.vmap(one, randomness="same")
    return batched


def _stack(one: Function, block: Tensor, width: int) -> Tensor:
    out = block.new_empty(block.shape[0], width)
    for place, row in enumerate(block):
        out[place] = one(row).detach()
    return out


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


@contextmanager
def _math_attention() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH):
        yield

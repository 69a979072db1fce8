"""The derivative of a plain gradient from inputs and output gradients of its layers, without gradients of their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from gradleak.core.objective import Tensors
from gradleak.linalg import GramSum
from gradleak.operators.agreement import REFUSALS, batching_rules_only, drawn_rows
from gradleak.operators.kernels import differentiable_kernels
from gradleak.operators.layer_tape import Layer, LayerTape, layers_of
from gradleak.operators.linearization import Linearization
from gradleak.operators.mixed_derivative import MixedDerivative
from gradleak.operators.routes import Route

Rows = tuple[Tensor, ...]

# Below this many entries of A the plain route is as fast: recording and checking cost some plain gradients.
SMALLEST_JACOBIAN = 2**20
# This route must carry at most this many numbers a column, relative to P.
LARGEST_SHARE = 0.5
# With convolutions, whose rows of A are what takes the time elsewhere, it pays with as many numbers as there are.
LARGEST_SHARE_OF_CONVOLUTIONS = 1.0
# Columns a block of tangents, and entries a block of rows.
BLOCK_COLUMNS = 160
WIDEST_BLOCK = 1200
# Relative agreement with the release and with one product of its own derivative; else the plain route is taken.
_AGREEMENT = 1e-9


class GhostDerivative:
    """A (P, n) of a plain gradient, as derivatives of what enters and leaves its layers.

    The gradient of a linear weight is G = Σᵢ eᵢaᵢᵀ over the positions i at which the layer is applied (examples,
    tokens), a its input and e the gradient of the loss with respect to its output. Its derivative along input
    direction j is Σᵢ (∂ⱼeᵢ aᵢᵀ + eᵢ ∂ⱼaᵢᵀ), so that inner products of two columns of A need inner products of a, e,
    ∂ⱼa and ∂ⱼe only, N (in + out) numbers a layer and direction where the weight has in · out:

    ⟨∂ⱼG, ∂ₖG⟩ = Σᵢₘ ⟨∂ⱼeᵢ, ∂ₖeₘ⟩⟨aᵢ, aₘ⟩ + ⟨eᵢ, eₘ⟩⟨∂ⱼaᵢ, ∂ₖaₘ⟩ + ⟨∂ⱼeᵢ, eₘ⟩⟨aᵢ, ∂ₖaₘ⟩ + ⟨eᵢ, ∂ₖeₘ⟩⟨∂ⱼaᵢ, aₘ⟩.

    Of a convolution it is the same sum over the places of its output, with windows of the input for a. Inner products by
    unfolding (`_add_products`) pay where the maps are smaller than the weight; elsewhere its rows of A are made by two
    matrix products from ∂e and ∂a, some output channels at a time, and added to AᵀA.

    A weight takes this route if it is a shared parameter that enters through `linear` or `conv2d` alone (several times is
    fine), a linear one where N (in + out + N) < in · out. All other parameters (norms, embeddings, weights that are
    used elsewhere too, biases of frozen weights) keep their rows of A. e is the gradient with respect to a zero that is
    added to the layer's output: no hook, and in-place operations after it do no harm.

    Attributes:
        layers: the names of the weights whose gradients are never differentiated.
        route: how it came about, for the record: "ghost(reverse_over_reverse(vmap)), 2 linear layers".

    Source: the inner products of ghost-norm clipping (Goodfellow 2015; Li et al. 2022, "Large language models can be
    strong differentially private learners", section 4), here for derivatives of gradients instead of per-example
    gradients; convolutions by unfolding as there.
    """

    def __init__(self, ghost: _Ghost, plain: Linearization, chunk: int) -> None:
        self._ghost = ghost
        self._plain = plain
        convolutions = sum(bool(layer.windows) for layer in ghost.layers)
        parts = [
            _counted(convolutions, "convolution"),
            _counted(len(ghost.layers) - convolutions, "linear layer"),
        ]
        self.layers: tuple[str, ...] = tuple(layer.weight for layer in ghost.layers)
        self.route: str = ", ".join([f"ghost({Route.REVERSE_OVER_REVERSE_VMAP.value})", *filter(None, parts)])
        self._here = ghost.sort([row[None] for row in ghost.here])
        self._along = ghost.sort(ghost.tangents(chunk))

    def gram(self) -> Tensor | None:
        """AᵀA (n, n), symmetric; None where a product with it is not the release's own.

        Cost: n² · Σ N (in + out + N) multiplications for linear layers, n² times the entries of all others.
        """
        total = GramSum(self._ghost.unknowns, self._ghost.point)
        small: list[Tensor] = []
        for layer in self._ghost.layers:
            here, along = self._here.sides[layer.weight], self._along.sides[layer.weight]
            if not layer.windows:
                _add_linear(total, small, here, along)
            elif _has_cheap_products(layer, total.size):
                _add_products(layer, total, here, along)
            else:
                for _, rows in _rows_of_convolution(layer, here, along):
                    total.add(rows.flatten(1))
            if layer.bias is not None:
                small.append(_bias(layer, along))
        small += [rows.reshape(len(rows), -1) for rows in self._along.rest.values()]
        if small:
            total.add(torch.cat(small, 1))
        gram = total.total()
        return gram if self._agrees(lambda probe: gram @ probe) else None

    def columns(self) -> Tensor | None:
        """Aᵀ (n, P), contiguous; None where a product with it is not the release's own.

        Cost: a matrix product a layer, and 8·P·n bytes in float64.
        """
        params = self._ghost.params
        out = self._ghost.point.new_empty(self._ghost.unknowns, sum(tensor.numel() for tensor in params.values()))
        pieces = torch.split(out, [tensor.numel() for tensor in params.values()], dim=1)
        into = dict(zip(params, pieces, strict=True))
        for layer in self._ghost.layers:
            here, along = self._here.sides[layer.weight], self._along.sides[layer.weight]
            if layer.windows:
                made = into[layer.weight].unflatten(1, params[layer.weight].flatten(2).shape)
                for places, rows in _rows_of_convolution(layer, here, along):
                    made[:, places] = rows.transpose(1, 2)
            else:
                (a, e), (da, de) = _joined(here), _joined(along)
                shape = params[layer.weight].shape
                made = into[layer.weight].unflatten(1, shape)
                torch.baddbmm(de.mT @ a, e.mT.expand(len(de), -1, -1), da, out=made)
            if layer.bias is not None:
                into[layer.bias].copy_(_bias(layer, along))
        for name, rows in self._along.rest.items():
            into[name].copy_(rows.reshape(len(rows), -1))
        return out if self._agrees(lambda probe: out @ (out.T @ probe)) else None

    def _agrees(self, normal: Callable[[Tensor], Tensor]) -> bool:
        """True if AᵀA z is what the release's own products give, for a random z."""
        probe = drawn_rows(1, self._ghost.unknowns, self._ghost.point)
        return _agree(normal(probe[0]), self._plain.pull(self._plain.push(probe))[0])


def ghost_derivative(
    plain: Linearization,
    *,
    max_bytes: int = 2**30,
    chunk: int | None = None,
    smallest: int = SMALLEST_JACOBIAN,
    largest_share: float | None = None,
) -> GhostDerivative | None:
    """The derivative of a release that is the plain gradient by its layers, or None where that does not apply or pay.

    Assumptions: exact. Two checks stand before a result: the gradient that a and e make is the released mean, and AᵀA z for
    a random z agrees with the release's own products. A defense that changes the mean, or a weight that is used in a way
    that was not seen, ends in None.

    Args:
        plain: the derivative of the release, with the loss that it is a mixed derivative of.
        max_bytes: memory budget; None is returned where the tangents of all layers would need more than half of it.
        chunk: directions a block, or None for 160 within the budget.
        smallest: the smallest P·n for which the route is tried.
        largest_share: numbers a column at most, relative to P, or None for what pays.

    Cost: n JVPs through the network without its weight gradients, and for the checks one product with A and one with its
    adjoint; 8·n bytes a number of a column in float64.
    """
    mixed, point = plain.mixed, plain.point
    if mixed is None or plain.value.numel() * point.numel() < smallest:
        return None
    try:
        ghost = _Ghost(mixed.loss, mixed.params, point)
        size = plain.value.numel()
        convolves = any(layer.windows for layer in ghost.layers)
        usual = LARGEST_SHARE_OF_CONVOLUTIONS if convolves else LARGEST_SHARE
        share = usual if largest_share is None else largest_share
        held = 2 * ghost.numbers * point.numel() * point.element_size()
        if not ghost.layers or ghost.numbers > share * size or held > max_bytes:
            return None
        per_row = 8 * (ghost.numbers + point.numel()) * point.element_size()
        block = chunk or max(1, min(BLOCK_COLUMNS, max_bytes // per_row))
        if not _agree(ghost.gradient(), plain.value):
            return None
        with batching_rules_only():
            return GhostDerivative(ghost, plain, block)
    except torch.OutOfMemoryError:
        return None
    except REFUSALS:
        return None


def layer_gram(plain: Linearization, *, max_bytes: int = 2**30) -> Tensor | None:
    """AᵀA (n, n) of a release that is the plain gradient, by its layers; None where that does not apply or pay.

    Args:
        plain: the derivative of the release, with the loss that it is a mixed derivative of.
        max_bytes: memory budget.

    Cost: see `ghost_derivative` and `GhostDerivative.gram`.
    """
    found = ghost_derivative(plain, max_bytes=max_bytes)
    return None if found is None else found.gram()


@dataclass(frozen=True, eq=False)
class _Sides:
    """Inputs and output gradients by call, (k, *shape) each, by the name of the weight; gradients of the rest by name."""

    sides: Mapping[str, tuple[list[Tensor], list[Tensor]]]
    rest: Mapping[str, Tensor]


class _Ghost:
    """x -> (layer inputs a, output gradients e, gradients of the other parameters), and what follows from them."""

    def __init__(self, loss: Callable[[Tensors, Tensor], Tensor], params: Tensors, point: Tensor) -> None:
        self._loss = loss
        self.params = params
        self.point = point
        # With the kernels of the later passes, so that the same calls are seen.
        with torch.no_grad(), differentiable_kernels(), LayerTape(params) as tape:
            loss(params, point)
        self.layers: list[Layer] = [
            layer
            for layer in layers_of(tape.calls, tape.elsewhere)
            if layer.windows or _numbers(layer) < params[layer.weight].numel()
        ]
        ghosted = {name for layer in self.layers for name in layer.names}
        self._fixed = {name: tensor for name, tensor in params.items() if name in ghosted}
        self._rest = {name: tensor for name, tensor in params.items() if name not in ghosted}
        self._weights = {layer.weight: params[layer.weight] for layer in self.layers}
        calls = [call for call in tape.calls if call.weight in self._weights]
        # In the order of calls: a weight that is applied twice has a probe for each.
        self._order = [call.weight for call in calls]
        self._shapes = [(call.entered.shape, call.left.shape) for call in calls]
        self._matrices = {
            place: call.window.matrix(self._weights[call.weight])
            for place, call in enumerate(calls)
            if call.window is not None and call.window.is_small
        }

    @property
    def numbers(self) -> int:
        """Number of entries that a column of A takes in all."""
        own = sum(layer.tangents if layer.windows else _numbers(layer) for layer in self.layers)
        return own + sum(tensor.numel() for tensor in self._rest.values())

    @property
    def unknowns(self) -> int:
        """Number of inputs."""
        return self.point.numel()

    @cached_property
    def here(self) -> Rows:
        """Layer inputs, output gradients and gradients of the other parameters, one after the other."""
        return tuple(self._mixed.gradients)

    def tangents(self, chunk: int) -> Rows:
        """Their derivatives along each input, (n, *shape) each."""
        out = tuple(one.new_empty(self.unknowns, *one.shape) for one in self.here)
        for places in torch.arange(self.unknowns).tensor_split(-(-self.unknowns // chunk)):
            block = self.point.new_zeros(len(places), self.unknowns)
            block[torch.arange(len(places)), places] = 1.0
            for into, rows in zip(out, self._mixed.rows(block), strict=True):
                into[places[0] : places[-1] + 1] = rows
        return out

    @cached_property
    def _mixed(self) -> MixedDerivative:
        """Mixed derivative of L + Σ⟨a, c⟩ by c, zeros beside the layer inputs, by probes, and by the other parameters.

        All that is captured is then a derivative of one scalar, and its derivative by x a mixed one.
        """
        calls = len(self._order)

        def loss(params: Tensors, flat: Tensor) -> Tensor:
            rest = {name: params[name] for name in self._rest}
            probes = [params[_side("e", place)] for place in range(calls)]
            with LayerTape(self._weights, probes, self._matrices) as tape:
                value = self._loss({**self._fixed, **rest}, flat)
            for place, call in enumerate(tape.calls):
                value = value + (call.entered * params[_side("a", place)]).sum()
            return value

        zeros = {
            _side(side, place): self.point.new_zeros(shapes[side == "e"])
            for side in "ae"
            for place, shapes in enumerate(self._shapes)
        }
        return MixedDerivative(loss, {**zeros, **self._rest}, self.point)

    def gradient(self) -> Tensor:
        """The plain gradient (P,) that captured values make."""
        here = self.sort([one[None] for one in self.here])
        made = {name: rows[0] for name, rows in here.rest.items()}
        for layer in self.layers:
            sides = here.sides[layer.weight]
            if layer.windows:
                # Half of the product rule, at a tangent of zero and the values themselves.
                still = ([torch.zeros_like(a) for a in sides[0]], sides[1])
                rows = [rows[0].transpose(0, 1).clone() for _, rows in _rows_of_convolution(layer, sides, still)]
                made[layer.weight] = torch.cat(rows)
            else:
                a, e = _joined(sides)
                made[layer.weight] = e[0].T @ a[0]
            if layer.bias is not None:
                made[layer.bias] = _bias(layer, sides)
        return torch.cat([made[name].reshape(-1) for name in self.params])

    def sort(self, rows: Sequence[Tensor]) -> _Sides:
        """Rows (k, *shape) of what is captured as inputs and output gradients of each weight, and the rest by name."""
        count = len(self._order)
        sides: dict[str, tuple[list[Tensor], list[Tensor]]] = {name: ([], []) for name in self._weights}
        for place, name in enumerate(self._order):
            sides[name][0].append(rows[place])
            sides[name][1].append(rows[count + place])
        return _Sides(sides, dict(zip(self._rest, rows[2 * count :], strict=True)))


Sides = tuple[list[Tensor], list[Tensor]]


def _numbers(layer: Layer) -> int:
    """Number of entries that a column of A takes for a linear layer."""
    return layer.positions * (layer.inputs[0][-1] + layer.outputs[0][-1] + layer.positions)


def _joined(sides: Sides) -> tuple[Tensor, Tensor]:
    """Inputs (k, N, in) and output gradients (k, N, out) of a linear layer, all calls and positions in one."""
    entered, errors = (torch.cat([one.reshape(len(one), -1, one.shape[-1]) for one in side], 1) for side in sides)
    return entered, errors


def _bias(layer: Layer, along: Sides) -> Tensor:
    """Rows of the bias (k, out)."""
    axis = -3 if layer.windows else -1
    return sum((e.movedim(axis, 1).flatten(2).sum(2) for e in along[1]), torch.zeros(()).to(along[1][0]))


def _add_linear(total: GramSum, small: list[Tensor], here: Sides, along: Sides) -> None:
    """Add the share of a linear weight in AᵀA; narrow rows wait for others."""
    (a, e), (da, de) = _joined(here), _joined(along)
    size = len(da)
    small.append((_root(a[0]) @ de).reshape(size, -1))
    total.add((_root(e[0]) @ da).reshape(size, -1))
    left = (de @ e[0].T).reshape(size, -1)
    right = (da @ a[0].T).transpose(1, 2).reshape(size, -1)
    total.add_cross(left, right)


def _has_cheap_products(layer: Layer, unknowns: int) -> bool:
    """True if inner products by unfolding take fewer multiplications than rows of A."""
    if len(layer.windows) > 1:
        return False
    window, (examples, outputs) = layer.windows[0], layer.outputs[0][:2]
    width = window.kernel[0] * window.kernel[1]
    places, pixels = examples * prod(window.outputs), examples * prod(window.sides)
    errors, inputs, weight = outputs * places, window.channels * pixels, outputs * window.channels * width
    rows = weight * unknowns / 2 + weight * places + weight * pixels
    own = outputs * min(places, window.channels * width) + window.channels * min(pixels, outputs * width)
    return own * unknowns / 2 + errors * inputs + min(errors, inputs) * unknowns < rows


def _add_products(layer: Layer, total: GramSum, here: Sides, along: Sides) -> None:
    """Add the share of a convolution in AᵀA by inner products of ∂e and of ∂a, with the products of windows in between."""
    window, ((a,), (e,)), ((da,), (de,)) = layer.windows[0], here, along
    size = len(da)
    patches, errors = window.patches(a[0]), window.errors(e[0])
    da, de = (one.transpose(1, 2).reshape(size, one.shape[2], -1) for one in (da, de))
    total.add((de @ _root(patches).T).flatten(1))
    total.add((da @ _root(errors.flatten(1)).T).flatten(1))
    # Σ over the weight of what output channel o makes of place i, and input channel c of pixel q.
    by_channel = patches.reshape(len(patches), window.channels, -1)
    mixed = torch.einsum("ick,qok->oicq", by_channel, errors).reshape(de[0].numel(), da[0].numel())
    left, right = de.flatten(1), da.flatten(1)
    if left.shape[1] < right.shape[1]:
        total.add_cross(left, right @ mixed.T)
    else:
        total.add_cross(left @ mixed, right)


def _root(rows: Tensor) -> Tensor:
    """R (r, N) with RᵀR = rows rowsᵀ: the triangular factor of rowsᵀ, r = min(N, columns)."""
    factor: Tensor = torch.linalg.qr(rows.T, mode="r")[1]
    return factor


def _rows_of_convolution(layer: Layer, here: Sides, along: Sides) -> Iterator[tuple[slice, Tensor]]:
    """Derivatives of the weight by some output channels and their slice, (k, C, channels, h·w); the next overwrite the last."""
    calls = list(zip(layer.windows, *here, *along, strict=True))
    size, channels, outputs = len(calls[0][3]), layer.inputs[0][1], layer.outputs[0][1]
    patches = [window.patches(a[0]) for window, a, *_ in calls]
    errors = [window.errors(e[0]) for window, _, e, *_ in calls]
    # Channels in front of positions, as the entries of the weight come.
    moved = [da.transpose(1, 2).reshape(size * channels, -1) for _, _, _, da, _ in calls]
    wide = patches[0].shape[1] // channels
    group = min(outputs, max(1, WIDEST_BLOCK // (channels * wide)))
    out, turned = (moved[0].new_empty(size * channels * group * wide) for _ in range(2))
    for start in range(0, outputs, group):
        places = slice(start, min(outputs, start + group))
        count = places.stop - start
        rows = out[: size * channels * count * wide].view(size * channels, count * wide)
        other = turned[: rows.numel()].view(size * count, channels * wide)
        for call, (_, _, _, _, de) in enumerate(calls):
            torch.addmm(rows, moved[call], errors[call][:, places].flatten(1), beta=float(call > 0), out=rows)
            left = de[:, :, places].transpose(1, 2).reshape(size * count, -1)
            torch.addmm(other, left, patches[call], beta=float(call > 0), out=other)
        by_channel = rows.view(size, channels, count, wide)
        by_channel += other.view(size, count, channels, wide).transpose(1, 2)
        yield places, by_channel


def _agree(one: Tensor, other: Tensor) -> bool:
    """True if two vectors are the same to round-off; NaN agrees with nothing."""
    return bool((one - other).norm() <= _AGREEMENT * other.norm())


def _side(side: str, place: int) -> str:
    # No parameter of a module has such a name.
    return f"{side}.{place}"


def _counted(number: int, noun: str) -> str:
    return "" if not number else f"{number} {noun}{'s' if number > 1 else ''}"

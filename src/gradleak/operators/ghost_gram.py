"""The Gram matrix of a plain gradient from layer inputs and output gradients, without gradients of linear weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gradleak.core import Batch, Exposure
from gradleak.linalg import dense_gram
from gradleak.operators.kernels import differentiable_kernels
from gradleak.operators.linearization import Linearization
from gradleak.results import InputError, UnsupportedError

# Below this many entries of A the plain route is as fast: recording and checking cost some plain gradients.
SMALLEST_JACOBIAN = 2**20
# The ghost route must carry at most this part of the P numbers a column.
LARGEST_SHARE = 0.5
# Relative agreement with the release and with one product of its own derivative; else the plain route is taken.
_AGREEMENT = 1e-9

_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, UnsupportedError, InputError)


@dataclass(frozen=True, kw_only=True, eq=False)
class GhostGram:
    """AᵀA by the ghost route.

    Attributes:
        gram: (d, d), symmetric.
        route: how it came about, for the record: for instance "ghost(jvp(vmap)), 3 linear layers".
        layers: the names of the weights whose gradients were never formed.
    """

    gram: Tensor
    route: str
    layers: tuple[str, ...]


def ghost_gram(
    exposure: Exposure,
    plain: Linearization,
    *,
    max_bytes: int = 2**30,
    chunk: int | None = None,
    smallest: int = SMALLEST_JACOBIAN,
) -> GhostGram | None:
    """AᵀA (d, d) of a release that is the plain gradient, or None where this route does not apply or does not pay.

    The gradient of a linear weight is G = Σᵢ eᵢaᵢᵀ over the positions i at which the layer is applied (examples,
    tokens), a its input and e the gradient of the loss with respect to its output. Its derivative along input
    direction j is Σᵢ (∂ⱼeᵢ aᵢᵀ + eᵢ ∂ⱼaᵢᵀ), so that inner products of two columns of A need inner products of a, e,
    ∂ⱼa and ∂ⱼe only, N (in + out) numbers a layer and direction where the weight has in · out:

    ⟨∂ⱼG, ∂ₖG⟩ = Σᵢₘ ⟨∂ⱼeᵢ, ∂ₖeₘ⟩⟨aᵢ, aₘ⟩ + ⟨eᵢ, eₘ⟩⟨∂ⱼaᵢ, ∂ₖaₘ⟩ + ⟨∂ⱼeᵢ, eₘ⟩⟨aᵢ, ∂ₖaₘ⟩ + ⟨eᵢ, ∂ₖeₘ⟩⟨∂ⱼaᵢ, aₘ⟩.

    A weight takes this route if it is a shared parameter that enters through `linear` alone (several times is fine)
    and N (in + out + N) < in · out. All other parameters (convolutions, norms, embeddings, weights that are used
    elsewhere too, biases of frozen weights) keep their rows of A. e is the gradient with respect to a zero that is
    added to the layer's output: no hook, and in-place operations after it do no harm.

    Assumptions: exact. Two checks stand before a result: the gradient that a and e make is the released mean, and AᵀA z
    agrees with the release's own products for a random z. A defense that changes the mean, or a weight that is used
    in a way that was not seen, ends in None.

    Args:
        exposure: objective, batch and release, in the dtype of the computation.
        plain: the derivative of `exposure.mean` at its inputs, for the checks.
        max_bytes: memory budget; None is returned where the tangents of all layers would need more than half of it.
        chunk: directions a block, or None to derive it from the budget.
        smallest: the smallest P·d for which the route is tried.

    Cost: d JVPs through the network without its weight gradients, d² · Σ N (in + out + N) multiplications, and for
    the checks one product with A and one with its adjoint; 8·d·Σ N (in + out) bytes in float64.

    Source: the inner products of ghost-norm clipping (Goodfellow 2015; Li et al. 2022, "Large language models can be
    strong differentially private learners", section 4), here for derivatives of gradients instead of per-example
    gradients.
    """
    point = exposure.inputs
    if plain.value.numel() * point.numel() < smallest:
        return None
    try:
        layers = _layers(exposure)
        if not layers:
            return None
        numbers = _numbers(exposure, layers)
        held = 2 * numbers * point.numel() * point.element_size()
        if numbers > LARGEST_SHARE * exposure.objective.size or held > max_bytes:
            return None
        ghost = _Ghost(exposure, layers)
        at = Linearization(ghost.captured, point, max_bytes=max_bytes, chunk=chunk)
        if not _agree(ghost.gradient(at.value), plain.value):
            return None
        gram = ghost.gram(at)
    except torch.OutOfMemoryError:
        return None
    except _REFUSALS:
        return None
    probe = torch.randn(point.numel(), generator=torch.Generator().manual_seed(0), dtype=point.dtype).to(point.device)
    own = plain.pull(plain.push(probe[None]))[0]
    if not _agree(gram @ probe, own):
        return None
    names = tuple(layer.weight for layer in layers)
    return GhostGram(gram=gram, route=f"ghost({at.route.value}), {len(names)} linear layers", layers=names)


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """A linear weight that takes the ghost route.

    Attributes:
        weight: its name.
        bias: the name of the bias that comes with it alone, or None.
        inputs: the shapes of its inputs, one a call.
        outputs: the shapes of its outputs.
    """

    weight: str
    bias: str | None
    inputs: tuple[torch.Size, ...]
    outputs: tuple[torch.Size, ...]

    @property
    def positions(self) -> int:
        return sum(shape.numel() // shape[-1] for shape in self.inputs)

    @property
    def numbers(self) -> int:
        """Number of entries that a column of A takes here."""
        sides = self.inputs[0][-1] + self.outputs[0][-1]
        return self.positions * (sides + self.positions)


@dataclass(frozen=True, eq=False)
class _Call:
    weight: str
    bias: str | None
    entered: Tensor
    left: Tensor


class _LinearTape(TorchFunctionMode):
    """Watches which parameters enter through `linear`; adds a probe to the output of the chosen ones."""

    def __init__(self, params: Mapping[str, Tensor], probes: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in params.items()}
        self._probes = probes
        self.calls: list[_Call] = []
        self.elsewhere: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.linear:
            entered, weight, bias = _linear_arguments(*args, **kwargs)
            name, bias_name = self._names.get(id(weight)), self._names.get(id(bias))
            if name is not None and id(entered) not in self._names:
                # A copy: the input may be changed in place later on.
                self.calls.append(_Call(name, bias_name, entered.clone(), result))
                return result if self._probes is None else result + self._probes[len(self.calls) - 1]
        leaves = tree_leaves((args, kwargs))
        used = {self._names[id(leaf)] for leaf in leaves if id(leaf) in self._names}
        # What gives no tensor reads a shape or a dtype.
        if used and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.elsewhere |= used
        return result


def _linear_arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
    return input, weight, bias


def _layers(exposure: Exposure) -> list[_Layer]:
    """The linear weights for which the ghost route is right and cheaper, in the order of their first call."""
    objective = exposure.objective
    # With the kernels of the later passes, so that the same calls are seen.
    with torch.no_grad(), differentiable_kernels(), _LinearTape(objective.params) as tape:
        objective.loss(objective.params, exposure.batch)
    layers = []
    for weight in dict.fromkeys(call.weight for call in tape.calls):
        calls = [call for call in tape.calls if call.weight == weight]
        biases = {call.bias for call in calls}
        bias = biases.pop() if len(biases) == 1 else None
        foreign = any(call.bias == bias and call.weight != weight for call in tape.calls)
        layer = _Layer(
            weight=weight,
            bias=None if foreign or bias in tape.elsewhere else bias,
            inputs=tuple(call.entered.shape for call in calls),
            outputs=tuple(call.left.shape for call in calls),
        )
        if weight not in tape.elsewhere and layer.numbers < objective.params[weight].numel():
            layers.append(layer)
    return layers


def _numbers(exposure: Exposure, layers: list[_Layer]) -> int:
    """Number of entries that a column of A takes in all: those of the layers, and the other parameters' own."""
    ghosted = {name for layer in layers for name in (layer.weight, layer.bias)}
    params = exposure.objective.params
    return sum(layer.numbers for layer in layers) + sum(
        tensor.numel() for name, tensor in params.items() if name not in ghosted
    )


class _Ghost:
    """x -> (layer inputs a, output gradients e, gradients of the other parameters), and what follows from them."""

    def __init__(self, exposure: Exposure, layers: list[_Layer]) -> None:
        self._exposure = exposure
        self._layers = layers
        params = exposure.objective.params
        ghosted = {name for layer in layers for name in (layer.weight, layer.bias)}
        self._fixed = {name: params[name] for name in params if name in ghosted}
        self._rest = {name: params[name] for name in params if name not in ghosted}
        self._weights = {layer.weight: params[layer.weight] for layer in layers}
        like = exposure.inputs
        # In the order of calls: a weight that is applied twice has a probe for each.
        self._order = _call_order(exposure, self._weights)
        taken = dict.fromkeys(self._weights, 0)
        shapes = {layer.weight: layer.outputs for layer in layers}
        self._probes: list[Tensor] = []
        for name in self._order:
            self._probes.append(like.new_zeros(shapes[name][taken[name]]))
            taken[name] += 1

    def captured(self, flat: Tensor) -> Tensor:
        """All of a, e and the rest, as one vector; pure."""
        objective = self._exposure.objective
        shape = self._exposure.batch.inputs.shape
        batch: Batch = self._exposure.batch.with_inputs(flat.reshape(shape))

        def loss(probes: list[Tensor], rest: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
            with _LinearTape(self._weights, probes) as tape:
                value = objective.loss({**self._fixed, **rest}, batch)
            return value, [call.entered for call in tape.calls]

        gradient: Callable[..., Any] = torch.func.grad(loss, argnums=(0, 1), has_aux=True)
        (errors, rest), entered = gradient(self._probes, self._rest)
        return torch.cat([t.reshape(-1) for t in (*entered, *errors, *rest.values())])

    def gradient(self, captured: Tensor) -> Tensor:
        """The plain gradient (P,) that captured values make."""
        sides, rest = self._split(captured[None])
        made = dict(rest)
        for layer in self._layers:
            entered, errors = sides[layer.weight]
            made[layer.weight] = errors[0].T @ entered[0]
            if layer.bias is not None:
                made[layer.bias] = errors[0].sum(0)
        return self._exposure.objective.flatten(made)

    def gram(self, at: Linearization) -> Tensor:
        """AᵀA from the derivative of `captured`."""
        size = self._exposure.inputs.numel()
        tangents = at.push(torch.eye(size, dtype=at.value.dtype, device=at.value.device))
        here, _ = self._split(at.value[None])
        along, rest = self._split(tangents)
        gram = tangents.new_zeros(size, size)
        for layer in self._layers:
            (a, e), (da, de) = here[layer.weight], along[layer.weight]
            gram += _of_weight(a[0], e[0], da, de)
            if layer.bias is not None:
                gram += dense_gram(de.sum(1).T)
        others = [rows.reshape(size, -1) for rows in rest.values()]
        if others:
            gram += dense_gram(torch.cat(others, 1).T)
        return gram

    def _split(self, rows: Tensor) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        """Rows (k, M) as (a, e) of each weight, (k, N, in) and (k, N, out), and the rest by name."""
        by_name = {layer.weight: layer for layer in self._layers}
        call = dict.fromkeys(by_name, 0)
        shapes: list[tuple[torch.Size, torch.Size]] = []
        for name in self._order:
            layer = by_name[name]
            shapes.append((layer.inputs[call[name]], layer.outputs[call[name]]))
            call[name] += 1
        sizes = [shape.numel() for shape, _ in shapes] + [shape.numel() for _, shape in shapes]
        pieces = torch.split(rows, [*sizes, *(tensor.numel() for tensor in self._rest.values())], dim=1)
        entered, errors = pieces[: len(shapes)], pieces[len(shapes) : 2 * len(shapes)]
        sides: dict[str, tuple[Tensor, Tensor]] = {}
        for name in by_name:
            mine = [place for place, other in enumerate(self._order) if other == name]
            sides[name] = (
                torch.cat([entered[i].reshape(len(rows), -1, shapes[i][0][-1]) for i in mine], 1),
                torch.cat([errors[i].reshape(len(rows), -1, shapes[i][1][-1]) for i in mine], 1),
            )
        rest = {
            name: piece.reshape(-1, *tensor.shape) if len(rows) > 1 else piece.reshape(tensor.shape)
            for (name, tensor), piece in zip(self._rest.items(), pieces[2 * len(shapes) :], strict=True)
        }
        return sides, rest


def _call_order(exposure: Exposure, weights: Mapping[str, Tensor]) -> list[str]:
    with torch.no_grad(), differentiable_kernels(), _LinearTape(weights) as tape:
        exposure.objective.loss(exposure.objective.params, exposure.batch)
    return [call.weight for call in tape.calls]


def _of_weight(a: Tensor, e: Tensor, da: Tensor, de: Tensor) -> Tensor:
    """The share of one weight in AᵀA: a (N, in), e (N, out), da (d, N, in), de (d, N, out)."""
    size = da.shape[0]
    gram = dense_gram((_root(a) @ de).reshape(size, -1).T) + dense_gram((_root(e) @ da).reshape(size, -1).T)
    left = (de @ e.T).reshape(size, -1)
    right = (da @ a.T).transpose(1, 2).reshape(size, -1)
    cross = left @ right.T
    return gram + (cross + cross.T)


def _root(rows: Tensor) -> Tensor:
    """R (r, N) with RᵀR = rows rowsᵀ: the triangular factor of rowsᵀ, r = min(N, columns)."""
    factor: Tensor = torch.linalg.qr(rows.T, mode="r")[1]
    return factor


def _agree(one: Tensor, other: Tensor) -> bool:
    """True if two vectors are the same to round-off; NaN agrees with nothing."""
    return bool((one - other).norm() <= _AGREEMENT * other.norm())

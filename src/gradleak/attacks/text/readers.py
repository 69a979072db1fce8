"""Layers of a text model whose inputs an update spans: found by running the model, whatever it is called or built of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.results import UnsupportedError

_PROBES = 2
_LEAST_PROBE = 5
# Inputs are float32 at best; weak directions of a span are turned by the noise over their singular value.
_SLACKS, _LEAST_TOLERANCE, _LARGEST_TOLERANCE = 10.0, 1e-5, 0.3
# Cancellation leaves so many times more than rounding; singular values of noise are so many times their median at most.
_CANCELED, _FLAT = 32.0, 10.0


class Reach(Enum):
    """Tokens that the input of a layer at one place depends on."""

    OWN = "the token at the place itself"
    BEFORE = "the tokens up to the place"
    ALL = "every token"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Linear layers that read the same input: the gradients of their weights span it.

    Attributes:
        layer: name of the first of them; its input is watched.
        weights: names of the weights, in the order of the calls.
        turned: for each weight, True if it is stored as (inputs, outputs).
        width: size of the input at a place.
        reach: what the input at a place depends on.
    """

    layer: str
    weights: tuple[str, ...]
    turned: tuple[bool, ...]
    width: int
    reach: Reach

    def gradient(self, gradients: Mapping[str, Tensor]) -> Tensor | None:
        """The gradients of the weights that are shared, stacked as rows (m, width), float64; None where none is."""
        parts = [
            gradients[name].double().T if turned else gradients[name].double()
            for name, turned in zip(self.weights, self.turned, strict=True)
            if name in gradients and bool(gradients[name].any())
        ]
        return torch.cat(parts) if parts else None


class _Enough(Exception):
    """Signal that ends a forward pass once all that is watched has been seen."""


@dataclass(kw_only=True, eq=False)
class Taps:
    """A model run on ids while inputs of chosen layers are watched; it stops when the last of them was seen.

    Attributes:
        model: in the mode of the client; its parameters are those that were sent out.
        cost: work of runs, in tokens.
    """

    model: nn.Module
    cost: int = field(default=0, init=False)

    @torch.no_grad()
    def inputs(self, ids: Tensor, layers: Sequence[str]) -> list[Tensor]:
        """The inputs (b, T, width) of these layers at ids (b, T)."""
        seen: dict[str, Tensor] = {}
        wanted = set(layers)

        def watch(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                if name not in seen:
                    seen[name] = first_tensor(args, kwargs)
                if len(seen) == len(wanted):
                    raise _Enough

            return hook

        parts = dict(self.model.named_modules())
        handles = [parts[name].register_forward_pre_hook(watch(name), with_kwargs=True) for name in wanted]
        try:
            self.model(ids)
        except _Enough:
            pass
        finally:
            for handle in handles:
                handle.remove()
        self.cost += ids.numel()
        return [seen[name] for name in layers]


def find_readers(model: nn.Module, words: int, length: int) -> list[Reader]:
    """The linear layers of a model on ids, in the order of their calls, grouped by the input that they share.

    The model runs on a few drawn ids; inputs are told apart by their values, roles by which of them change when one id does.
    So it makes no difference whether a layer is an `nn.Linear`, a `Conv1D` of transformers with query, key and value in one,
    or an `nn.MultiheadAttention`.

    Args:
        model: called with ids (b, T) alone.
        words: size of the vocabulary.
        length: longest sentence that the model takes.

    Raises:
        UnsupportedError: if the model cannot run on ids, or no layer reads its tokens.

    Cost: two forward passes on two sentences of at most five tokens.
    """
    generator = torch.Generator().manual_seed(0)
    size = min(_LEAST_PROBE, length)
    here = next((tensor.device for tensor in model.parameters()), None)
    ids = torch.randint(words, (_PROBES, size), generator=generator).to(here)
    changed = ids.clone()
    middle = size // 2
    changed[:, middle] = (ids[:, middle] + 1 + words // 2) % words
    try:
        first, second = _calls(model, ids), _calls(model, changed)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UnsupportedError(f"the model does not run on ids of shape {tuple(ids.shape)}: {error}") from error
    found: list[Reader] = []
    for name, call in first.items():
        value, after = call.value, second[name].value
        if value.dim() != 3 or value.shape[:2] != ids.shape:
            continue
        twin = next(
            (
                place
                for place, other in enumerate(found)
                if other.width == value.shape[2] and torch.equal(first[other.layer].value, value)
            ),
            None,
        )
        if twin is not None:
            other = found[twin]
            found[twin] = Reader(
                layer=other.layer,
                weights=(*other.weights, *call.weights),
                turned=(*other.turned, *call.turned),
                width=other.width,
                reach=other.reach,
            )
            continue
        differs = (value != after).any(dim=2).any(dim=0)
        if not bool(differs[middle]):
            continue
        before, behind = bool(differs[:middle].any()), bool(differs[middle + 1 :].any())
        reach = Reach.ALL if before else Reach.BEFORE if behind else Reach.OWN
        found.append(Reader(layer=name, weights=call.weights, turned=call.turned, width=value.shape[2], reach=reach))
    if not found:
        raise UnsupportedError("the model has no linear layer that reads its tokens place by place")
    return found


def outer_layers(model: nn.Module, readers: Sequence[Reader]) -> list[tuple[Reader, tuple[str, ...]]]:
    """The layers that answer for the weights of readers: these themselves, or what adds adapters of low rank to one.

    What holds a linear layer and answers linearly to the same input stands for it, and for all that it holds: readers that
    only adapters have are left out.

    Args:
        model: of the readers.
        readers: of `find_readers`.

    Returns:
        Readers, with the names of their layers.

    Cost: three rows through every module around a linear layer.
    """
    known: list[str] = []
    found = []
    for reader in readers:
        layers = []
        for weight in reader.weights:
            path = weight.removesuffix(".weight")
            if any(path == one or path.startswith(f"{one}.") for one in known):
                continue
            steps = path.split(".")
            around = [".".join(steps[:depth]) for depth in range(1, len(steps))]
            known.append(next((one for one in around if _is_affine(model.get_submodule(one), reader.width)), path))
            layers.append(known[-1])
        if layers:
            found.append((reader, tuple(layers)))
    return found


@torch.no_grad()
def _is_affine(part: nn.Module, width: int) -> bool:
    """True if a module answers to rows of this width, and to a sum with the sum."""
    some = next(part.parameters())
    # A part that takes other inputs fails in its own way.
    rows = torch.randn(2, width, generator=torch.Generator().manual_seed(0)).to(some)
    try:
        zero, left, right, both = (
            part(one) for one in (torch.zeros_like(rows[:1]), rows[:1], rows[1:], rows[:1] + rows[1:])
        )
        size = float(both.abs().max())
        return bool(torch.allclose(both - zero, left + right - 2 * zero, rtol=1e-3, atol=1e-4 * (1e-3 + size)))
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError):
        return False


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    value: Tensor
    weights: tuple[str, ...]
    turned: tuple[bool, ...]


@torch.no_grad()
def _calls(model: nn.Module, ids: Tensor) -> dict[str, _Call]:
    """The first call of every linear layer, by name, in order."""
    found: dict[str, _Call] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            value = first_tensor(args, kwargs)
            layout = _layout(name, module, value, output)
            if name not in found and layout is not None:
                found[name] = _Call(value=value.detach().clone(), weights=layout[0], turned=layout[1])

        return hook

    handles = [part.register_forward_hook(watch(name), with_kwargs=True) for name, part in model.named_modules()]
    try:
        model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _layout(
    name: str, module: nn.Module, value: Tensor | None, output: Any
) -> tuple[tuple[str, ...], tuple[bool, ...]] | None:
    """Names of the weights that multiply the input, and whether they are stored (inputs, outputs); None for others."""
    if value is None or not value.is_floating_point():
        return None
    if isinstance(module, nn.MultiheadAttention):
        locals_ = (
            ["in_proj_weight"]
            if module.in_proj_weight is not None
            else ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
        )
        return tuple(f"{name}.{local}".removeprefix(".") for local in locals_), (False,) * len(locals_)
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2 or not isinstance(output, Tensor) or value.shape[-1:] == ():
        return None
    bias = module._parameters.get("bias")
    for turned in (False, True):
        matrix = weight.T if turned else weight
        if matrix.shape != (output.shape[-1], value.shape[-1]):
            continue
        expected = value @ matrix.T + (0.0 if bias is None else bias)
        if torch.allclose(expected, output, rtol=1e-3, atol=1e-5 * (1.0 + float(output.abs().max()))):
            return (f"{name}.weight".removeprefix("."),), (turned,)
    return None


def first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The first tensor among the arguments of a call, or None."""
    return next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """Row space of a gradient: what the inputs of its layer span.

    Attributes:
        basis: orthonormal columns (width, rank), float64.
        slack: relative error to expect of an input that lies in it.
        limit: largest rank that the gradient can have, by its shape.
    """

    basis: Tensor
    slack: float
    limit: int

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.basis.shape[1]

    @property
    def full(self) -> bool:
        """True if its rank is the largest possible: every vector lies in it, or not all inputs do, so that it tells nothing."""
        return self.rank >= self.limit

    @property
    def tolerance(self) -> float:
        """Largest share outside that counts as inside; between rounding and what tells a direction at all."""
        return min(max(_SLACKS * self.slack, _LEAST_TOLERANCE), _LARGEST_TOLERANCE)

    def residuals(self, vectors: Tensor) -> Tensor:
        """Share of each vector (n, width) that lies outside, between 0 and 1."""
        rows = vectors.double()
        outside = rows - (rows @ self.basis) @ self.basis.T
        shares: Tensor = outside.norm(dim=1) / rows.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
        return shares


def span_of(gradient: Tensor, *, eps: float, std: float = 0.0) -> Span:
    """The row space of a gradient with noise-aware rank.

    Without noise each row is taken in units of its own rounding error, so that query, key and value, whose gradients differ by
    orders of magnitude, count alike; the rank is that of the largest gap between singular values near the rounding floor.
    Under Gaussian noise it is the number above what noise of that size reaches.

    Args:
        gradient: (m, width).
        eps: relative rounding error of its numbers.
        std: of noise on each entry.

    Cost: one singular value decomposition.
    """
    rows = gradient.double()
    count, width = rows.shape
    if std == 0.0:
        sizes = rows.norm(dim=1)
        kept = sizes > eps * sizes.max()
        rows = rows[kept] / sizes[kept, None]
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    if std > 0.0:
        floor = 1.05 * std * (math.sqrt(count) + math.sqrt(width))
        rank = int((values > floor).sum())
        slack = floor / float(values[rank - 1]) if rank else 1.0
    else:
        # Rounding leaves singular values of about eps; below them a gap means nothing, and full rank has one to there.
        lower = torch.cat([values[1:], values.new_tensor([eps / 4])]).clamp_min(eps / 4)
        floor = 8 * eps * math.sqrt(len(rows))
        # Terms that cancel in a row leave more: what is left is as flat as noise then.
        places = torch.arange(len(values), device=values.device)
        middles = values[((places + 1 + len(values)) // 2).clamp_max(len(values) - 1)]
        flat = (lower < _CANCELED * floor) & (lower < _FLAT * middles)
        gaps = torch.where((values > 4 * eps) & ((lower < floor) | flat), values / lower, 0.0)
        rank = int(gaps.argmax()) + 1 if bool((gaps > 0).any()) else len(values)
        slack = float(lower[rank - 1] / values[rank - 1])
    return Span(basis=right[:rank].T, slack=slack, limit=min(gradient.shape))

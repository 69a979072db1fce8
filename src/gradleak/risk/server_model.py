"""A model that a server sent: does it make single examples readable, before any gradient of them is computed?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradleak.core import Batch, Objective
from gradleak.results import Evidence, InputError, Leakier, Score, UnsupportedError, check_count

# Fewest public rows: a share of one in ten comes out with a standard error of 4 % then.
FEWEST_ROWS = 64
# In smaller batches rows of honest wide layers are open for one example at a time, too.
SMALLEST_BATCH = 32
# A row or layer that lets at most so many examples of a batch through is open for single examples.
FEW = 2
# Share of a sum from which one example counts as alone in it: what is read is then off by 5 % at most.
ALONE = 0.95
# Shares of a batch from which on a model is reported, and share of live rows open for few. Wide honest layers pass the first
# alone, layers with many dying units the last alone, no honest one of `tests/risk/server_models.py` both.
MOST_ALONE, MOST_BETWEEN, MOST_FEW = 0.25, 0.1, 0.5
# Share of the gradient that one class may supply, where it is at most half of the rows.
MOST_OF_A_CLASS = 0.9
# Two rows point the same way from this cosine on. Where the gradient by the outputs has one direction (two classes), all
# rows below it pass on the same thing, and small initial weights alone make rows nearly parallel; then they have to be equal.
PARALLEL, EQUAL = 0.9, 0.9999
# The gradients of two rows are one up to a factor if their cosine over the examples of both is at least this, on so many.
PROPORTIONAL, JOINT = 0.999, 8
# Directions of fewer numbers are parallel by chance, and reading such an input tells little.
SMALLEST_INPUT = 8
# What is smaller beside the largest of its kind counts as zero.
_ZERO = 1e-6
# Share of the largest gradient from which on an example gets through.
_PASSES = 1e-2
_DRAWS, _PARTNERS = 4, 2
_NUMBERS = 2**25
_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)


@dataclass(frozen=True, kw_only=True)
class LayerOpenness:
    """Examples that a linear layer or convolution lets through, on public rows.

    Attributes:
        name: of the layer, by its parameters.
        rows: units or filters.
        live: rows that are open for any public row.
        alone: share of the examples of a batch that are alone in a row: its gradient by weight over that by bias is their
            input of the layer.
        few: share of the live rows that are open for at most two examples of a batch on average.
        examples_per_row: median over live rows of the examples of a batch that share a row (participation ratio).
        between: share of the examples of a batch that are alone in the difference of two rows that point the same way.
        passing: share of the public rows whose gradient gets through to this layer.
        of_class: largest share of that gradient that one class supplies; None without classes.
        class_rows: the share of the public rows that are of this class.
        pairs: rows whose differences were looked at, those that set most examples apart first.
    """

    name: str
    rows: int
    live: int
    alone: float
    few: float
    examples_per_row: float
    between: float
    passing: float
    of_class: float | None = None
    class_rows: float | None = None
    pairs: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def reasons(self, batch_size: int) -> Iterator[str]:
        """Sentences on what makes single examples readable here; none for a layer as honest models have it.

        Args:
            batch_size: to which the shares apply.
        """
        if self.alone >= MOST_ALONE and self.few >= MOST_FEW:
            yield (
                f"layer {self.name}: {self.alone:.0%} of a batch of {batch_size} are alone in a row, and {self.few:.0%} of "
                f"{self.live} live rows are open for at most {FEW} of them"
            )
        if self.between >= MOST_BETWEEN:
            first = " and ".join(map(str, self.pairs[0])) if self.pairs else ""
            yield (
                f"layer {self.name}: {self.between:.0%} of a batch of {batch_size} are alone in the difference of two rows "
                f"that point the same way, such as {first}"
            )
        if self.live and self.passing * batch_size <= FEW:
            yield (
                f"layer {self.name}: {self.passing:.1%} of the examples get a gradient through, at most {FEW} of a batch of "
                f"{batch_size}"
            )
        elif self.class_rows is not None and self.class_rows <= 0.5 and (self.of_class or 0.0) >= MOST_OF_A_CLASS:
            yield (
                f"layer {self.name}: {self.of_class:.0%} of the gradient that gets through is of one class, which "
                f"{self.class_rows:.0%} of the examples have"
            )


@dataclass(frozen=True, kw_only=True)
class ServerModel:
    """Reading of a model that a server sent.

    Attributes:
        layers: of the forward pass, in order; the one that makes the outputs is left out, whose rows are the classes.
        batch_size: to which shares of a batch apply.
        public_rows: rows that were looked at.
        reasons: sentences on what makes single examples readable; empty for a model like honest ones.
    """

    layers: tuple[LayerOpenness, ...]
    batch_size: int
    public_rows: int
    reasons: tuple[str, ...]

    @property
    def readable(self) -> bool:
        """True if the model makes single examples readable beyond what honest models do."""
        return bool(self.reasons)

    @property
    def advice(self) -> str:
        """One sentence on what to do; "" where there is nothing to do."""
        if not self.readable:
            return ""
        return f"Do not compute a gradient on this model: refuse the round. {'; '.join(self.reasons)}"

    @property
    def score(self) -> Score:
        """Largest share of the examples of a batch that are alone in a row or a difference of rows, over all layers."""
        shares = {one.name: max(one.alone, one.between) for one in self.layers}
        return Score(
            name="examples_alone",
            value=max(shares.values(), default=0.0),
            unit="share",
            leakier=Leakier.HIGHER,
            evidence=Evidence.ESTIMATE,
            n=self.public_rows,
            note=f"of a batch of {self.batch_size}, over public rows",
            details={"by_layer": shares, "reasons": list(self.reasons)},
        )


def check_server_model(objective: Objective, public: Batch, *, batch_size: int = SMALLEST_BATCH) -> ServerModel:
    """Estimate, over public rows, of how much of a batch a model makes readable one by one.

    A row of a linear layer that is open for one example of a batch gives that example's input away, as the quotient of
    its gradients by weight and by bias. A server that chooses the weights can open rows so: by biases or weights that
    shut all but few out, by rows of one direction with rising biases whose differences hold an example each, by layers
    that are shut for almost everybody, or by a head that passes on the gradient of one class. None of these is looked for
    by name. For every linear layer and convolution, the gradient of the loss by its output is taken of each public row,
    with the gradient by the model's outputs scaled to length 1, so that it does not matter how well the model fits. Then
    batches are drawn, and counted is who is alone in a row, or in the difference of two rows whose gradients are otherwise
    one up to a factor.

    Every honest network has some rows that are open for few. A model is reported where a quarter of a batch is alone in
    rows of a layer half of which are open for at most two examples, a tenth is alone in differences of rows, at most two
    examples of a batch get through to a layer, or nine tenths of the gradient is of one class. A model whose training
    collapsed may be open for one row in a hundred, too, and reads the same.

    Assumptions: an estimate. Public rows are like the private ones. Not seen are weights that leave no more than honest
    ones do to single rows (a few planted rows in a wide layer), a head of two classes that is shut for one, and what is
    computed without `linear` and convolutions (recurrent layers, the projections inside of fused attention).

    Args:
        objective: the model as it was sent, with its loss, in the mode of the client.
        public: at least 64 rows with targets, like those of the client, for instance its own: nothing leaves.
        batch_size: of the client; smaller ones are looked at as 32, larger ones than half of the rows as that half.

    Raises:
        InputError: for too few rows, or rows that the model does not take.
        UnsupportedError: if the model returns anything but one tensor, or numbers that are not finite.

    Cost: one forward and one backward pass over the public rows in float64, a product of matrices of (rows, rows) a layer.

    Source: ours; the models that it is tested on are after Boenisch et al. 2023 ("When the curious abandon honesty"), Fowl
    et al. 2022 ("Robbing the Fed") and Wen et al. 2022 ("Fishing for user data").
    """
    check_count("batch_size", batch_size)
    if public.size < FEWEST_ROWS:
        raise InputError(
            f"public rows: expected at least {FEWEST_ROWS}, of which shares can be told, got {public.size}; pass more rows "
            "that are like those of the client"
        )
    objective = objective.to(torch.float64)
    public = public.to(torch.float64)
    public = replace(public, inputs=public.inputs.to(objective.device), targets=public.targets.to(objective.device))
    objective.check(public)
    size = max(FEW, min(max(batch_size, SMALLEST_BATCH), public.size // 2))
    sensed, one_direction = _sense(objective, public, size)
    batches = _batches(public.size, size)
    same_way = EQUAL if one_direction else PARALLEL
    layers = tuple(_openness(layer, public.targets, batches, same_way) for layer in sensed)
    reasons = tuple(dict.fromkeys(reason for layer in reversed(layers) for reason in layer.reasons(size)))
    return ServerModel(layers=layers, batch_size=size, public_rows=public.size, reasons=reasons)


@dataclass(eq=False)
class _Sensed:
    """A layer and the gradients by its outputs, of each public row, as sizes and as sums over positions, (n, rows)."""

    name: str
    weight: Tensor
    sizes: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)


class _Watch(TorchFunctionMode):
    """Adds a zero to what every linear layer and convolution with a trained weight returns, to differentiate by."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples = examples
        self.calls: list[tuple[Any, Any, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call through, with the zero."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is not F.linear and func not in _CONVOLUTIONS:
            return result
        weight, bias = (kwargs.get(key, (*args, None, None)[place]) for key, place in (("weight", 1), ("bias", 2)))
        if not weight.requires_grad or result.shape[0] % self.examples:
            return result
        zero = torch.zeros_like(result, requires_grad=True)
        result = result + zero
        self.calls.append((weight, bias, zero, result))
        return result


def _sense(objective: Objective, public: Batch, size: int) -> tuple[list[_Sensed], bool]:
    """The layers before the outputs, and whether the gradient by the outputs has the same direction in every row."""
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in objective.params.items()}
    names = {id(tensor): name for name, tensor in params.items()}
    found: dict[int, _Sensed] = {}
    directions: list[Tensor] = []
    start, step = 0, size if objective.batch_statistics else FEW
    while start < public.size:
        # BatchNorm in train mode may refuse a last example alone.
        end = public.size if public.size - start - step < FEW else start + step
        inputs, targets = public.inputs[start:end], public.targets[start:end]
        watch = _Watch(len(inputs))
        with torch.enable_grad(), watch:
            outputs = objective.outputs(params, inputs)
        if not isinstance(outputs, Tensor) or not bool(torch.isfinite(outputs).all()):
            raise UnsupportedError(
                "model: expected one tensor of finite numbers as its output on the public rows, got "
                f"{type(outputs).__name__}; refuse a model that overflows, or wrap one that returns more"
            )
        direction = _directions(objective, outputs, targets)
        directions.append(direction.flatten(1))
        inner = [call for call in watch.calls if call[3] is not outputs]
        zeros = [zero for _, _, zero, _ in inner]
        # A network whose only trained layer makes the outputs has no row that could be open for an example.
        by_call = torch.autograd.grad(outputs, zeros, direction, allow_unused=True) if zeros else ()
        for place, ((weight, bias, zero, _), given) in enumerate(zip(inner, by_call, strict=True)):
            if place not in found:
                found[place] = _Sensed(_layer_name(names, weight, bias, place), weight.detach())
            gradient = torch.zeros_like(zero) if given is None else given
            if weight.dim() > 2:
                gradient = gradient.movedim(1, -1)
            gradient = gradient.reshape(len(inputs), -1, gradient.shape[-1])
            found[place].sizes.append(gradient.abs().sum(1))
            found[place].sums.append(gradient.sum(1))
        if start == 0 and step == FEW:
            numbers = sum(zero.numel() for _, _, zero, _ in watch.calls) // len(inputs) + inputs[0].numel()
            step, start = max(FEW, min(256, _NUMBERS // max(numbers, 1))), end
            continue
        start = end
    whole = torch.cat(directions)
    cosines = (whole @ whole[0]).abs()
    return list(found.values()), bool((cosines >= 1 - _ZERO).all())


def _directions(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """Gradients of the loss by the outputs of each example, of length 1.

    One that is fitted to the last digit has none; that of smaller outputs stands in its place.
    """
    shape = (-1, *[1] * (outputs.dim() - 1))
    found = torch.zeros_like(outputs)
    lengths = found.flatten(1).norm(dim=1)
    for shrink in (1.0, 1 / 4, 1 / 16, 1 / 256):
        leaf = (outputs.detach() * shrink).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(objective.loss_of_outputs(leaf, targets), leaf)
        found = torch.where((lengths == 0).reshape(shape), gradient, found)
        lengths = found.flatten(1).norm(dim=1)
    unit: Tensor = found / lengths.clamp_min(torch.finfo(found.dtype).tiny).reshape(shape)
    return unit


def _layer_name(names: Mapping[int, str], weight: Tensor, bias: Any, place: int) -> str:
    """The layer by its weight or, where that is computed (pruning, weight norm), by its bias."""
    known = names.get(id(weight)) or names.get(id(bias)) or ""
    return known.rpartition(".")[0] or known or f"number {place + 1} of the forward pass"


def _batches(rows: int, size: int) -> Tensor:
    """Places of the examples of several drawn batches, (batches, size)."""
    generator = torch.Generator().manual_seed(0)
    whole = rows - rows % size
    return torch.cat([torch.randperm(rows, generator=generator)[:whole].reshape(-1, size) for _ in range(_DRAWS)])


def _openness(layer: _Sensed, targets: Tensor, batches: Tensor, same_way: float) -> LayerOpenness:
    sizes, sums = torch.cat(layer.sizes), torch.cat(layer.sums)
    largest = sizes.amax(0)
    live = largest > _ZERO**1.5 * largest.max()
    shared = sizes[:, live].sum(0).square() / sizes[:, live].square().sum(0)
    examples = shared * batches.shape[1] / len(sizes)
    through = sizes.norm(dim=1)
    of_class, class_rows = _one_class(through, targets)
    pairs, differences = _differences(sums, layer.weight.flatten(1), same_way)
    between, counts = _alone(differences, batches)
    alone, _ = _alone(sizes[:, live], batches)
    order = counts.argsort(descending=True, stable=True)
    return LayerOpenness(
        name=layer.name,
        rows=sizes.shape[1],
        live=int(live.sum()),
        alone=alone,
        few=float((examples <= FEW).double().mean()) if len(examples) else 0.0,
        examples_per_row=float(examples.median()) if len(examples) else 0.0,
        between=between,
        passing=float((through > _PASSES * through.max()).double().mean()),
        of_class=of_class,
        class_rows=class_rows,
        pairs=tuple((int(one), int(other)) for one, other in pairs[order].tolist()),
    )


def _one_class(through: Tensor, targets: Tensor) -> tuple[float | None, float | None]:
    """The largest share of the gradient that one class supplies, and the share of the rows that it has."""
    if targets.dim() != 1 or targets.is_floating_point() or not float(through.sum()):
        return None, None
    classes, member = targets.unique(return_inverse=True)
    supplied = torch.zeros(len(classes), dtype=through.dtype, device=through.device).index_add_(0, member, through)
    most = int(supplied.argmax())
    return float(supplied[most] / supplied.sum()), float((member == most).double().mean())


def _alone(sizes: Tensor, batches: Tensor) -> tuple[float, Tensor]:
    """The share of examples that are alone in a column of `sizes` (n, columns), and how many a column holds so."""
    counts = torch.zeros(sizes.shape[1], dtype=torch.int64, device=sizes.device)
    if not sizes.shape[1]:
        return 0.0, counts
    floor, found = sizes.amax(0) * _ZERO, 0
    for members in batches.to(sizes.device):
        inside = sizes[members]
        top, place = inside.max(0)
        alone = (top >= ALONE * inside.sum(0)) & (top > floor)
        counts += alone
        found += len(place[alone].unique())
    return found / batches.numel(), counts


def _differences(sums: Tensor, weight: Tensor, same_way: float) -> tuple[Tensor, Tensor]:
    """Pairs of rows (k, 2) that point the same way and differ by few examples, and the size of each difference (n, k).

    The factor between two rows is the server's to know; here it is fitted where both are open.
    """
    none = torch.zeros(0, 2, dtype=torch.int64), sums[:, :0]
    if weight.shape[1] < SMALLEST_INPUT or len(weight) < 2:
        return none
    scaled = sums / sums.abs().amax(0).clamp_min(torch.finfo(sums.dtype).tiny)
    scaled = torch.where(scaled.abs() > _ZERO, scaled, 0.0)
    is_open = (scaled != 0).to(scaled.dtype)
    unit, squares, count = F.normalize(weight, dim=1), scaled.square(), is_open.sum(0)
    found: list[Tensor] = []
    block = max(1, _NUMBERS // len(weight) // 8)
    for start in range(0, len(weight), block):
        mine = slice(start, start + block)
        joint = is_open[:, mine].T @ is_open
        norms = (squares[:, mine].T @ is_open) * (is_open[:, mine].T @ squares)
        cosines = (scaled[:, mine].T @ scaled).abs() / norms.sqrt().clamp_min(torch.finfo(norms.dtype).tiny)
        apart = count[mine, None] + count - 2 * joint
        fits = (unit[mine] @ unit.T >= same_way) & (cosines >= PROPORTIONAL) & (joint >= JOINT) & (apart > 0)
        near, other = torch.where(fits, apart, math.inf).topk(min(_PARTNERS, len(weight)), largest=False)
        one = torch.arange(start, start + len(near), device=other.device)[:, None].expand_as(other)
        found.append(torch.stack([one, other], -1)[near < math.inf])
    pairs = torch.cat(found).sort(dim=1).values.unique(dim=0)
    if not len(pairs):
        return none
    left, right = scaled[:, pairs[:, 0]], scaled[:, pairs[:, 1]]
    factor = (left * right).sum(0) / (right.square() * (left != 0)).sum(0)
    difference = (left - factor * right).abs()
    scale = torch.maximum(left.abs().amax(0), (factor * right).abs().amax(0))
    return pairs, torch.where(difference > _ZERO * scale, difference, 0.0)

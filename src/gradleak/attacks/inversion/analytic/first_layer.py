"""The first linear layer that reads an example: which of its inputs is which entry of the example, found by running the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from gradleak.core import Domain, Effect, Knowledge, ModelDefense, Objective, Protocol, Scaled, ScaledRows, Unchanged
from gradleak.core.module_copy import first_line
from gradleak.core.objective import Tensors
from gradleak.results import UnsupportedError

# Entries of drawn examples are told apart, and equations held, to this relative error, in float64.
_ALIKE = 1e-9
# Layers with so many times more inputs than an example has entries read each of them several times.
_MOST = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One call of a linear layer or a convolution, as products with rows.

    Attributes:
        weight: name of the weight.
        bias: name of the bias, or None.
        rows: what the weight is multiplied with, (b, n, k): n places of an example.
        result: what came out, the very tensor.
    """

    weight: str
    bias: str | None
    rows: Tensor
    result: Tensor

    def at_places(self, tensor: Tensor) -> Tensor:
        """A tensor of the shape of the result as (b, n, outputs)."""
        if self.rows.shape[1] == 1 or tensor.dim() == 3:
            return tensor.reshape(len(self.rows), self.rows.shape[1], -1)
        return tensor.flatten(2).transpose(1, 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstLayer:
    """A layer z ↦ W z + b at n places, whose k inputs at each place are entries of the example, scaled and shifted.

    Attributes:
        weight: name of W.
        bias: name of b, or None.
        places: n.
        width: k.
        positions: name of the parameter that is added to what the layer makes, place by place, and the row of the first
            place in it; None where there is none. For a layer at one place that may be its bias.
        entries: number of the entry of the example that each input is, (n, k); −1 for one that reads none.
        scale: of that entry, (n, k), float64.
        shift: added to it, (n, k), float64.
        size: entries of an example.
    """

    weight: str
    bias: str | None
    places: int
    width: int
    positions: tuple[str, int] | None
    entries: Tensor
    scale: Tensor
    shift: Tensor
    size: int

    @property
    def unread(self) -> int:
        """Entries of an example that no input of the layer reads."""
        return self.size - len(self.entries[self.entries >= 0].unique())

    def matrix(self, gradient: Tensor) -> Tensor:
        """A gradient of W as a matrix (outputs, k), float64."""
        return gradient.double().reshape(len(gradient), self.width)

    def added(self, tensors: Tensors) -> Tensor:
        """Rows (n, outputs) of the parameter that is added place by place, float64, of an update by name."""
        assert self.positions is not None
        name, first = self.positions
        return _as_rows(tensors[name].double(), len(tensors[self.weight]))[first : first + self.places]

    def example(self, rows: Tensor, otherwise: Tensor) -> Tensor:
        """Examples (b, d) whose rows (b, n, k) these are; entries that the layer does not read are as in `otherwise` (d,)."""
        read = self.entries >= 0
        values = otherwise.expand(len(rows), -1).clone()
        values[:, self.entries[read]] = (rows[:, read] - self.shift[read]) / self.scale[read]
        return values

    def rows(self, examples: Tensor) -> Tensor:
        """Rows (b, n, k) of examples (b, d)."""
        taken = examples[:, self.entries.clamp(min=0)]
        return torch.where(self.entries >= 0, taken * self.scale, 0.0) + self.shift


def read_first_layer(knowledge: Knowledge, asker: str) -> FirstLayer:
    """The first linear layer or convolution of a model whose inputs are entries of the example, each at most once.

    Layers are found by what they are given on drawn examples: it makes no difference how the model is built, what it does with
    an example first (normalization, patches cut out and turned), and what follows. That the gradient of the layer is the sum
    of the products of what it passes back and what it is given is checked there, too; so is what is added place by place.

    Args:
        knowledge: with the objective and the domain.
        asker: who needs it, for messages.

    Raises:
        UnsupportedError: naming what the model lacks.

    **Cost**: four forward passes of one example and one gradient.
    """
    assert knowledge.objective is not None
    assert knowledge.domain is not None
    objective, domain = knowledge.objective.to(torch.float64), knowledge.domain
    probes = [_drawn(objective, domain, seed) for seed in range(3)]
    zero = torch.zeros_like(probes[0])
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in objective.params.items()}
    # Masks in front of the layer are not known: the last example meets other ones.
    runs = zip((objective, objective, objective, objective.redrawn), (zero, *probes), strict=True)
    at_zero, one, two, three = (_run(each, params, inputs, asker)[0] for each, inputs in runs)
    reasons = []
    for place, call in enumerate(one):
        found = _entries_of(*(calls[place].rows for calls in (at_zero, one, two, three)), *probes)
        if found is None:
            continue
        if isinstance(found, str):
            reasons.append(f"{call.weight} {found}")
            continue
        entries, scale, shift = found
        layer = FirstLayer(
            weight=call.weight,
            bias=call.bias,
            places=call.rows.shape[1],
            width=call.rows.shape[2],
            positions=None,
            entries=entries,
            scale=scale,
            shift=shift,
            size=domain.size,
        )
        checked = _checked(layer, objective, params, probes[0], asker)
        if isinstance(checked, str):
            reasons.append(checked)
            continue
        return checked
    got = "; ".join(reasons) or "none that reads it entry by entry, or whose weight is shared"
    raise UnsupportedError(
        f"{asker} needs a linear layer on the example itself, or on patches of it that do not overlap, got {got}; use "
        "GaussNewton or InvertingGradients"
    )


def keeps_rows(knowledge: Knowledge, names: Sequence[str]) -> bool:
    """True if the update holds these tensors of every example's gradient times one factor each, with noise at most.

    So it is for a gradient, for local steps of plain SGD without weight decay (of sums of such gradients), and under clipping
    of examples, layers or the update. Signs, rounding and pruning leave something else.

    Args:
        knowledge: with protocol and batch size.
        names: of the tensors.
    """
    protocol, examples = knowledge.protocol, knowledge.batch_size
    assert protocol is not None
    assert examples is not None
    if protocol.mini_batch_weights(examples) is None or protocol.decay(examples):
        return False
    return all(_keeps(effect, names) for effect in _effects(knowledge, protocol))


def keeps_scale(knowledge: Knowledge) -> bool:
    """True if the update is the gradient times a known factor, with noise at most.

    Args:
        knowledge: with the protocol.
    """
    assert knowledge.protocol is not None
    scale = knowledge.protocol.gradient_scale()
    return scale is not None and all(isinstance(one, Unchanged) for one in _effects(knowledge, knowledge.protocol))


def _effects(knowledge: Knowledge, protocol: Protocol) -> list[Effect]:
    assert knowledge.objective is not None
    clients = protocol.clients_added
    defenses = (*(() if clients is None else clients.defenses), *(knowledge.defenses or ()))
    # What a defense does to the model is in the objective.
    return [one.effect(knowledge.objective.params) for one in defenses if not isinstance(one, ModelDefense)]


def _keeps(effect: Effect, names: Sequence[str]) -> bool:
    if isinstance(effect, Scaled | ScaledRows):
        return any(set(names) <= set(group) for group in effect.groups)
    return isinstance(effect, Unchanged)


@torch.no_grad()
def _drawn(objective: Objective, domain: Domain, seed: int) -> Tensor:
    count = 2 if objective.batch_statistics else 1
    pixels = torch.rand(count, *domain.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return domain.from_pixels(pixels.to(objective.device))


class Watch(TorchFunctionMode):
    """Keeps the calls of linear layers and convolutions by the weights that they use."""

    def __init__(self, params: Tensors) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in params.items()}
        self.calls: list[Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and keep what it was given where it is one of them."""
        result = func(*args, **(kwargs or {}))
        if func is F.linear or func is torch.conv2d:
            given = dict(
                zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, strict=False)
            )
            given |= kwargs or {}
            name = self.names.get(id(given["weight"]))
            rows = _rows(func, given) if name is not None else None
            if name is not None and rows is not None:
                bias = self.names.get(id(given.get("bias")))
                self.calls.append(Call(weight=name, bias=bias, rows=rows, result=result))
        return result


def _rows(func: Any, given: dict[str, Any]) -> Tensor | None:
    """Rows that the weight is multiplied with (b, n, k); None for convolutions of another kind."""
    inputs, weight = given["input"].detach(), given["weight"]
    if func is F.linear:
        return inputs.reshape(len(inputs), -1, inputs.shape[-1]) if inputs.dim() > 1 else None
    if isinstance(given.get("padding", 0), str) or given.get("groups", 1) != 1 or inputs.dim() != 4:
        return None
    unfolded = F.unfold(
        inputs,
        weight.shape[2:],
        dilation=given.get("dilation", 1),
        padding=given.get("padding", 0),
        stride=given.get("stride", 1),
    )
    return unfolded.transpose(1, 2)


def _run(objective: Objective, params: Tensors, inputs: Tensor, asker: str) -> tuple[list[Call], Any]:
    watch = Watch(params)
    try:
        with watch:
            outputs = objective.outputs(params, inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise UnsupportedError(
            f"{asker} needs a model that takes an example of shape {tuple(inputs.shape[1:])} alone, got {first_line(error)}"
        ) from error
    return watch.calls, outputs


def _entries_of(
    zero: Tensor, one: Tensor, two: Tensor, three: Tensor, *probes: Tensor
) -> tuple[Tensor, Tensor, Tensor] | str | None:
    """Entry, scale and shift of each input (n, k); None where inputs are no scaled entries, or a reason to refuse them."""
    if not one.shape == two.shape == three.shape == zero.shape or one.numel() > _MOST * probes[0].numel():
        return None
    shift = zero[0]
    moved = [rows[0] - shift for rows in (one, two, three)]
    first, second, third = (probe[0].reshape(-1) for probe in probes)
    still = (moved[0] == 0) & (moved[1] == 0)
    if bool(still.all()):
        return None
    # The ratio of two drawn values names the entry, whatever the scale.
    ratios, order = (first / second).sort()
    asked = torch.where(still, 0.0, moved[0] / moved[1])
    after = torch.searchsorted(ratios, asked.contiguous()).clamp(1, len(ratios) - 1) if len(ratios) > 1 else None
    if after is None:
        near = torch.zeros_like(asked, dtype=torch.int64)
    else:
        near = torch.where((asked - ratios[after - 1]).abs() < (ratios[after] - asked).abs(), after - 1, after)
    entries = order[near]
    scale = moved[0] / first[entries]
    fits = torch.isclose(scale * third[entries], moved[2], rtol=_ALIKE, atol=_ALIKE * float(moved[2].abs().max()))
    fits &= torch.isclose(scale * second[entries], moved[1], rtol=_ALIKE, atol=_ALIKE * float(moved[1].abs().max()))
    if not bool((fits | still).all()):
        return None
    used = entries[~still]
    if len(used.unique()) < len(used):
        return "reads patches that overlap"
    return torch.where(still, -1, entries), torch.where(still, 1.0, scale), shift


def _checked(layer: FirstLayer, objective: Objective, params: Tensors, probe: Tensor, asker: str) -> FirstLayer | str:
    """The layer with what is added to its output, or the reason why its gradient is not the sum of products."""
    calls, outputs = _run(objective, params, probe, asker)
    mine = [call for call in calls if call.weight == layer.weight]
    if len(mine) > 1:
        return f"{layer.weight} in several calls"
    leaves = [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    stream = torch.Generator().manual_seed(7)
    scalar = sum((leaf * torch.randn(leaf.shape, generator=stream, dtype=leaf.dtype)).sum() for leaf in leaves)
    if not isinstance(scalar, Tensor):
        return f"{layer.weight}, which no output depends on"
    found = torch.autograd.grad(scalar, [mine[0].result, *params.values()], allow_unused=True)
    gradients = {name: one for name, one in zip(params, found[1:], strict=True) if one is not None}
    if found[0] is None or layer.weight not in gradients:
        return f"{layer.weight}, which no output depends on"
    passed = mine[0].at_places(found[0])
    expected = torch.einsum("bno,bnk->ok", passed, mine[0].rows)
    passed = passed.sum(dim=0)
    made = layer.matrix(gradients[layer.weight])
    if not torch.allclose(made, expected, rtol=1e-7, atol=1e-9 * float(expected.abs().max())):
        return f"{layer.weight}, whose gradient holds more than what one call of it passes back"
    summed = gradients.get(layer.bias or "")
    bias = layer.bias if summed is not None and torch.allclose(summed, passed.sum(dim=0), rtol=1e-7) else None
    positions = next(
        (
            (name, first)
            for name, one in gradients.items()
            if name != layer.weight and (first := _place_of(_as_rows(one, passed.shape[1]), passed)) is not None
        ),
        None,
    )
    return FirstLayer(**{**vars(layer), "bias": bias, "positions": positions})


def _as_rows(tensor: Tensor, width: int) -> Tensor:
    """A parameter as rows (t, width): (..., t, width), or channels first; no rows where it is neither."""
    if tensor.shape and tensor.shape[-1] == width:
        return tensor.reshape(-1, width)
    if tensor.dim() >= 3 and tensor.shape[-3] == width and tensor.numel() == tensor.shape[-3:].numel():
        return tensor.reshape(width, -1).T
    return tensor.new_zeros(0, width)


def _place_of(rows: Tensor, wanted: Tensor) -> int | None:
    """Number of the first of consecutive rows that are those wanted, or None."""
    size = float(wanted.abs().max())
    for first in range(len(rows) - len(wanted) + 1):
        if torch.allclose(rows[first : first + len(wanted)], wanted, rtol=1e-7, atol=1e-9 * size):
            return first
    return None

"""Gradients of index batches from the inputs and output gradients of linear layers, without a gradient of any row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gradleak.core import Batch, ExampleDefense, Objective, ScaledRows
from gradleak.core.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class LinearUse:
    """One call of `linear` with a shared parameter.

    Attributes:
        weight: its name, or None where it is not shared.
        bias: likewise.
        entered: shape of what goes in for one example, with the leading 1.
        left: shape of what comes out.
    """

    weight: str | None
    bias: str | None
    entered: torch.Size
    left: torch.Size

    @property
    def positions(self) -> int:
        """Number of applications for one example: 1, or the number of tokens."""
        return self.left.numel() // self.left[-1]

    @property
    def numbers(self) -> int:
        """Number of values of an example that are kept: its inputs and output gradients."""
        return self.positions * (self.entered[-1] + self.left[-1])

    @property
    def products(self) -> int:
        """Number of multiplications that an example takes in a batch's gradient."""
        return self.positions * self.left[-1] * (self.entered[-1] if self.weight else 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearRows:
    """Means over index batches of the gradients of single examples, every shared parameter being one of linear layers.

    With x the input of a layer and e the gradient of an example's loss with respect to its output, the gradient of the
    weight is e xᵀ (a sum over positions where there are several), so that a batch's is one product E X of its k rows, and
    that of the bias the sum of e. Clipping of an example to a norm scales its e by min(1, C/‖g‖), where
    ‖e xᵀ‖ = ‖e‖‖x‖; for several positions ‖Σ eₚxₚᵀ‖² = Σₚₛ ⟨eₚ, eₛ⟩⟨xₚ, xₛ⟩.

    Layers are found from the computation: a parameter that enters through anything but `linear` rules this out.

    Assumptions: exact, for a loss that is a mean (or, `summed`, a sum) over examples that do not mix. Whoever builds one
    compares it with the release.

    Attributes:
        objective: the client's loss.
        uses: of linear layers, in order.
        clip_norm: the smallest norm that defenses of examples scale a row to, or None.
        last: the defense whose divisor the sum has; None for the number of examples.
        summed: whether the loss is a sum over examples.
    """

    objective: Objective
    uses: Sequence[LinearUse] = field(repr=False)
    clip_norm: float | None = None
    last: ExampleDefense | None = None
    summed: bool = False

    @classmethod
    def of(cls, objective: Objective, defenses: Sequence[ExampleDefense], example: Batch) -> LinearRows | None:
        """The means for this model, or None where a parameter is used otherwise or a defense needs whole rows.

        Args:
            objective: the client's loss.
            defenses: of the example stage, in order.
            example: a batch of one, in the dtype of the objective.
        """
        effects = [defense.effect(objective.params) for defense in defenses]
        # Scaling of a whole row to a norm is what the two sides of the layers are enough for.
        scaling = [effect for effect in effects if isinstance(effect, ScaledRows) and len(effect.groups) == 1]
        last = defenses[-1] if defenses else None
        if len(scaling) < len(effects) or (last is not None and last.divisor(1) is None):
            return None
        with torch.no_grad(), _Tape(objective.params) as tape:
            objective.loss(objective.params, example)
        if tape.elsewhere or not tape.uses:
            return None
        return cls(
            objective=objective,
            uses=tuple(tape.uses),
            clip_norm=min(effect.max_norms[0] for effect in scaling) if scaling else None,
            last=last,
        )

    @property
    def row_numbers(self) -> int:
        """Number of values that a row takes in memory."""
        return sum(use.numbers for use in self.uses)

    @property
    def products(self) -> int:
        """Number of multiplications that a row takes in a batch's gradient."""
        return sum(use.products for use in self.uses)

    def batch_numbers(self, examples: int) -> int:
        """Number of values that a batch takes while its gradient is made."""
        return 2 * self.objective.size + examples * self.row_numbers

    def prepare(self, rows: Batch, block: int) -> list[tuple[Tensor, Tensor]]:
        """(inputs, output gradients) of every use for these rows: (n, positions, in) and (n, positions, out).

        Args:
            rows: in the dtype of the objective.
            block: how many rows go through the model at once.
        """
        params = self.objective.params
        probes = [next(iter(params.values())).new_zeros(use.left) for use in self.uses]

        def sides(inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            def loss(zeros: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
                with _Tape(params, zeros) as tape:
                    value = self.objective.loss(params, Batch(inputs[None], targets[None]))
                return value, tape.entered

            errors, entered = torch.func.grad(loss, has_aux=True)(probes)
            return entered, errors

        made = []
        for start in range(0, rows.size, block):
            place = slice(start, start + block)
            entered, errors = torch.func.vmap(sides, randomness="same")(rows.inputs[place], rows.targets[place])
            pairs = [
                (x.reshape(len(x), -1, x.shape[-1]), e.reshape(len(e), -1, e.shape[-1]))
                for x, e in zip(entered, errors, strict=True)
            ]
            made.append(self._clipped(pairs))
        return [(torch.cat([b[i][0] for b in made]), torch.cat([b[i][1] for b in made])) for i in range(len(self.uses))]

    def averages(self, tables: list[tuple[Tensor, Tensor]], index: Tensor) -> Tensor:
        """The means (c, P) of the rows at `index` (c, k) of the tables."""
        count, examples = index.shape
        places, sizes = _slices(self.objective.params), self.objective.params
        made = tables[0][0].new_zeros(count, self.objective.size)
        divisor = None if self.last is None else self.last.divisor(examples)
        factor = 1.0 if self.summed else 1 / (divisor or examples)
        flat, begun = index.reshape(-1), set[str]()
        for use, (inputs, errors) in zip(self.uses, tables, strict=True):
            e = errors.index_select(0, flat).reshape(count, -1, errors.shape[2]).mul_(factor)
            if use.weight is not None:
                x = inputs.index_select(0, flat).reshape(count, -1, inputs.shape[2])
                product = torch.bmm(e.transpose(1, 2), x).reshape(count, -1)
                _put(made[:, places[use.weight]], product, first=use.weight not in begun)
            if use.bias is not None:
                # A bias of one number is added to every output.
                total = e.sum(dim=1).sum_to_size(count, sizes[use.bias].numel())
                _put(made[:, places[use.bias]], total, first=use.bias not in begun)
            begun |= {name for name in (use.weight, use.bias) if name is not None}
        return made

    def _clipped(self, pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """The pairs with output gradients scaled so that no row's gradient is longer than `clip_norm`."""
        if self.clip_norm is None:
            return pairs
        squared: Tensor = torch.zeros((), dtype=pairs[0][0].dtype, device=pairs[0][0].device)
        for weight in dict.fromkeys(use.weight for use in self.uses if use.weight is not None):
            mine = [pair for use, pair in zip(self.uses, pairs, strict=True) if use.weight == weight]
            squared = squared + _squared_norms(torch.cat([x for x, _ in mine], 1), torch.cat([e for _, e in mine], 1))
        for bias in dict.fromkeys(use.bias for use in self.uses if use.bias is not None):
            entries = self.objective.params[bias].numel()
            sums = [
                e.sum(1).sum_to_size(len(e), entries)
                for use, (_, e) in zip(self.uses, pairs, strict=True)
                if use.bias == bias
            ]
            squared = squared + torch.stack(sums).sum(0).square().sum(1)
        bites = squared > self.clip_norm**2
        scale = torch.where(bites, self.clip_norm * torch.rsqrt(torch.where(bites, squared, 1.0)), 1.0)
        return [(x, e * scale[:, None, None]) for x, e in pairs]


class _Tape(TorchFunctionMode):
    """Watches how parameters enter: through `linear`, with what, and where else; adds probes to the outputs."""

    def __init__(self, params: Mapping[str, Tensor], probes: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in params.items()}
        self._probes = probes
        self.uses: list[LinearUse] = []
        self.entered: list[Tensor] = []
        self.elsewhere: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        used = {self._names[id(leaf)] for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._names}
        if not used:
            return result
        if func is F.linear:
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            entered = given["input"]
            if id(entered) not in self._names:
                weight, bias = (self._names.get(id(given.get(key))) for key in ("weight", "bias"))
                self.uses.append(LinearUse(weight=weight, bias=bias, entered=entered.shape, left=result.shape))
                # A copy: the input may be changed in place later on.
                self.entered.append(entered.clone())
                return result if self._probes is None else result + self._probes[len(self.uses) - 1]
        # What gives no tensor reads a shape or a dtype.
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.elsewhere |= used
        return result


def _slices(params: Tensors) -> dict[str, slice]:
    """Place of every parameter in the flat update."""
    places, start = {}, 0
    for name, tensor in params.items():
        places[name] = slice(start, start + tensor.numel())
        start += tensor.numel()
    return places


def _put(target: Tensor, values: Tensor, *, first: bool) -> None:
    target.copy_(values) if first else target.add_(values)


def _squared_norms(x: Tensor, e: Tensor) -> Tensor:
    """‖Σₚ eₚxₚᵀ‖² of every row: x (n, s, in), e (n, s, out)."""
    if x.shape[1] == 1:
        return x.square().sum((1, 2)) * e.square().sum((1, 2))
    if x.shape[1] ** 2 > x.shape[2] * e.shape[2]:
        return torch.bmm(e.transpose(1, 2), x).square().sum((1, 2))
    return (torch.bmm(x, x.transpose(1, 2)) * torch.bmm(e, e.transpose(1, 2))).sum((1, 2))

"""Gradients of index batches where every row has one of its own, and where a batch is more than its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core import Batch, ExampleDefense, Objective, Protocol, example_gradients


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleRows:
    """Means over index batches of the defended gradients of single examples, each of which is computed once.

    Assumptions: exact with defenses of examples, whose release is such a mean; without, for a loss that is a mean (or,
    `summed`, a sum) over examples that do not mix. Whoever builds one compares it with the release.

    Attributes:
        objective: the client's loss.
        defenses: of the example stage, in order.
        summed: whether the loss is a sum over examples.
    """

    objective: Objective
    defenses: Sequence[ExampleDefense] = ()
    summed: bool = False

    @property
    def row_numbers(self) -> int:
        """Number of values that a row takes in memory: its gradient."""
        return self.objective.size

    @property
    def pools(self) -> bool:
        """True if the average of defended rows is known to be a multiple of their mean."""
        last = self.defenses[-1] if self.defenses else None
        return last is None or last.divisor(1) is not None

    def batch_numbers(self, examples: int) -> int:
        """Number of values that a batch takes while its gradient is made."""
        return self.objective.size * (2 if self.pools else 2 * examples)

    def prepare(self, rows: Batch, block: int) -> Tensor:
        """The defended gradients of these rows, (n, P).

        Args:
            rows: in the dtype of the objective.
            block: how many rows go through the model at once.
        """
        made = []
        for start in range(0, rows.size, block):
            place = slice(start, start + block)
            gradients = example_gradients(
                self.objective, self.objective.params, Batch(rows.inputs[place], rows.targets[place])
            )
            for defense in self.defenses:
                gradients = defense.mean(gradients)
            made.append(flat_rows(self.objective, gradients))
        return made[0] if len(made) == 1 else torch.cat(made)

    def averages(self, table: Tensor, index: Tensor) -> Tensor:
        """The averages (c, P) of the rows at `index` (c, k) of the table."""
        if self.pools:
            mean = F.embedding_bag(index.to(table.device), table, mode="mean")
            last, examples = (self.defenses[-1] if self.defenses else None), index.shape[1]
            divisor = None if last is None else last.divisor(examples)
            if divisor is not None and divisor != examples:
                return mean * (examples / divisor)
            return mean * examples if self.summed else mean
        average = self.defenses[-1].average
        singles = [average(row_tensors(self.objective, table[places])) for places in index]
        return torch.stack([self.objective.flatten(single) for single in singles])


@dataclass(frozen=True, kw_only=True, eq=False)
class StackedBatches:
    """The protocol's updates of many batches at once, by vmap over batches: examples may mix and local steps be taken.

    Attributes:
        objective: the client's loss.
        protocol: what the client computes.
        defenses: of the example stage; their noise is left out.
        own_masks: whether random layers draw for every batch, or the same for all (those of a single batch).
    """

    objective: Objective
    protocol: Protocol
    defenses: Sequence[ExampleDefense] = ()
    own_masks: bool = False

    @property
    def row_numbers(self) -> int:
        """Number of values that a row takes in memory besides itself."""
        return 0

    def batch_numbers(self, examples: int) -> int:
        """Number of values that a batch takes, without what the model keeps for its backward pass."""
        return 4 * self.objective.size

    def prepare(self, rows: Batch, block: int) -> Batch:
        """The rows themselves."""
        return rows

    def averages(self, table: Batch, index: Tensor) -> Tensor:
        """The updates (c, P) of the batches at `index` (c, k)."""
        params = self.objective.params

        def one(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return self.protocol.mean(self.objective, params, Batch(inputs, targets, table.domain), self.defenses)

        index = index.to(table.inputs.device)
        if self.defenses and self.own_masks:
            # What it tests of an objective it cannot test under vmap where layers draw; it remembers the answer.
            example_gradients(self.objective, params, Batch(table.inputs[:1], table.targets[:1]))
        drawn = "different" if self.own_masks else "same"
        made: dict[str, Tensor] = torch.func.vmap(one, randomness=drawn)(table.inputs[index], table.targets[index])
        return flat_rows(self.objective, made)


def flat_rows(objective: Objective, tensors: dict[str, Tensor]) -> Tensor:
    """Named tensors with a leading axis (n, ...) as rows (n, P)."""
    return torch.cat([tensors[name].reshape(len(tensors[name]), -1) for name in objective.params], dim=1)


def row_tensors(objective: Objective, rows: Tensor) -> dict[str, Tensor]:
    """Rows (n, P) as named tensors (n, ...); views."""
    pieces = rows.split([tensor.numel() for tensor in objective.params.values()], dim=1)
    return {
        name: piece.reshape(len(rows), *tensor.shape)
        for (name, tensor), piece in zip(objective.params.items(), pieces, strict=True)
    }


def kept_numbers(objective: Objective, batch: Batch) -> int:
    """Number of values that autograd keeps of an example for the backward pass, parameters left out."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in objective.params.items()}
    own = {tensor.untyped_storage().data_ptr() for tensor in leaves.values()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            seen[place] = tensor.numel()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        objective.loss(leaves, batch)
    return math.ceil(sum(seen.values()) / batch.size)

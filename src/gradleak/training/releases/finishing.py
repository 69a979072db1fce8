"""Means of rows, and how defenses finish the releases of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core import (
    Batch,
    BatchDefense,
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Objective,
    Protocol,
    Release,
    UpdateDefense,
    example_gradients,
)
from gradleak.data import rows_of
from gradleak.results import InputError


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Finishing:
    """The noise of the last defense of examples, and every defense after the mean, on rows of updates.

    Defenses that draw nothing act on all rows at once, those before the first and after the last one that draws.
    Between these two every row goes through all of them before the next one begins, so that the random numbers are
    those of releases made one after another with the same generator, however many rows come at once.

    Attributes:
        objective: the client's loss.
        release: protocol and defenses.
        rows: what batches are made of, in the dtype of the objective.
        examples: k, the number of examples of a batch.
    """

    objective: Objective
    release: Release
    rows: Batch
    examples: int

    def __call__(self, updates: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
        """The released updates (c, P) of the batches at `index` (c, k).

        Raises:
            InputError: for updates that are not finite, which a sign would make numbers of.
        """
        if any(self._stages):
            refuse_non_finite(self.objective, updates)
        before, between, after = self._stages
        for defense in before:
            updates = self._at_once(defense, updates, index, generator)
        if between and generator.device == updates.device and all(d.adds_in_order for d in between):
            updates = self._noised(between, updates, generator)
        elif between:
            updates = self._each(between, updates, index, generator)
        for defense in after:
            updates = self._at_once(defense, updates, index, generator)
        return updates

    @property
    def numbers(self) -> int:
        """Number of values that an update takes on its way, roughly: a sort of its entries is the largest."""
        return self.objective.size * (8 if any(self._stages) else 0)

    @cached_property
    def _stages(self) -> tuple[Sequence[Defense], Sequence[Defense], Sequence[Defense]]:
        """The defenses before the first that draws, from it to the last that draws, and after that."""
        at_example = [defense for defense in self.release.defenses if isinstance(defense, ExampleDefense)]
        on_update = [d for d in self.release.defenses if isinstance(d, UpdateDefense | BatchDefense)]
        chain: list[Defense] = [
            *(defense for defense in at_example[-1:] if defense.law(self.objective.params, self.examples) is not None),
            *on_update,
        ]
        random = [place for place, defense in enumerate(chain) if self._draws(defense)]
        if not random:
            return chain, [], []
        return chain[: random[0]], chain[random[0] : random[-1] + 1], chain[random[-1] + 1 :]

    def _draws(self, defense: Defense) -> bool:
        if isinstance(defense, UpdateDefense | BatchDefense):
            return defense.noise(self.objective.params) is not None
        return True

    def _at_once(self, defense: Defense, updates: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
        """All rows through a defense that draws nothing."""
        try:
            if isinstance(defense, BatchDefense):
                values = self.rows.sensitive
                told = None if values is None else values.reshape(len(values), -1)[:, 0][index]
                made = defense.many(updates, told)
                return self._each([defense], updates, index, generator) if made is None else made
            assert isinstance(defense, UpdateDefense)
            return flat_rows(self.objective, torch.func.vmap(defense.mean)(row_tensors(self.objective, updates)))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, ValueError, AssertionError):
            # No batching rule; an error of another cause comes again here.
            return self._each([defense], updates, index, generator)

    def _noised(self, defenses: Sequence[Defense], updates: Tensor, generator: torch.Generator) -> Tensor:
        """All rows with the noise of defenses that add Gaussian noise and do nothing else, drawn in the order of `_each`."""
        laws = [self._std(defense) for defense in defenses]
        noises = [torch.zeros_like(updates) for _ in laws]
        sizes = [tensor.numel() for tensor in self.objective.params.values()]
        parts = [(std, noise.split(sizes, dim=1)) for std, noise in zip(laws, noises, strict=True)]
        for row in range(len(updates)):
            for std, pieces in parts:
                for level, piece in zip(std, pieces, strict=True):
                    if level:
                        piece[row].normal_(generator=generator)
        for std, noise in zip(laws, noises, strict=True):
            levels = torch.tensor(std, dtype=updates.dtype, device=updates.device)
            updates = updates + levels.repeat_interleave(torch.tensor(sizes, device=updates.device)) * noise
        return updates

    def _std(self, defense: Defense) -> list[float]:
        """The standard deviations of the noise by tensor; 0 where nothing is drawn."""
        assert isinstance(defense, ExampleDefense | UpdateDefense)
        shapes = self.objective.params
        law = defense.noise(shapes) if isinstance(defense, UpdateDefense) else defense.law(shapes, self.examples)
        assert isinstance(law, DiagonalGaussian)
        return [law.std[name] for name in shapes]

    def _each(self, defenses: Sequence[Defense], updates: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
        """One row after another through defenses, in order."""
        return torch.stack(
            [self._one(defenses, row, places, generator) for row, places in zip(updates, index, strict=True)]
        )

    def _one(self, defenses: Sequence[Defense], row: Tensor, places: Tensor, generator: torch.Generator) -> Tensor:
        """One update through defenses, in order."""
        update = self.objective.unflatten(row)
        for defense in defenses:
            if isinstance(defense, ExampleDefense):
                update = defense.draw(update, self.examples, generator)
            elif isinstance(defense, UpdateDefense):
                update = defense.draw(update, generator)
            else:
                assert isinstance(defense, BatchDefense)
                before = Release(self.release.protocol, self.release.defenses[: self._place(defense)])
                update = defense.draw(
                    update,
                    objective=self.objective,
                    batch=rows_of(self.rows, places),
                    before=before,
                    generator=generator,
                )
        return self.objective.flatten(update)

    def _place(self, defense: Defense) -> int:
        return next(place for place, other in enumerate(self.release.defenses) if other is defense)


def refuse_non_finite(objective: Objective, updates: Tensor) -> None:
    """Refuse updates with a NaN or an infinity, as a release does.

    Raises:
        InputError: naming the parameter.
    """
    # One pass; a sum that overflows is looked at entry by entry.
    if bool(torch.isfinite(updates.sum())):
        return
    for name, tensor in row_tensors(objective, updates).items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"release: expected finite numbers, got NaN or infinity in {name} ({tensor.dtype}); "
                "check the noise level, the learning rate and the model"
            )

"""The released updates of many batches of the same rows, at one parameter point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import cached_property

import torch
from torch import Tensor

from gradleak.core import Batch, ExampleDefense, Objective, Release, derive_generator, derive_seed
from gradleak.data import rows_of
from gradleak.results import InputError, UnsupportedError
from gradleak.training.releases.finishing import ExampleRows, Finishing, StackedBatches, kept_numbers, refuse_non_finite
from gradleak.training.releases.linear_rows import LinearRows

Means = LinearRows | ExampleRows | StackedBatches

# What a byte that is moved costs in multiplications and additions, on one core (15e9 of these and 7e9 bytes a second).
FLOPS_A_BYTE = 2
# Small enough that a chunk is still in the processor's cache when its reader pools it.
CHUNK_BYTES = 2**21
# Vmap over batches pays by fewer calls; above this many parameters the calls are long and the loop is as fast.
LARGEST_STACKED = 2**20
# Relative agreement, in float64, with the release of a few batches; else the next route is taken.
_AGREEMENT = 1e-9
# Batches that draw their masks from one seed, whatever the budget, so that it changes no number.
MASKED = 64
_DISTINCT_TARGETS = 32

_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError, LookupError, UnsupportedError)


class Route(StrEnum):
    """Route by which the updates of index batches are computed."""

    AVERAGED_ROWS = "averaged_rows"
    LINEAR_LAYERS = "linear_layers"
    STACKED_BATCHES = "stacked_batches"
    LOOP = "loop"


class BatchReleases:
    """The released updates of index batches at the parameters of an objective, streamed in chunks.

    The numbers are those of `release(objective, batch, generator)` for one batch after another: the same up to
    round-off, with the same random numbers from the generator, whatever the route and the size of a chunk. What differs
    is the way:

    - linear_layers: every shared parameter belongs to linear layers. Of every row their inputs and output gradients are
      kept; a batch's gradient is one product a layer (`LinearRows`). Clipping of examples to a norm goes along.
    - averaged_rows: every row's gradient is computed once, through the defenses of examples, and a batch's is a mean by
      index (`ExampleRows`).
    - stacked_batches: the protocol's updates of many batches at once by vmap (`StackedBatches`): BatchNorm in train
      mode, dropout without defenses of examples, weighted losses, local training.
    - loop: the release itself, batch by batch: noise inside of local training, half precision, models without a
      batching rule, and what agrees with nothing else.

    The first two are for protocols that share the gradient itself. A route is taken if it agrees, in float64, with the
    protocol's own updates of a few batches that hold every class (32 at most); so a sum, or a weighted mean, is not taken
    for a mean. Between the first two a cost model decides, in operations a row of a batch: 2M + 3·N bytes·2 for M
    multiplications of weight gradients and N numbers of layer inputs and output gradients, against P numbers in bytes·2,
    a byte that is moved counting as 2 operations. Where the gradients of all rows do not fit into half of `max_bytes`
    they are recomputed for the batches of a chunk, and without defenses of examples stacked batches or the loop come
    first.

    Defenses after the mean act on a chunk at once where they draw nothing; those that draw are called row by row, with
    no gradient computed again.

    A random layer (dropout, a bottleneck) draws the masks of the objective's `mask_seed` in every batch, as the release
    does. With `own_masks` every batch draws its own, in blocks of 64 that take a seed from the generator: the numbers then
    have the law of releases with a new `mask_seed` each, and differ between stacked batches and the loop.

    **Assumptions**: examples mix, or weigh differently, in the compared batches if they do so in any; the defenses keep
    their contract (`noise` is None where nothing is drawn).

    **Cost**: once, two to four protocol updates of at most 19 rows in float64 and a comparison. A `chunks`: one pass over the
    rows that are used, then k multiplications and additions (or moved numbers) a parameter and batch; memory
    `max_bytes`.

    Args:
        objective: the client's loss, at the parameters that it shares its update for.
        release: protocol and defenses.
        rows: what batches are made of, n examples, on the device of the objective.
        max_bytes: memory budget; at least one batch at a time is held whatever it is.
        own_masks: whether random layers draw anew for every batch.

    Raises:
        InputError: for rows that the model does not take, values that are not finite, or a defense of the model that is
            not in the objective.
        UnsupportedError: for a defense of single examples on a model that mixes them.
    """

    def __init__(
        self,
        objective: Objective,
        release: Release,
        rows: Batch,
        max_bytes: int = 2**30,
        *,
        own_masks: bool = False,
    ) -> None:
        """Check the rows and choose the route."""
        release.check_model(objective)
        rows.validate()
        self._objective, self._release, self._max_bytes = objective, release, max_bytes
        self._rows = rows.to(objective.dtype)
        self._at_example = [defense for defense in release.defenses if isinstance(defense, ExampleDefense)]
        self._probes = _probes(self._rows)
        for probe in self._probes:
            objective.check(rows_of(self._rows, probe))
        self._own_masks = own_masks and _draws(objective, [rows_of(self._rows, probe) for probe in self._probes])
        self._means: Means | None = None
        self._route, self._reason = self._choose()

    @property
    def route(self) -> Route:
        """Route by which the updates are computed."""
        return self._route

    @property
    def reason(self) -> str:
        """Reason for this route, in one sentence."""
        return self._reason

    def chunks(self, batches: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """The released updates (c, P) of batches (T, k) in order: flat, in the order of `objective.params`.

        Args:
            batches: places of rows, (T, k) int64; a place may stand several times in a batch.
            generator: the only source of randomness; it is moved on as T releases in a row move it.

        Raises:
            InputError: for places that are no rows, no generator, or an update that is not finite.
        """
        if not isinstance(generator, torch.Generator):
            raise InputError(f"BatchReleases.chunks: expected a torch.Generator, got {type(generator).__name__}")
        if batches.dim() != 2 or batches.dtype != torch.int64 or 0 in batches.shape:
            raise InputError(
                f"BatchReleases.chunks: expected places of rows, (batches, examples) int64 with at least one each, got "
                f"{tuple(batches.shape)} {batches.dtype}"
            )
        low, high = int(batches.min()), int(batches.max())
        if low < 0 or high >= self._rows.size:
            raise InputError(
                f"BatchReleases.chunks: expected places from 0 to {self._rows.size - 1}, got {low} to {high}"
            )
        batches = batches.to(self._rows.inputs.device)
        return self._looped(batches, generator) if self._means is None else self._computed(batches, generator)

    def _looped(self, batches: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        for index in batches.split(self._chunk(self._objective.size)):
            updates = []
            for places in index:
                objective = self._masked(generator)
                made = self._release(objective, rows_of(self._rows, places), generator)
                updates.append(objective.flatten(made.tensors))
            yield torch.stack(updates)

    def _computed(self, batches: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        assert self._means is not None
        examples = batches.shape[1]
        finish = Finishing(objective=self._objective, release=self._release, rows=self._rows, examples=examples)
        numbers = self._means.batch_numbers(examples) + finish.numbers
        if isinstance(self._means, StackedBatches):
            numbers += 2 * examples * self._kept
        chunk = MASKED if self._own_masks else self._chunk(numbers)
        for part in batches.split(self._batches_a_table(batches)):
            used, local = torch.unique(part, return_inverse=True)
            table = self._prepared(used)
            for index, own in zip(part.split(chunk), local.split(chunk), strict=True):
                means = replace(self._means, objective=self._masked(generator))
                with torch.no_grad():
                    updates = finish(means.averages(table, own), index, generator)  # type: ignore[arg-type]
                refuse_non_finite(self._objective, updates)
                yield updates

    def _masked(self, generator: torch.Generator) -> Objective:
        """The objective, with masks drawn anew where they shall be."""
        if not self._own_masks:
            return self._objective
        return replace(
            self._objective, mask_seed=int(torch.randint(2**62, (), generator=generator, device=generator.device))
        )

    def _prepared(self, used: Tensor) -> object:
        """State that the means keep of these rows."""
        assert self._means is not None
        numbers = self._means.row_numbers + self._kept
        block = max(1, min(self._max_bytes // 4, 16 * CHUNK_BYTES) // (2 * numbers * self._width))
        with torch.no_grad():
            return self._means.prepare(rows_of(self._rows, used), block)

    @cached_property
    def _kept(self) -> int:
        """Number of values that a row keeps for its backward pass."""
        return kept_numbers(self._objective, rows_of(self._rows, self._probes[0]))

    def _batches_a_table(self, batches: Tensor) -> int:
        """Number of batches whose rows are kept at once: all, or as many as fit if no row were in two of them."""
        assert self._means is not None
        if not self._means.row_numbers:
            return len(batches)
        fit = max(1, self._max_bytes // 2 // (self._means.row_numbers * self._width))
        if len(torch.unique(batches)) <= fit:
            return len(batches)
        return max(1, fit // batches.shape[1])

    def _chunk(self, numbers: int) -> int:
        """Number of updates made at once: a few cache sizes, but eight at least where the budget has room."""
        wanted = max(8, CHUNK_BYTES // (self._objective.size * self._width))
        return max(1, min(wanted, self._max_bytes // 4 // (numbers * self._width)))

    @property
    def _width(self) -> int:
        return self._objective.dtype.itemsize

    def _choose(self) -> tuple[Route, str]:
        """The cheapest route that agrees, and why."""
        objective, release = self._objective, self._release
        if objective.dtype not in (torch.float32, torch.float64):
            return (
                Route.LOOP,
                f"sums of {objective.dtype} depend on their order, so that every batch is released by itself",
            )
        wide = objective.to(torch.float64)
        rows = self._rows.to(torch.float64)
        batches = [rows_of(rows, probe) for probe in self._probes]
        mean = release.protocol.mean
        name, plain = type(release.protocol).__name__, release.protocol.shares_gradient
        try:
            with torch.no_grad():
                expected = [wide.flatten(mean(wide, wide.params, batch, self._at_example)) for batch in batches]
        except InputError:
            if plain:
                raise
            return Route.LOOP, f"{name} does not take batches of every size"
        why = f"{name} is not a plain gradient"
        if self._own_masks:
            why = "random layers draw for every batch"
        elif plain:
            for route, means, reason in self._by_rows():
                found = self._agreeing(means, wide, rows, expected)
                if found is not None:
                    self._means = found
                    return route, reason + (", times the number of rows: the loss is a sum" if _summed(found) else "")
            why = "a batch's gradient is not the mean over its rows"
            if not self._at_example and self._rows_exceed_budget():
                why = "the gradients of all rows exceed the budget"
        last = self._at_example[-1] if self._at_example else None
        if not plain and last is not None and last.law(objective.params, 1) is not None:
            return Route.LOOP, f"{why}, and {type(last).__name__} draws noise in every step"
        if objective.size > LARGEST_STACKED:
            return Route.LOOP, f"{why}, and at {objective.size} parameters many batches at once are no faster"
        stacked = StackedBatches(objective=objective, protocol=release.protocol, defenses=self._at_example)
        if self._agreeing(stacked, wide, rows, expected) is None:
            return Route.LOOP, f"{why}, and many batches at once do not give the updates of single ones"
        self._means = replace(stacked, own_masks=self._own_masks)
        return Route.STACKED_BATCHES, f"{why}, so that every batch is computed by itself, many at once"

    def _by_rows(self) -> list[tuple[Route, Means, str]]:
        """The routes that take every row once, the cheaper one first."""
        objective = self._objective
        averaged = ExampleRows(objective=objective, defenses=self._at_example)
        try:
            linear = LinearRows.of(objective, self._at_example, rows_of(self._rows, self._probes[0][:1]))
        except _REFUSALS:
            linear = None
        by_mean = FLOPS_A_BYTE * self._width * objective.size
        found: list[tuple[Route, Means, str]] = []
        if self._at_example or not self._rows_exceed_budget():
            why = "the gradient of every row is computed once and averaged by index"
            found.append((Route.AVERAGED_ROWS, averaged, why))
        if linear is not None:
            by_product = 2 * linear.products + 3 * FLOPS_A_BYTE * self._width * linear.row_numbers
            why = (
                f"all parameters belong to linear layers: {by_product:,} operations a row of a batch by products of layer "
                f"inputs and output gradients, {by_mean:,} by averaging gradients of rows"
            )
            place = 0 if by_product <= by_mean else len(found)
            found.insert(place, (Route.LINEAR_LAYERS, linear, why))
        return found

    def _rows_exceed_budget(self) -> bool:
        return self._rows.size * self._objective.size * self._width > self._max_bytes // 2

    def _agreeing(self, means: Means, wide: Objective, rows: Batch, expected: list[Tensor]) -> Means | None:
        """These means, as they are or for a sum over examples, if they give the expected updates; else None."""
        tried: list[Means] = [means]
        if not isinstance(means, StackedBatches) and not self._at_example:
            tried.append(replace(means, summed=True))
        for one in tried:
            try:
                if _agree(replace(one, objective=wide), rows, self._probes, expected):
                    return one
            except torch.OutOfMemoryError:
                raise
            except _REFUSALS:
                continue
        return None


def _draws(objective: Objective, batches: list[Batch]) -> bool:
    """True if the loss depends on the seed of the masks: read off values, since any code may draw."""
    other = replace(objective, mask_seed=derive_seed(objective.mask_seed, "other masks"))
    with torch.no_grad():
        pairs = [(objective.loss(objective.params, batch), other.loss(other.params, batch)) for batch in batches]
    return any(not torch.equal(one, two) for one, two in pairs)


def _agree(means: Means, rows: Batch, probes: list[Tensor], expected: list[Tensor]) -> bool:
    """True if these means of the probed batches are the expected updates, to round-off; NaN agrees with nothing."""
    with torch.no_grad():
        for probe, update in zip(probes, expected, strict=True):
            table = means.prepare(rows_of(rows, probe), len(probe))
            index = torch.arange(len(probe), device=probe.device)[None].repeat(2, 1)
            found = means.averages(table, index)[1]  # type: ignore[arg-type]
            if not bool((found - update).norm() <= _AGREEMENT * update.norm()):
                return False
    return True


def _summed(means: Means) -> bool:
    return not isinstance(means, StackedBatches) and means.summed


def _probes(rows: Batch) -> list[Tensor]:
    """Batches that tell a mean over examples from other things: of several sizes, with every class, one row twice."""
    generator = derive_generator(0, "probe batches")
    probes = [torch.randint(rows.size, (5,), generator=generator)]
    probes[0][-1] = probes[0][0]
    targets = rows.targets.reshape(rows.size, -1).cpu()
    if targets.is_floating_point():
        probes += [torch.randint(rows.size, (count,), generator=generator) for count in (2, 7)]
    else:
        # Every class (or mark of what is ignored) beside others, so that unequal weights show.
        values = targets.unique()[:_DISTINCT_TARGETS]
        first = [int((targets == value).any(dim=1).nonzero()[0]) for value in values]
        beside = [*first[:2], int(probes[0][1])]
        probes += [torch.tensor([*first[start : start + 16], *beside]) for start in range(0, len(first), 16)]
    return [probe.to(rows.inputs.device) for probe in probes]

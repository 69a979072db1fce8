"""Records that an audit asks about, and the canaries among them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gradleak.core import Batch, Objective, Release
from gradleak.data import Column, ColumnKind, Encoding, Table
from gradleak.results import (
    LI_2024,
    Citation,
    Count,
    InputError,
    Outcome,
    Positive,
    Settings,
    check_count,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordAttribute:
    """One attribute of a record: the entries of the input that hold it, and what each of its m values writes there.

    Attributes:
        name: of the attribute.
        values: names of its m values.
        places: of the entries in a flat input.
        codes: what a value writes into them, (m, entries).

    Raises:
        InputError: for fewer than two values, or shapes that disagree.

    Examples:
        >>> sex = RecordAttribute(name="sex", values=("f", "m"), places=(1, 2), codes=torch.eye(2))
        >>> sex.with_value(torch.tensor([[0.5, 1.0, 0.0]]), 1).tolist()
        [[0.5, 0.0, 1.0]]
        >>> sex.value_of(torch.tensor([0.5, 1.0, 0.0]))
        0
    """

    name: str
    values: Sequence[str]
    places: tuple[int, ...]
    codes: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        """Check the shapes."""
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "places", tuple(int(place) for place in self.places))
        if len(self.values) < 2 or tuple(self.codes.shape) != (len(self.values), len(self.places)) or not self.places:
            raise InputError(
                f"attribute {self.name}: expected at least two values and codes (values, entries), got "
                f"{len(self.values)} values, {len(self.places)} entries and {tuple(self.codes.shape)}"
            )
        if min(self.places) < 0 or len(set(self.places)) < len(self.places):
            raise InputError(f"attribute {self.name}: expected different entries from 0, got {list(self.places)}")
        if len(torch.unique(self.codes, dim=0)) < len(self.values):
            raise InputError(f"attribute {self.name}: expected a code of its own for every value")

    @classmethod
    def of(
        cls,
        table: Table,
        attribute: str,
        *,
        without: Sequence[str] = (),
        encoding: Encoding | str = Encoding.ONE_HOT,
    ) -> RecordAttribute:
        """The attribute that a column of a table is, where `table.inputs(without=..., encoding=...)` writes it.

        Args:
            table: with its columns described.
            attribute: a category or one-hot group among the inputs.
            without: columns that are no inputs.
            encoding: of categories and one-hot groups.

        Raises:
            InputError: for a column of numbers, a label, or one that is no input.
        """
        place = 0
        for column in input_columns(table, without):
            width = len(column.entries_of(encoding))
            if column.name == attribute:
                if column.is_number:
                    break
                codes = torch.from_numpy(column.encode(np.arange(len(column.values)), encoding)).float()
                return cls(name=attribute, values=column.values, places=tuple(range(place, place + width)), codes=codes)
            place += width
        table.column(attribute)
        raise InputError(
            f"attribute {attribute}: expected a category or one-hot group among the inputs of {table.name}, got a "
            f"{table.column(attribute).kind}; the game replaces it by another of its values"
        )

    def value_of(self, record: Tensor) -> int:
        """Value of a flat record, from 0: the nearest code."""
        held = record.reshape(-1)[list(self.places)]
        return int((self.codes.to(held) - held).square().sum(dim=1).argmin())

    def with_value(self, records: Tensor, value: int) -> Tensor:
        """Copies of records (n, *shape) that have this value; differentiable in the other entries."""
        flat = records.reshape(len(records), -1)
        written = self.codes[value].to(flat).expand(len(flat), -1)
        return flat.index_copy(1, torch.tensor(self.places, device=flat.device), written).reshape(records.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordConstraints:
    """Constraints that make a vector of numbers a valid record: ranges of its entries, one-hot groups, and few levels.

    Attributes:
        low: smallest value of every entry, (d,).
        high: largest.
        groups: entries of which exactly one is 1 and the others 0.
        levels: by entry, the values that it can have (a category written as a code).

    Raises:
        InputError: for ranges or entries that do not fit.

    Examples:
        >>> rules = RecordConstraints(low=torch.zeros(3), high=torch.ones(3), groups=((1, 2),))
        >>> rules.nearest(torch.tensor([[1.5, -0.2, -0.1]])).tolist()
        [[1.0, 0.0, 1.0]]
    """

    low: Tensor = field(repr=False)
    high: Tensor = field(repr=False)
    groups: tuple[tuple[int, ...], ...] = ()
    levels: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check ranges and entries."""
        if self.low.dim() != 1 or self.low.shape != self.high.shape or not bool((self.low <= self.high).all()):
            raise InputError(
                f"RecordConstraints: expected low <= high, (d,) each, got {tuple(self.low.shape)} and "
                f"{tuple(self.high.shape)}"
            )
        named = [place for group in self.groups for place in group] + list(self.levels)
        if len(set(named)) < len(named) or not all(0 <= place < len(self.low) for place in named):
            raise InputError(
                f"RecordConstraints: expected every entry in one group or with levels at most, from 0 to "
                f"{len(self.low) - 1}"
            )

    @classmethod
    def of(
        cls,
        table: Table,
        *,
        without: Sequence[str] = (),
        encoding: Encoding | str = Encoding.ONE_HOT,
        rows: Tensor | None = None,
    ) -> RecordConstraints:
        """The constraints that the columns of a table state, within the ranges of some rows where those are given.

        Args:
            table: with its columns described.
            without: columns that are no inputs.
            encoding: of categories and one-hot groups.
            rows: public rows (n, d), whose smallest and largest numbers are the ranges; None for those of the columns.
        """
        groups, levels, place = [], {}, 0
        for column in input_columns(table, without):
            width = len(column.entries_of(encoding))
            if not column.is_number and width > 1:
                groups.append(tuple(range(place, place + width)))
            elif not column.is_number:
                codes = column.encode(np.arange(len(column.values)), encoding)[:, 0]
                levels[place] = tuple(float(code) for code in np.sort(codes))
            place += width
        low, high = torch.zeros(place), torch.ones(place)
        if rows is not None:
            flat = rows.reshape(len(rows), -1)
            if flat.shape[1] != place:
                raise InputError(f"RecordConstraints: expected rows of {place} entries, got {flat.shape[1]}")
            low, high = flat.amin(dim=0), flat.amax(dim=0)
        return cls(low=low, high=high, groups=tuple(groups), levels=levels)

    def nearest(self, records: Tensor) -> Tensor:
        """The valid records (n, d) next to these: numbers cut to their range, the largest of a group 1, levels rounded."""
        found = torch.minimum(torch.maximum(records, self.low.to(records)), self.high.to(records))
        for group in self.groups:
            largest = records[:, list(group)].argmax(dim=1)
            found[:, list(group)] = torch.nn.functional.one_hot(largest, len(group)).to(records)
        for place, values in self.levels.items():
            known = torch.tensor(values).to(records)
            found[:, place] = known[(records[:, place, None] - known).abs().argmin(dim=1)]
        return found

    def within(self, records: Tensor) -> Tensor:
        """Records (n, d) with their numbers cut to the ranges; groups as they are."""
        free = torch.ones(len(self.low), dtype=torch.bool, device=records.device)
        free[[place for group in self.groups for place in group]] = False
        cut = torch.minimum(torch.maximum(records, self.low.to(records)), self.high.to(records))
        return torch.where(free, cut, records)

    def holds(self, records: Tensor) -> bool:
        """True if records (n, d) are valid."""
        return torch.equal(self.nearest(records), records)


def input_columns(table: Table, without: Sequence[str]) -> list[Column]:
    """The columns that make the inputs, in their order, as `Table.inputs` takes them."""
    described = [table.column(name) for name in without]
    left_out = {column.name for column in described} | {column.source for column in described if column.source}
    return [column for column in table.columns if column.kind is not ColumnKind.LABEL and column.name not in left_out]


# Entries of released gradients that are held at once; each is kept several times for its derivative.
MOST_NUMBERS = 2**24


class CanaryObjective(StrEnum):
    """Distance of the released gradients of a record without noise, in the mean over the attribute's other values."""

    MSE = "mse"
    """(1/P) ‖gⱼ - g₀‖²."""
    COSINE = "cosine"
    """1 - ⟨gⱼ, g₀⟩ / (‖gⱼ‖ ‖g₀‖)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CraftedRecords:
    """Records in the order of what they are worth, the best first.

    Attributes:
        records: (s, *shape), with their targets.
        worth: the objective of each, (s,); NaN never: a start that went wrong is left out.
        values: which value of the attribute each has, from 0.
        trace: the best worth of any start after every hundredth step; None before there is one.
        outcome: budget_spent (the steps are done), or not_finite where no start gave a finite number.
        lost: how many starts were left out.
        seconds: of wall time.
    """

    records: Batch = field(repr=False)
    worth: Tensor
    values: tuple[int, ...]
    trace: tuple[float | None, ...] = ()
    outcome: Outcome = Outcome.BUDGET_SPENT
    lost: int = 0
    seconds: float = 0.0

    @property
    def facts(self) -> Mapping[str, Any]:
        """Numbers for a record of the run, none of a crafted record itself."""
        return {
            "starts": len(self.worth) + self.lost,
            "lost": self.lost,
            "worth": [float(value) for value in self.worth],
            "trace": list(self.trace),
            "seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary(Settings):
    """A record that maximizes the mean distance between its released gradients under H0 and H1.

    z* = argmax_z (1/(m − 1)) Σⱼ Dist(g(z), g(z with value j)), with g the release without its noise: clipped, as it
    leaves the client. Adam from standard normal vectors, several in lockstep; the best point on the way is kept. The
    entries of the attribute hold a value of it throughout. Starts take the classes and the values in turn, so that no
    choice of either is left to luck.

    Without `valid` a canary is any vector of numbers, as in the paper: it stands for the worst that a record could be, and
    no person has such numbers. With it every candidate is the valid record next to the vector that is optimized (ranges,
    one-hot groups; the derivative goes straight through this rounding), so that the canary could stand in the table.

    Nothing here looks at noise: the choice costs no confidence of a bound from later trials.

    **Cost**: iterations · starts · m second derivatives, in lockstep; for 6,800 parameters about 5 ms a step.

    **Source**: Li et al. 2024, section 7 and appendix A.3, without the number of starts, the label, or which gradient is
    meant (the released one here: before clipping, length alone would win).

    Attributes:
        objective: "mse", which the paper found better, or "cosine".
        iterations: of Adam.
        learning_rate: of Adam.
        starts: how many vectors, in lockstep.
        valid: what makes a record valid, or None for any numbers.

    Raises:
        InputError: for a number out of range or an unknown objective.
    """

    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    objective: CanaryObjective | str = CanaryObjective.MSE
    iterations: Count = 2000
    learning_rate: Positive = 0.05
    starts: Count = 8
    valid: RecordConstraints | None = field(default=None, repr=False)

    def craft(
        self,
        objective: Objective,
        release: Release,
        attribute: RecordAttribute,
        *,
        like: Batch,
        generator: torch.Generator,
    ) -> CraftedRecords:
        """Canaries at these parameters, one a start, the best first.

        Args:
            objective: the client's loss.
            release: protocol and defenses.
            attribute: what changes between the hypotheses.
            like: rows of which shape and different targets are taken, and nothing else.
            generator: of the starts.

        Raises:
            InputError: where constraints do not fit the shape.
            UnsupportedError: where the model refuses the release.
        """
        began = time.perf_counter()
        shape = tuple(like.inputs.shape[1:])
        size = like.inputs[0].numel()
        if self.valid is not None and len(self.valid.low) != size:
            raise InputError(f"Canary.valid: expected constraints on {size} entries, got {len(self.valid.low)}")
        values, targets = self._labels(attribute, like)
        drawn = torch.randn(self.starts, size, generator=generator, dtype=objective.dtype, device=generator.device)
        latent = drawn.to(objective.device).requires_grad_()
        worth_of = _Worth(objective=objective, release=release, attribute=attribute, by=CanaryObjective(self.objective))
        adam = torch.optim.Adam([latent], lr=self.learning_rate)
        best = torch.full((self.starts,), -torch.inf, dtype=torch.float64)
        held = torch.zeros_like(latent)
        trace: list[float | None] = []
        for step in range(self.iterations + 1):
            records = self._records(latent.detach(), attribute, values)
            worth, slope = worth_of(records.reshape(-1, *shape), targets, values)
            fine = torch.isfinite(worth) & torch.isfinite(slope).reshape(self.starts, -1).all(dim=1)
            better = torch.isfinite(worth) & (worth > best)
            best = torch.where(better, worth, best)
            held[better] = records[better]
            if step % 100 == 0:
                trace.append(float(best.max()) if bool(torch.isfinite(best.max())) else None)
            if step == self.iterations:
                break
            # Adam descends. What is no number moves nothing: that start waits where it is.
            latent.grad = torch.where(fine[:, None], -slope.reshape(self.starts, -1), 0.0).to(latent)
            adam.step()
            if self.valid is not None:
                # A number that drifts far out of its range would take as long to come back.
                latent.data.copy_(self.valid.within(latent.data))
        order = best.argsort(descending=True)
        order = order[torch.isfinite(best[order])]
        lost = self.starts - len(order)
        kept = order if len(order) else torch.arange(self.starts)
        return CraftedRecords(
            records=Batch(held[kept].reshape(-1, *shape), targets[kept]),
            worth=best[order],
            values=tuple(values[place] for place in kept.tolist()),
            trace=tuple(trace),
            outcome=Outcome.BUDGET_SPENT if len(order) else Outcome.NOT_FINITE,
            lost=lost,
            seconds=time.perf_counter() - began,
        )

    def _labels(self, attribute: RecordAttribute, like: Batch) -> tuple[list[int], Tensor]:
        """The value and the target of every start: all pairs in turn."""
        kinds = torch.unique(like.targets, dim=0) if not like.targets.is_floating_point() else like.targets
        many = len(attribute.values)
        places = [(start // len(kinds)) % many for start in range(self.starts)]
        return places, torch.stack([kinds[start % len(kinds)] for start in range(self.starts)])

    def _records(self, latent: Tensor, attribute: RecordAttribute, values: list[int]) -> Tensor:
        """The records next to the vectors: valid where that is asked for, with their value of the attribute."""
        found = latent.clone() if self.valid is None else self.valid.nearest(latent)
        places = torch.tensor(attribute.places, device=found.device)
        found[:, places] = attribute.codes.to(found)[values]
        return found


def random_records(rows: Batch, count: int, *, generator: torch.Generator) -> Batch:
    """So many different rows by chance: the baseline of a canary.

    Args:
        rows: public rows.
        count: at most as many as there are.
        generator: of the draw.

    Raises:
        InputError: for more than there are.
    """
    check_count("random_records.count", count)
    if count > rows.size:
        raise InputError(f"random_records: expected at most {rows.size} records, the rows there are, got {count}")
    places = torch.randperm(rows.size, generator=generator)[:count].to(rows.inputs.device)
    return Batch(rows.inputs[places], rows.targets[places], rows.domain)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Worth:
    """The objective of records and its derivative, many at once."""

    objective: Objective
    release: Release
    attribute: RecordAttribute
    by: CanaryObjective

    def __call__(self, records: Tensor, targets: Tensor, values: list[int]) -> tuple[Tensor, Tensor]:
        """(s,) in float64 and (s, *shape), of records (s, *shape)."""
        many = len(self.attribute.values)
        # The value of H0 first, then the others.
        order = torch.tensor([[value, *(other for other in range(many) if other != value)] for value in values])
        places = torch.tensor(self.attribute.places, device=records.device)
        codes = self.attribute.codes.to(records)

        def worth(record: Tensor, target: Tensor, kinds: Tensor) -> Tensor:
            def released(inputs: Tensor) -> Tensor:
                batch = Batch(inputs[None], target[None])
                return self.objective.flatten(self.release.mean(self.objective, self.objective.params, batch))

            flat = record.reshape(1, -1).expand(many, -1).index_copy(1, places, codes[kinds])
            found = torch.func.vmap(released, randomness="same")(flat.reshape(many, *record.shape))
            null, moved = found[:1], found[1:]
            if self.by is CanaryObjective.MSE:
                return (moved - null).square().mean()
            return (1 - torch.nn.functional.cosine_similarity(moved, null, dim=1)).mean()

        chunk = max(1, MOST_NUMBERS // (many * self.objective.size))
        slopes, found = torch.func.vmap(torch.func.grad_and_value(worth), randomness="same", chunk_size=chunk)(
            records, targets, order.to(records.device)
        )
        return found.detach().cpu().double(), slopes.detach()

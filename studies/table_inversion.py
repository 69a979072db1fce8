"""Rows of the census rebuilt from one gradient, column by column, by attacks at equal plain gradients and by blind guessers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks import Attack, GaussNewton, LinearRows, TabLeak
from gradleak.core import Batch, HonestButCurious, Objective, Reconstruction, Release, derive_generator, describe
from gradleak.datasets import adult_census, adult_table
from gradleak.models import Activation, mlp
from gradleak.protocols import FedSGD
from gradleak.results import VERO_2023, Citation, Count, InputError, Outcome
from gradleak.scoring import pair, score_cells
from studies.store import Store, content_of
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import Interval, shown, shown_with, student

PUBLIC_ROWS = 10_000
DRAWS = 20
STARTS = 30
TOLERANCE = 0.319
"""Of a number, in standard deviations of its column: that of Vero et al. 2023."""


class TableAttacker(StrEnum):
    """Attackers and blind guessers that claim rows."""

    MODE = "blind: most frequent"
    DRAWN = "blind: rows drawn"
    TABLEAK = "tableak"
    GAUSS_NEWTON = "gauss_newton"
    LINEAR_ROWS = "linear_rows"


@dataclass(frozen=True)
class TableCell:
    """One attacker on one batch.

    Attributes:
        columns: share of right cells by column.
        cells: share of right cells.
        rows: share of rows right in all cells.
        plain_gradients: what it cost.
        outcome: how it ended.
        certain: share of right cells among the quarter of the categories with the smallest entropy; None without entropies.
        uncertain: likewise, the quarter with the largest.
    """

    columns: list[float]
    cells: float
    rows: float
    plain_gradients: float
    outcome: str
    certain: float | None = None
    uncertain: float | None = None


@dataclass(frozen=True, kw_only=True)
class TableInversion(Study):
    """The share of cells that attacks have right, by column, on batches of the Adult census, beside blind guessers.

    The network has two hidden layers of `width` units, torch's initialization, its weights drawn for each batch; labels are
    disclosed, as in the paper. A category is right where it is named, a number within 0.319 standard deviations of its
    column over the census (in our scaling, logarithmic for capital). Blind guessers know 10,000 other rows: one claims
    the most frequent value of each category and the number that most rows are near to, the other one b of these rows,
    which are paired with the truth like claims (mean of 20 draws).

    Attributes:
        sizes: rows of a batch.
        counts: batches of each size.
        budget: plain gradients of an attack on a batch; the paper's settings take 135,090.
        activation: of the network.
        width: of its hidden layers.
        attackers: who claims.
        seed: of rows, weights and starts.
        cells: file of finished cells, or None.
    """

    name: ClassVar[str] = "table_inversion"
    source: ClassVar[str] = "accuracy on the Adult census by batch size, and certainty by entropy"
    citations: ClassVar[tuple[Citation, ...]] = (VERO_2023,)

    sizes: Sequence[Count] = (1, 8, 32)
    counts: Sequence[Count] = (10, 5, 3)
    budget: Count = 135_090
    activation: Activation = Activation.RELU
    width: Count = 100
    attackers: Sequence[TableAttacker] = tuple(TableAttacker)
    seed: int = 0
    cells: str | None = field(default=None, metadata={"described": False})

    def run(self, *, say: Say) -> StudyResult:
        """Compute every cell that the file does not hold."""
        if len(self.sizes) != len(self.counts):
            raise InputError(f"table_inversion: expected as many counts as sizes, got {self.counts} for {self.sizes}")
        rows = adult_census(count=PUBLIC_ROWS + max(s * c for s, c in zip(self.sizes, self.counts, strict=True)))
        public = rows.rows(slice(0, PUBLIC_ROWS))
        found: dict[tuple[int, TableAttacker], list[TableCell]] = {}
        with Store(self.cells) as store:
            for size, count in zip(self.sizes, self.counts, strict=True):
                for number in range(count):
                    first = PUBLIC_ROWS + number * size
                    batch = rows.rows(slice(first, first + size))
                    for attacker in map(TableAttacker, self.attackers):
                        key = self._key(attacker, batch, number)
                        cell = store.get(key, TableCell)
                        cell = cell or store.add(key, TableCell, self._cell(attacker, batch, number, public))
                        found.setdefault((size, attacker), []).append(cell)
                        say(f"{size} rows, batch {number}: {attacker} {cell.cells:.1%} of cells, {cell.outcome}")
        return self._result(found)

    def _key(self, attacker: TableAttacker, batch: Batch, number: int) -> dict[str, Any]:
        settings = {"budget": self.budget, "activation": self.activation.value, "width": self.width, "seed": self.seed}
        return {"study": self.name, **settings, "attacker": attacker.value, "batch": content_of([batch]), "n": number}

    def _attack(self, attacker: TableAttacker) -> Attack:
        if attacker is TableAttacker.TABLEAK:
            return TabLeak(restarts=STARTS, iterations=max(self.budget // (3 * STARTS) - 1, 1))
        return GaussNewton(max_plain_gradients=self.budget) if attacker is TableAttacker.GAUSS_NEWTON else LinearRows()

    def _cell(self, attacker: TableAttacker, batch: Batch, number: int, public: Batch) -> TableCell:
        spread = tolerances(public)
        generator = derive_generator(self.seed, "table", attacker.value, str(batch.size), str(number))
        if attacker is TableAttacker.MODE:
            row = most_frequent(public, spread)
            return _scored([_claim(row.expand(batch.size, -1), batch)], batch, spread)
        if attacker is TableAttacker.DRAWN:
            places = torch.randint(public.size, (DRAWS, batch.size), generator=generator)
            return _scored([_claim(public.inputs[place], batch) for place in places], batch, spread)
        weights = derive_generator(self.seed, "network", str(number))
        model = mlp(
            features=batch.inputs.shape[1],
            hidden=(self.width, self.width),
            classes=2,
            activation=self.activation,
            generator=weights,
        )
        objective, release = Objective.from_module(model), Release(FedSGD())
        update = release(objective, batch, generator)
        knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)
        return _scored([self._attack(attacker)(update, knowledge, generator=generator)], batch, spread)

    def _result(self, found: dict[tuple[int, TableAttacker], list[TableCell]]) -> StudyResult:
        names = [column.name for column in adult_table().columns[:-1]]
        tables, findings, conclusion = [], [], []
        for size in self.sizes:
            held = {who: cells for (rows, who), cells in found.items() if rows == size}
            heads = [f"{who.value} (n = {len(cells)})" for who, cells in held.items()]
            lines = [
                [name, *(f"{np.mean([cell.columns[place] for cell in cells]):.0%}" for cells in held.values())]
                for place, name in enumerate(names)
            ]
            lines.append(["all cells", *(_mean(cells, "cells") for cells in held.values())])
            lines.append(["whole rows", *(_mean(cells, "rows") for cells in held.values())])
            lines.append(
                ["plain gradients", *(f"{np.mean([c.plain_gradients for c in cells]):,.0f}" for cells in held.values())]
            )
            tables.append(Table(title=f"{size} rows a batch", columns=["column", *heads], rows=lines))
            findings += [
                Finding(
                    quantity=f"{size} rows, {who.value}: share of cells",
                    ours=float(np.mean([cell.cells for cell in cells])),
                    interval=_interval([cell.cells for cell in cells]),
                    n=len(cells),
                    note="; ".join(sorted({cell.outcome for cell in cells})),
                )
                for who, cells in held.items()
            ]
            conclusion += _certainty(size, held.get(TableAttacker.TABLEAK, []))
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=conclusion,
            tables=tables,
            details={f"{size} {who.value}": describe(cells) for (size, who), cells in found.items()},
        )


def tolerances(public: Batch) -> list[float]:
    """The paper's tolerance of each column in units of its range, for categories 0."""
    assert public.domain is not None
    assert public.domain.columns is not None
    parts = public.domain.to_pixels(public.inputs.double()).split(public.domain.columns, dim=1)
    return [TOLERANCE * float(part.std()) if part.shape[1] == 1 else 0.0 for part in parts]


def most_frequent(public: Batch, spread: Sequence[float]) -> Tensor:
    """The row of the most frequent values, of numbers the one that most rows are near enough to."""
    assert public.domain is not None
    assert public.domain.columns is not None
    parts = public.domain.to_pixels(public.inputs.double()).split(public.domain.columns, dim=1)
    values = []
    for part, tolerance in zip(parts, spread, strict=True):
        if part.shape[1] > 1:
            values.append(part.mean(dim=0))
        else:
            levels = part.unique()
            near = ((levels[:, None] - part[None, :, 0]).abs() <= tolerance).sum(dim=1)
            values.append(levels[near.argmax()].reshape(1))
    row = public.domain.decided(torch.cat(values))
    return public.domain.from_pixels(row).to(public.inputs)


def _claim(rows: Tensor, batch: Batch) -> Reconstruction:
    return Reconstruction(inputs=rows, targets=batch.targets, loss=None, outcome=Outcome.BUDGET_SPENT)


def _scored(claims: Sequence[Reconstruction], batch: Batch, spread: Sequence[float]) -> TableCell:
    """The mean over claims of the shares that they have right."""
    scores = [score_cells(claim, batch, tolerances=spread) for claim in claims]
    details = [score.details for score in scores]
    if any(score.value is None for score in scores):
        columns = [0.0] * len(spread)
        return TableCell(columns, 0.0, 0.0, claims[0].plain_gradients, claims[0].outcome.label)
    whole = [float(np.mean([row == 1.0 for row in one["per_example"]])) for one in details]
    certain, uncertain = _by_certainty(claims[0], batch)
    return TableCell(
        columns=np.mean([one["by_column"] for one in details], axis=0).tolist(),
        cells=float(np.mean([one["mean"] for one in details])),
        rows=float(np.mean(whole)),
        plain_gradients=claims[0].plain_gradients,
        outcome=claims[0].outcome.label,
        certain=certain,
        uncertain=uncertain,
    )


def _by_certainty(claim: Reconstruction, batch: Batch) -> tuple[float | None, float | None]:
    """Shares of right categories among the quarters with the smallest and the largest entropy."""
    entropies = claim.details.get("entropies")
    if entropies is None or claim.inputs is None:
        return None, None
    domain = batch.declared_domain()
    assert domain.columns is not None
    right, told = [], []
    claims, truths = (domain.to_pixels(rows.double()) for rows in (claim.inputs, batch.inputs))
    for truth, place in pair(claims, truths).paired:
        cells = zip(
            claims[place].split(domain.columns), truths[truth].split(domain.columns), entropies[place], strict=True
        )
        for one, other, entropy in cells:
            if len(other) > 1:
                right.append(float(one.argmax() == other.argmax()))
                told.append(entropy)
    order = np.argsort(told, kind="stable")
    quarter = max(len(order) // 4, 1)
    return float(np.mean(np.array(right)[order[:quarter]])), float(np.mean(np.array(right)[order[-quarter:]]))


def _mean(cells: Sequence[TableCell], name: str) -> str:
    values = [float(getattr(cell, name)) for cell in cells]
    return shown_with(float(np.mean(values)), _interval(values), ".0%")


def _interval(values: Sequence[float]) -> Interval | None:
    """Student's interval of a mean of shares, within 0 and 1."""
    found = student(values)
    return None if found is None else (max(found[0], 0.0), min(found[1], 1.0))


def _certainty(size: int, cells: Sequence[TableCell]) -> list[str]:
    sure = [cell.certain for cell in cells if cell.certain is not None]
    unsure = [cell.uncertain for cell in cells if cell.uncertain is not None]
    if not sure:
        return []
    return [
        f"{size} rows: of the quarter of the categories that TabLeak holds most certain {shown(float(np.mean(sure)), '.0%')} are "
        f"right, of the quarter that it holds least certain {shown(float(np.mean(unsure)), '.0%')}."
    ]


__all__ = ["TableAttacker", "TableCell", "TableInversion", "most_frequent", "tolerances"]

"""Conditions under which the first fully connected layer tells most of an attribute: one thing changed at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks import LogisticRegression, PrincipalComponents
from gradleak.core import Batch, Domain, Mode, Objective, Release, derive_generator, derive_seed, describe, one_thread
from gradleak.data import Population
from gradleak.datasets import mnist_digits
from gradleak.models import Activation, initialize_uniform, lenet5
from gradleak.protocols import FedSGD
from gradleak.reporting.drawing import INK, MARKERS, SERIES
from gradleak.results import MO_2021, Citation, check_count
from gradleak.risk import LatentInformation
from gradleak.risk.layer_measure import coordinates
from gradleak.training import layer_gradients
from studies.influence_cells import accuracy
from studies.layer_latent_cells import FOREST, LOGISTIC, Reading, pooled, unit
from studies.layer_latent_data import Files, LatentData, LatentNetwork, Parts, after_epochs, population
from studies.networks import alexnet_small
from studies.panels import panels
from studies.smoothing import loess
from studies.store import Store, content_of
from studies.study import Finding, Say, Study, StudyResult, Table, chosen
from studies.summaries import interval_between, shown_with, student

BASE, PARITY = "base", "parity"
FIRST_DENSE = "fc1"


@dataclass(frozen=True, kw_only=True)
class LayerCondition:
    """A cell that differs from the base in one thing.

    Attributes:
        name: axis and value.
        data: "thickness" or "tint" of digits, or "parity": the task is whether a digit of 1 to 8 is at least 5, the
            attribute whether it is odd, which is a matter of what is seen, as an attribute of a face is.
        network: lenet5 or alexnet_small.
        activation: of it.
        uniform: whether weights are drawn from uniform(−0.5, 0.5) in place of torch's default.
        epochs: of training with Adam; 0 for none.
        snapshots: models along the training that the gradients are taken at, in turns.
        batch_size: rows behind a gradient.
        side: height and width of the images.
        attacker: "forest" or "logistic".
        entries: that a forest reads of a layer, at most.
        rows: gradients, at most.
    """

    name: str = BASE
    data: str = LatentData.THICKNESS.value
    network: LatentNetwork = LatentNetwork.LENET5
    activation: Activation = Activation.RELU
    uniform: bool = False
    epochs: int = 40
    snapshots: int = 1
    batch_size: int = 32
    side: int = 28
    attacker: str = FOREST
    entries: int = 4096
    rows: int = 240

    def rows_of(self, seed: int) -> Population:
        """Digits with the attribute, at this size."""
        if self.data == PARITY:
            digits = mnist_digits(count=5000, seed=seed, size=28)
            # Of 1 to 4 and of 5 to 8 half are odd each: the label tells nothing of the attribute.
            kept = ((digits.targets >= 1) & (digits.targets <= 8)).nonzero().flatten()
            numbers = digits.targets[kept]
            drawn = Population(
                name="MNIST: parity",
                inputs=digits.inputs[kept],
                targets=(numbers >= 5).long(),
                sensitive=numbers % 2,
                values=("even", "odd"),
                domain=digits.domain,
                holds_sensitive=True,
            )
        else:
            drawn = population(LatentData(self.data), Files(), seed=seed)
        if self.side == drawn.inputs.shape[2]:
            return drawn
        images = F.interpolate(
            drawn.inputs, size=(self.side, self.side), mode="bilinear", align_corners=False, antialias=True
        )
        domain = Domain.image(channels=images.shape[1], height=self.side, width=self.side)
        return replace(drawn, inputs=images.clamp(0.0, 1.0), domain=domain)

    def objective(self, drawn: Population, seed: int) -> Objective:
        """The network at its first weights, which are those of `layer_latent` where nothing is changed."""
        generator = derive_generator(seed, "weights", self.network.value)
        build = alexnet_small if self.network is LatentNetwork.ALEXNET_SMALL else lenet5
        model = build(
            classes=int(drawn.targets.max()) + 1,
            channels=drawn.inputs.shape[1],
            size=self.side,
            activation=self.activation,
            generator=generator,
        )
        if self.uniform:
            initialize_uniform(model, low=-0.5, high=0.5, generator=generator)
        return Objective.from_module(model, mode=Mode.EVAL)

    def reads(self, seed: int) -> LatentInformation:
        """The attacker."""
        own = derive_seed(seed, "attackers") % 2**31
        if self.attacker == FOREST:
            return LatentInformation(seed=own)
        return LatentInformation(classifier=LogisticRegression(), features=PrincipalComponents(count=50), seed=own)

    def read_by(self, matrix: Tensor) -> Tensor:
        """Numbers that the attacker is given of a layer's gradients (n, entries)."""
        return pooled(matrix, self.entries) if self.attacker == FOREST else unit(coordinates(matrix))


def conditions() -> list[LayerCondition]:
    """The base and one cell a change of it, in order."""

    def of(name: str, **changes: Any) -> LayerCondition:
        return replace(LayerCondition(), name=name, **changes)

    return [
        LayerCondition(),
        of("attribute: parity", data=PARITY),
        of("attribute: tint", data=LatentData.TINT.value),
        of("training: none", epochs=0),
        of("training: 5 epochs", epochs=5),
        of("training: 4 models along it", snapshots=4),
        of("weights: uniform", uniform=True),
        of("activation: tanh", activation=Activation.TANH),
        of("activation: sigmoid", activation=Activation.SIGMOID),
        of("batch: 1", batch_size=1),
        of("batch: 8", batch_size=8),
        of("attacker: logistic", attacker=LOGISTIC),
        of("attacker: forest on 256 numbers", entries=256),
        of("attacker: forest on all numbers", entries=10**9),
        of("gradients: a quarter", rows=60),
        of("images: 16", side=16),
        of("images: 56", side=56),
        of("network: alexnet_small", network=LatentNetwork.ALEXNET_SMALL),
    ]


@dataclass(frozen=True, kw_only=True)
class LayerCell:
    """One model, layer by layer.

    Attributes:
        rows: gradients.
        accuracy: of the model on the judged rows.
        values: V-information by layer.
        entries: numbers by layer.
        leakiest: the layer with the largest value, or None.
        rivals: layers that are not told from it.
        difference: of the first fully connected layer and the leakiest other, None without a value.
        low: of the interval of 95 % of the difference, which holds for all pairs of layers together.
        high: likewise.
        seconds: of processor time.
    """

    rows: int
    accuracy: float
    values: dict[str, Reading]
    entries: dict[str, int]
    leakiest: str | None
    rivals: tuple[str, ...]
    difference: float | None
    low: float | None
    high: float | None
    seconds: float

    @property
    def found(self) -> bool:
        """True if the interval of the leakiest layer lies above 0."""
        low = None if self.leakiest is None else self.values[self.leakiest].low
        return low is not None and low > 0.0

    @property
    def verdict(self) -> str:
        """Verdict on where it leaks most: first fully connected, elsewhere, not told apart, or nothing found."""
        if not self.found:
            return "nothing found"
        if self.leakiest == FIRST_DENSE:
            return "first fully connected" if not self.rivals else "first fully connected, not told apart"
        return "elsewhere, not told apart" if FIRST_DENSE in self.rivals else "elsewhere"


def measured(condition: LayerCondition, drawn: Population, *, training: int, seed: int) -> LayerCell:
    """Train the model, take gradients of batches of one value of the attribute, and attack every layer.

    Args:
        condition: of the cell.
        drawn: rows.
        training: rows for training, at most.
        seed: of split, weights and attackers.
    """
    began = time.process_time()
    parts = Parts.of(drawn, training=training, seed=seed)
    batches, attribute = parts.batches(size=condition.batch_size, most=condition.rows)
    start = condition.objective(drawn, seed)
    # Models in turns, each with as many batches of each value.
    turns = torch.arange(len(batches)) // 2 % condition.snapshots
    models = [
        after_epochs(start, parts, epochs=condition.epochs * (place + 1) // condition.snapshots, seed=seed)
        for place in range(condition.snapshots)
    ]
    rows = drawn.rows(torch.arange(drawn.size))
    found: dict[str, Tensor] = {}
    for place, model in enumerate(models):
        mine = (turns == place).nonzero().flatten()
        matrices = layer_gradients(
            model, rows, release=Release(FedSGD()), generator=derive_generator(seed, "release"), batches=batches[mine],
            max_bytes=2**31,
        ).matrices  # fmt: skip
        for layer, matrix in matrices.items():
            whole = found.setdefault(layer, torch.empty(len(batches), matrix.shape[1], dtype=matrix.dtype))
            whole[mine] = matrix
    profile = condition.reads(seed)({layer: condition.read_by(one) for layer, one in found.items()}, attribute)
    difference, interval = None, None
    if profile.rows is not None and FIRST_DENSE in profile.rows.values:
        known = {name: float(rows.mean()) for name, rows in profile.rows.values.items() if name != FIRST_DENSE}
        difference, interval = profile.rows.difference(FIRST_DENSE, max(known, key=lambda name: known[name]))
    judged = drawn.rows(batches.flatten())
    return LayerCell(
        rows=len(attribute),
        accuracy=accuracy(models[-1], Batch(judged.inputs, judged.targets)),
        values={layer: Reading.of(score) for layer, score in profile.scores.items()},
        entries={layer: matrix.shape[1] for layer, matrix in found.items()},
        leakiest=profile.leakiest,
        rivals=tuple(profile.rivals()),
        difference=difference,
        low=None if interval is None else interval[0],
        high=None if interval is None else interval[1],
        seconds=time.process_time() - began,
    )


@dataclass(frozen=True, kw_only=True)
class LayerConditions(Study):
    """Study of where an attribute leaks, in a base cell and with one thing changed at a time towards the setting of the paper.

    The base is a cell of `layer_latent` in which the paper's claim fails: strokes of MNIST digits, LeNet with ReLU, trained
    for 40 epochs, a forest on gradients of 32 rows with one value. Each cell says by how much the first fully connected
    layer is above the leakiest other, with an interval over gradients that holds for all pairs of layers of a model
    together; with several models, Student's interval over their differences stands beside.

    **Source**: Mo et al. 2021, figure 5; after Melis et al. 2019, whose attacker it is, gradients are taken at models along
    the training: a cell of its own. The faces of the paper are not at hand, and "parity" stands for attributes that are a
    matter of what is seen.

    Attributes:
        axes: names of cells besides the base, each whole or up to its colon; empty for all.
        models: draws of split, weights and attackers.
        training_rows: at most.
        rows: gradients a cell, at most; None for those of the conditions.
        seed: of everything.
        cells: file that keeps a cell as soon as it ends.
    """

    name: ClassVar[str] = "layer_conditions"
    source: ClassVar[str] = "figure 5"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)

    axes: Sequence[str] = ()
    models: int = 2
    training_rows: int = 1000
    rows: int | None = None
    seed: int = 0
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the counts and the names of axes."""
        check_count("LayerConditions.models", self.models)
        self._conditions()

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about 15 minutes of one core."""
        cells: dict[str, list[LayerCell]] = {}
        with Store(self.cells) as store, one_thread():
            for condition in self._conditions():
                if self.rows is not None:
                    condition = replace(condition, rows=min(self.rows, condition.rows))
                for number in range(self.models):
                    cells.setdefault(condition.name, []).append(self._cell(condition, number, store))
                said = "; ".join(f"{cell.verdict} ({cell.leakiest})" for cell in cells[condition.name])
                say(f"{condition.name}: {said}")
        findings = [_finding(name, models) for name, models in cells.items()]
        return StudyResult(
            study=self.name,
            settings={name: value for name, value in describe(self).items() if name != "cells"},
            findings=findings,
            conclusion=_conclude(cells),
            details={name: [asdict(cell) for cell in models] for name, models in cells.items()},
            tables=[_table(cells)],
            figures={"layer-conditions": _figure(cells)},
        )

    def _conditions(self) -> list[LayerCondition]:
        every = {one.name: one for one in conditions()}
        return [every[name] for name in chosen(list(every), self.axes, "LayerConditions.axes")]

    def _cell(self, condition: LayerCondition, number: int, store: Store) -> LayerCell:
        seed = self.seed if number == 0 else derive_seed(self.seed, "model", str(number)) % 2**31
        drawn = condition.rows_of(seed)
        key = {
            "study": self.name,
            "condition": {name: value for name, value in asdict(condition).items() if name != "name"},
            "content": content_of([drawn.rows(torch.arange(drawn.size))]),
            "training": self.training_rows,
            "seed": seed,
        }
        return store.kept(key, LayerCell, partial(measured, condition, drawn, training=self.training_rows, seed=seed))


def _finding(name: str, models: Sequence[LayerCell]) -> Finding:
    """Difference of the first fully connected layer and the leakiest other; of one model with its own interval."""
    known = [cell.difference for cell in models if cell.difference is not None]
    first = models[0]
    own = interval_between(first.low, first.high)
    return Finding(
        quantity=f"{name}: V of the first fully connected layer less that of the leakiest other (nats)",
        ours=float(np.mean(known)) if known else None,
        paper="positive (figure 5)",
        interval=own if len(models) == 1 else student(known),
        n=len(models),
        note="; ".join(f"{cell.verdict} ({cell.leakiest})" for cell in models),
    )


def _conclude(cells: Mapping[str, Sequence[LayerCell]]) -> list[str]:
    lines = []
    for verdict in (
        "first fully connected",
        "first fully connected, not told apart",
        "elsewhere",
        "elsewhere, not told apart",
    ):
        counts = {name: sum(cell.verdict == verdict for cell in models) for name, models in cells.items()}
        said = ", ".join(f"{name} ({count} of {len(cells[name])})" for name, count in counts.items() if count)
        lines.append(f"{verdict}: {said or 'nowhere'}.")
    return lines


def _table(cells: Mapping[str, Sequence[LayerCell]]) -> Table:
    columns = ("cell", "model", "gradients", "accuracy", "V by layer", "fc1 less the leakiest other", "verdict")
    rows = [
        [
            name,
            str(number),
            str(cell.rows),
            f"{cell.accuracy:.2f}",
            ", ".join(f"{layer} {reading.text()}" for layer, reading in cell.values.items()),
            shown_with(cell.difference, interval_between(cell.low, cell.high), ".2f"),
            f"{cell.verdict} ({cell.leakiest})",
        ]
        for name, models in cells.items()
        for number, cell in enumerate(models)
    ]
    return Table(title="Cells", columns=columns, rows=rows)


def _places(cell: LayerCell) -> dict[str, float]:
    """Place of each layer: convolutions from 0 up to 1, the first fully connected at 1, the last at 2."""
    layers = list(cell.values)
    dense = layers.index(FIRST_DENSE)
    return {
        layer: number / dense if number <= dense else 1.0 + (number - dense) / (len(layers) - 1 - dense)
        for number, layer in enumerate(layers)
    }


def _figure(cells: Mapping[str, Sequence[LayerCell]]) -> str:
    """V over that of the leakiest layer, by place in the network, with a LOESS curve of all; as figure 5."""
    points = []
    for number, models in enumerate(cells.values()):
        for cell in models:
            largest = max((reading.value or 0.0 for reading in cell.values.values()), default=0.0)
            if cell.found and largest > 0.0:
                places = _places(cell)
                points += [
                    (number, places[layer], reading.value / largest)
                    for layer, reading in cell.values.items()
                    if reading.value is not None
                ]

    def paint(grid: Any) -> None:
        axes = grid[0, 0]
        for number, name in enumerate(cells):
            mine = [(x, y) for place, x, y in points if place == number]
            if mine:
                axes.plot(
                    *zip(*mine, strict=True),
                    linestyle="",
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=4,
                    color=SERIES[number // len(MARKERS) % len(SERIES)],
                    alpha=0.8,
                    label=name,
                )
        if len(points) > 2:
            at = np.linspace(0.0, 2.0, 41).tolist()
            axes.plot(at, loess([x for _, x, _ in points], [y for *_, y in points], at), color=INK, linewidth=1.6)
        axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xticks([0, 1, 2])
        axes.set_xlabel("first layer (0), first fully connected (1), last (2)")
        axes.set_ylabel("V over that of the leakiest layer")

    height = 3.4 + 0.12 * math.ceil(len(cells) / 2)
    what = "V-information of each layer over that of the leakiest, a marker a condition; the line is LOESS."
    return panels(1, 1, (7.4, height), paint, prefix="layers", title="Where an attribute leaks", description=what)


__all__ = ["LayerCell", "LayerCondition", "LayerConditions", "conditions", "measured"]

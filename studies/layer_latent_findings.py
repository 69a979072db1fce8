"""Findings from all cells of the study of latent information: largest values, correlations, chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.correlations import Floats, pearson, spearman
from studies.layer_latent_cells import ATTACKERS, LatentCell
from studies.layer_latent_data import WORDS, LatentData, LatentNetwork
from studies.summaries import Interval, percentiles

Point = tuple[float, float]
FIRST, MIDDLE, FIRST_DENSE, SECOND_DENSE, LAST = (
    "first layer", "further convolutions", "first fully connected", "second fully connected", "last layer",
)  # fmt: skip
ROLES = (FIRST, MIDDLE, FIRST_DENSE, SECOND_DENSE, LAST)
_RESAMPLES = 1000
# Bootstrap draws of fewer models say nothing of other models.
_LEAST_MODELS = 4


@dataclass(frozen=True, kw_only=True)
class Place:
    """Model that a cell is of.

    Attributes:
        data: what it was trained on.
        network: its kind.
        batch_size: rows behind each gradient.
    """

    data: LatentData
    network: LatentNetwork
    batch_size: int

    @property
    def model(self) -> str:
        """Data and network; cells of one model are not independent."""
        return f"{WORDS[self.data]}, {self.network.value}"

    @property
    def title(self) -> str:
        """For tables and findings."""
        return f"{self.model}, k = {self.batch_size}"


Cells = Mapping[Place, LatentCell]


def role(place: Place, layers: Sequence[str], layer: str) -> str | None:
    """Role of a layer in a network with convolutions; None in one without."""
    first = place.network.first_dense
    if first is None:
        return None
    number, dense = layers.index(layer), layers.index(first)
    if number == len(layers) - 1:
        return LAST
    if number == 0:
        return FIRST
    if number < dense:
        return MIDDLE
    return FIRST_DENSE if number == dense else SECOND_DENSE


@dataclass(frozen=True, kw_only=True)
class Trend:
    """V-information by place in the network, each cell scaled to its largest layer, mean over cells.

    Attributes:
        mean: by role.
        interval: of 95 %, from drawing whole models anew; None with fewer than four.
        cells: how many.
        models: how many.
    """

    mean: Mapping[str, float]
    interval: Mapping[str, Interval | None]
    cells: int
    models: int


def trend(cells: Cells, attacker: str, *, seed: int) -> Trend | None:
    """Trend of networks with convolutions in which the attacker finds something; None without any."""
    by_model: dict[str, list[dict[str, float]]] = {}
    for place, cell in cells.items():
        profile = cell.information[attacker]
        if place.network.first_dense is None or not profile.found or profile.leakiest is None:
            continue
        largest = profile.readings[profile.leakiest].value or 1.0
        found: dict[str, list[float]] = {}
        layers = list(profile.readings)
        for layer, reading in profile.readings.items():
            where = role(place, layers, layer)
            if where is not None and reading.value is not None:
                found.setdefault(where, []).append(reading.value / largest)
        by_model.setdefault(place.model, []).append({where: float(np.mean(one)) for where, one in found.items()})
    if not by_model:
        return None
    groups = list(by_model.values())
    mean, interval = {}, {}
    for where in ROLES:
        values = [np.array([cell[where] for cell in group if where in cell]) for group in groups]
        known = [one for one in values if len(one)]
        if known:
            mean[where] = float(np.concatenate(known).mean())
            interval[where] = drawn_anew(known, lambda parts: float(np.concatenate(parts).mean()), seed=seed)
    return Trend(mean=mean, interval=interval, cells=sum(len(group) for group in groups), models=len(groups))


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Correlation of a measure with V-information over layers.

    Attributes:
        pearson: over all layers of all cells.
        spearman: likewise, of ranks.
        scaled: Pearson with both numbers of a cell over their largest there, as the paper scales V-information.
        within: mean over cells of Pearson among the layers of one.
        within_ranks: likewise, Spearman.
        intervals: of each, by name.
        points: layers.
        cells: how many.
        models: how many.
    """

    pearson: float | None
    spearman: float | None
    scaled: float | None
    within: float | None
    within_ranks: float | None
    intervals: Mapping[str, Interval | None]
    points: int
    cells: int
    models: int


def points_of(cell: LatentCell, measure: str, attacker: str) -> Floats:
    """(measure, V-information) of every layer that has both, (l, 2)."""
    readings = cell.information[attacker].readings
    pairs = [
        (found.value, readings[layer].value)
        for layer, found in cell.measures[measure].items()
        if found.value is not None and readings[layer].value is not None
    ]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def correlation(cells: Cells, measure: str, attacker: str, *, seed: int) -> Correlation:
    """Pooled and within cells; intervals of 95 % draw whole models (data and network) anew."""
    groups: dict[str, list[Floats]] = {}
    for place, cell in cells.items():
        points = points_of(cell, measure, attacker)
        if len(points):
            groups.setdefault(place.model, []).append(points)
    values: dict[str, float | None] = {}
    intervals: dict[str, Interval | None] = {}
    for name, (of_cell, of_all) in _RULES.items():
        # What is of single cells is the same in every draw.
        models = [[of_cell(points) for points in model] for model in groups.values()]
        together = [one for model in models for one in model]
        values[name] = of_all(together) if together else None
        intervals[name] = drawn_anew(
            models, lambda drawn, of_all=of_all: of_all([one for model in drawn for one in model]), seed=seed
        )
    counts = [len(points) for model in groups.values() for points in model]
    return Correlation(
        pearson=values["pearson"],
        spearman=values["spearman"],
        scaled=values["scaled"],
        within=values["within"],
        within_ranks=values["within_ranks"],
        intervals=intervals,
        points=sum(counts),
        cells=len(counts),
        models=len(groups),
    )


def drawn_anew(groups: Sequence[object], rule: Callable[..., float | None], *, seed: int) -> Interval | None:
    """The percentile bootstrap interval of 95 % with whole groups drawn anew; None for fewer than four groups."""
    if len(groups) < _LEAST_MODELS:
        return None
    random = np.random.default_rng(seed)
    found = []
    for _ in range(_RESAMPLES):
        value = rule([groups[place] for place in random.integers(0, len(groups), len(groups))])
        if value is not None:
            found.append(value)
    return percentiles(found, of=_RESAMPLES)


@dataclass(frozen=True, kw_only=True)
class Null:
    """Values that shuffled attributes give.

    Attributes:
        p_values: all of them; layers of one shuffle go together.
        shuffles: independent orders behind the p-values, over all cells.
        fitted: likewise, behind V-information.
        at_most: by level, the share of p-values that are no larger.
        intervals: of these shares, from drawing whole shuffles anew.
        alarms: by attacker, layers whose interval of V-information lies above 0.
        layers: by attacker, of how many.
        largest: by attacker, the largest value.
    """

    p_values: Sequence[float]
    shuffles: int
    fitted: int
    at_most: Mapping[float, float]
    intervals: Mapping[float, Interval | None]
    alarms: Mapping[str, int]
    layers: Mapping[str, int]
    largest: Mapping[str, float]


def null(cells: Cells, *, seed: int) -> Null:
    """Over all cells, layers and shuffles."""
    sets: list[Floats] = []
    alarms, layers, largest = dict.fromkeys(ATTACKERS, 0), dict.fromkeys(ATTACKERS, 0), dict.fromkeys(ATTACKERS, 0.0)
    for cell in cells.values():
        for shuffle in cell.shuffled:
            known = [value for value in shuffle.p_values.values() if value is not None]
            sets += [np.array(known)] if known else []
            for attacker, readings in shuffle.information.items():
                for reading in readings.values():
                    if reading.value is not None and reading.low is not None:
                        layers[attacker] += 1
                        alarms[attacker] += reading.low > 0.0
                        largest[attacker] = max(largest[attacker], reading.value)
    p_values = np.concatenate(sets) if sets else np.zeros(0)
    at_most, intervals = {}, {}
    for level in (0.05, 0.1, 0.5):
        if len(p_values):
            at_most[level] = float((p_values <= level).mean())
            intervals[level] = drawn_anew(
                sets, lambda drawn, level=level: float((np.concatenate(drawn) <= level).mean()), seed=seed
            )
    return Null(
        p_values=p_values.tolist(),
        shuffles=len(sets),
        fitted=sum(bool(shuffle.information) for cell in cells.values() for shuffle in cell.shuffled),
        at_most=at_most,
        intervals=intervals,
        alarms=alarms,
        layers=layers,
        largest=largest,
    )


def largest_layer(cell: LatentCell, measure: str) -> str | None:
    """The layer with the largest value of a measure; None where no layer has one."""
    known = {layer: found.value for layer, found in cell.measures[measure].items() if found.value is not None}
    return max(known, key=lambda layer: known[layer]) if known else None


def _scaled(points: Floats) -> Floats:
    """Both columns over their largest; without the layers of a cell in which that is not positive."""
    largest = points.max(axis=0)
    return points / largest if (largest > 0.0).all() else points[:0]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# By name of a coefficient: what it is from a cell, and from those of all cells.
_RULES: Mapping[str, tuple[Callable[[Floats], Any], Callable[[Sequence[Any]], float | None]]] = {
    "pearson": (lambda points: points, lambda cells: pearson(np.concatenate(cells))),
    "spearman": (lambda points: points, lambda cells: spearman(np.concatenate(cells))),
    "scaled": (_scaled, lambda cells: pearson(np.concatenate(cells))),
    "within": (pearson, _mean),
    "within_ranks": (spearman, _mean),
}


__all__ = [
    "FIRST",
    "FIRST_DENSE",
    "LAST",
    "MIDDLE",
    "ROLES",
    "SECOND_DENSE",
    "Cells",
    "Correlation",
    "Null",
    "Place",
    "Trend",
    "correlation",
    "drawn_anew",
    "largest_layer",
    "null",
    "points_of",
    "role",
    "trend",
]

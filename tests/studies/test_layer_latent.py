"""Latent information by layer: rows, cells, and what cells say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from gradleak.attacks import RandomForest
from gradleak.core import Domain, DomainKind
from gradleak.data import Population
from gradleak.results import InputError
from gradleak.risk import LatentInformation
from studies import LayerLatent, layer_latent
from studies.layer_latent_cells import (
    ATTACKERS,
    DISTANCE,
    FOREST,
    INPUTS,
    LABELS,
    LOGISTIC,
    P_VALUE,
    LatentCell,
    Profile,
    Reading,
    Recipe,
    Shuffled,
    measure,
)
from studies.layer_latent_data import Files, LatentData, LatentNetwork, Parts, networks_for, population
from studies.layer_latent_findings import (
    FIRST,
    FIRST_DENSE,
    LAST,
    MIDDLE,
    SECOND_DENSE,
    Place,
    correlation,
    null,
    role,
    trend,
)
from studies.store import Store


@dataclass(frozen=True, kw_only=True)
class Quick(Recipe):
    """A forest of few trees."""

    def attackers(self) -> dict[str, LatentInformation]:
        found = super().attackers()
        return found | {FOREST: replace(found[FOREST], classifier=RandomForest(trees=12))}


RECIPE = Quick(
    rows=80, examples=3, products=4, entries=1000, components=10, dimension=4, columns=20, permutations=19, steps=5,
    shuffles=1, orders=1, seed=0,
)  # fmt: skip


def _rows(count: int = 200) -> Population:
    """An attribute that stands in the last inputs and has nothing to do with the label."""
    random = torch.Generator().manual_seed(0)
    attribute = torch.arange(count) % 2
    inputs = torch.randn(count, 6, generator=random)
    inputs[:, 4:] = 3.0 * attribute[:, None]
    return Population(
        name="made up",
        inputs=inputs,
        targets=(inputs[:, 0] > 0).long(),
        sensitive=attribute,
        values=("without", "with"),
        domain=Domain(shape=(6,), kind=DomainKind.TABULAR),
        holds_sensitive=True,
    )


def test_batches_have_one_value_and_share_no_row() -> None:
    parts = Parts.of(_rows(), training=1000, seed=0)
    assert len(parts.training) == 80  # two in five
    assert not set(parts.training.tolist()) & set(parts.judged.tolist())
    batches, values = parts.batches(size=5, most=100)
    attribute = parts.population.sensitive
    counts = torch.bincount(attribute[parts.judged]) // 5
    assert len(batches) == 2 * int(counts.min())
    assert bool((attribute[batches] == values[:, None]).all())
    assert len(set(batches.flatten().tolist())) == batches.numel()
    assert set(batches.flatten().tolist()) <= set(parts.judged.tolist())
    few, none = parts.batches(size=100, most=100)
    assert few.shape == (0, 100)
    assert len(none) == 0


@pytest.fixture(scope="module")
def cell() -> LatentCell:
    parts = Parts.of(_rows(), training=1000, seed=0)
    return measure(RECIPE, parts, LatentNetwork.MLP, batch_size=1, epochs=1)


def test_a_cell_finds_what_was_put_in(cell: LatentCell) -> None:
    assert cell.rows == 80
    # 0 without the attribute; with it of either sign, which a linear rule cannot tell.
    assert cell.information[FOREST].found
    assert (cell.information[FOREST].readings["0"].value or 0.0) > 0.3
    for attacker in ATTACKERS:
        assert list(cell.pairs[attacker].readings) == ["0 + 2", "2 + 4", "4 + 6"]
        # The label has nothing to do with the attribute; the inputs hold it.
        assert (cell.alone[attacker][LABELS].low or 0.0) <= 0.0
        assert (cell.alone[attacker][INPUTS].value or 0.0) > 0.3
    assert (cell.measures[P_VALUE]["0"].value or 1.0) <= 0.1
    # 64 × 6 weights and 64 biases.
    assert cell.entries["0"] == 448
    (shuffled,) = cell.shuffled
    assert all((reading.low or 0.0) <= 0.0 for reading in shuffled.information[FOREST].values())
    parts = Parts.of(_rows(), training=1000, seed=0)
    few = measure(RECIPE, parts, LatentNetwork.MLP, batch_size=8, epochs=1)
    assert "too few rows" in few.note
    assert few.information == {}


def test_a_cell_is_kept(cell: LatentCell, tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    with Store(str(file)) as store:
        store.add({"k": 1}, LatentCell, cell)
    with Store(str(file)) as store:
        assert store.get({"k": 1}, LatentCell) == cell


def _cell(values: dict[str, float], distances: dict[str, float], p_values: Sequence[float] = ()) -> LatentCell:
    """A cell of hand-made numbers."""
    best = max(values, key=lambda layer: values[layer])
    readings = {layer: Reading(value=value, low=value - 0.1, high=value + 0.1) for layer, value in values.items()}
    profile = Profile(readings=readings, leakiest=best, rivals=())
    found = {layer: Reading(value=value) for layer, value in distances.items()}
    shuffled = [
        Shuffled(
            p_values={"0": value, "1": None},
            information={
                FOREST: {"0": Reading(value=0.02, low=-0.1, high=0.1)},
                LOGISTIC: {"0": Reading(value=0.2, low=0.1, high=0.3)},
            },
        )
        for value in p_values
    ]
    return LatentCell(
        rows=40, information=dict.fromkeys(ATTACKERS, profile), measures={DISTANCE: found}, shuffled=shuffled
    )


def _places(count: int) -> list[Place]:
    chosen = [(data, network) for data in LatentData for network in networks_for(data, (LatentNetwork.LENET5,))]
    return [Place(data=data, network=network, batch_size=1) for data, network in chosen[:count]]


def test_correlations_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    cells, pooled, single = {}, [], []
    for place in _places(4):
        points = random.uniform(0.1, 1.0, (5, 2))
        points[:, 1] += points[:, 0]
        names = [f"layer{number}" for number in range(5)]
        cells[place] = _cell(dict(zip(names, points[:, 1], strict=True)), dict(zip(names, points[:, 0], strict=True)))
        pooled.append(points)
        single.append(stats.pearsonr(*points.T)[0])
    found = correlation(cells, DISTANCE, FOREST, seed=0)
    together = np.concatenate(pooled)
    assert found.pearson == pytest.approx(stats.pearsonr(*together.T)[0])
    assert found.spearman == pytest.approx(stats.spearmanr(*together.T)[0])
    scaled = np.concatenate([points / points.max(axis=0) for points in pooled])
    assert found.scaled == pytest.approx(stats.pearsonr(*scaled.T)[0])
    assert found.within == pytest.approx(np.mean(single))
    assert (found.points, found.cells, found.models) == (20, 4, 4)
    low, high = found.intervals["within"]
    assert min(single) <= low <= found.within <= high <= max(single)
    # Two sizes of batches of one model are one model, and two models are too few for an interval.
    first, second = list(cells)[:2]
    again = {first: cells[first], replace(first, batch_size=32): cells[first], second: cells[second]}
    assert correlation(again, DISTANCE, FOREST, seed=0).models == 2
    assert correlation(again, DISTANCE, FOREST, seed=0).intervals["pearson"] is None
    flat = {first: _cell({"a": 0.0, "b": 0.0, "c": 0.0}, {"a": 1.0, "b": 2.0, "c": 3.0})}
    assert correlation(flat, DISTANCE, FOREST, seed=0).pearson is None


def test_layers_are_told_by_their_place_in_the_network() -> None:
    layers = ["conv1", "conv2", "fc1", "fc2", "fc3"]
    place = Place(data=LatentData.TINT, network=LatentNetwork.LENET5, batch_size=1)
    assert [role(place, layers, layer) for layer in layers] == [FIRST, MIDDLE, FIRST_DENSE, SECOND_DENSE, LAST]
    text = Place(data=LatentData.TEXT, network=LatentNetwork.TEXT_CLASSIFIER, batch_size=1)
    words = ["embedding", "conv1", "conv2", "fc1", "fc2"]
    assert [role(text, words, layer) for layer in words] == [FIRST, MIDDLE, MIDDLE, FIRST_DENSE, LAST]
    table = Place(data=LatentData.ADULT, network=LatentNetwork.MLP, batch_size=1)
    assert role(table, ["0", "2"], "0") is None
    values = dict(zip(layers, (0.1, 0.2, 0.4, 0.3, 0.2), strict=True))
    cells = {place: _cell(values, values), table: _cell({"0": 0.5, "2": 0.1}, {"0": 1.0, "2": 1.0})}
    found = trend(cells, FOREST, seed=0)
    assert found.mean == pytest.approx({FIRST: 0.25, MIDDLE: 0.5, FIRST_DENSE: 1.0, SECOND_DENSE: 0.75, LAST: 0.5})
    assert (found.cells, found.models, found.interval[FIRST]) == (1, 1, None)
    nothing = {place: _cell(dict.fromkeys(layers, 0.05), values)}
    assert trend(nothing, FOREST, seed=0) is None


def test_shuffles_are_counted() -> None:
    cells = {
        place: _cell({"0": 0.1, "1": 0.2}, {"0": 1.0, "1": 2.0}, p_values=[0.04, 0.3, 0.6, 0.9]) for place in _places(2)
    }
    found = null(cells, seed=0)
    assert (found.shuffles, found.fitted) == (8, 8)
    assert found.at_most == {0.05: 0.25, 0.1: 0.25, 0.5: 0.5}
    assert (found.alarms[FOREST], found.alarms[LOGISTIC], found.layers[FOREST]) == (0, 8, 8)
    assert found.largest[LOGISTIC] == 0.2
    low, high = found.intervals[0.5]
    assert 0.0 <= low < 0.5 < high <= 1.0


def test_a_study_goes_on_from_its_cells(cell: LatentCell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []

    def measured(recipe: Recipe, parts: Parts, network: LatentNetwork, *, batch_size: int, epochs: int) -> LatentCell:
        asked.append(batch_size)
        return cell if batch_size == 1 else LatentCell(rows=2, note="too few rows for ten batches")

    monkeypatch.setattr(layer_latent, "population", lambda data, files, seed: _rows())
    monkeypatch.setattr(layer_latent, "measure", measured)
    study = LayerLatent(
        data=[LatentData.ADULT, LatentData.SPEECH], batch_sizes=[1, 50], cells=str(tmp_path / "cells.jsonl")
    )
    said: list[str] = []
    result = study.run(say=said.append)
    assert any("speech: left out" in line for line in said)
    assert any("too few rows" in line for line in result.conclusion)
    assert [len(table.rows) for table in result.tables] == [1, 4, 10]
    assert all(finding.n >= 1 for finding in result.findings)
    assert "figures 5 and 7" in result.figures["layer_latent"]
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "0.686 to 0.707" in page
    assert study.run(say=said.append) == result
    assert asked == [1, 50]


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="judged"):
        LayerLatent(judged=10)
    with pytest.raises(InputError, match="networks"):
        LayerLatent(networks=[LatentNetwork.MLP])
    with pytest.raises(InputError, match="at least one"):
        LayerLatent(batch_sizes=[])
    with pytest.raises(InputError, match="public_text"):
        population(LatentData.TEXT, Files(text="x.tsv"), seed=0)

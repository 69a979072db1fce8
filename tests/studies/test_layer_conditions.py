"""Where an attribute leaks under changed conditions and over epochs, and the smooth curves, at tiny size."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.core import Domain
from gradleak.data import Population
from gradleak.results import InputError
from studies import CurveNetwork, LayerConditions, LayerEpochs
from studies.layer_conditions import BASE, LayerCell, LayerCondition, conditions, measured
from studies.layer_epochs import ORIGINAL
from studies.layer_latent_cells import Reading
from studies.smoothing import loess


def _quiet(line: str) -> None:
    del line


def test_loess_keeps_lines_and_weighs_what_is_near() -> None:
    x = [0.0, 0.5, 1.0, 2.0, 4.0, 7.0]
    line = loess(x, [3.0 - 2.0 * place for place in x], [0.25, 3.0, 8.0], span=0.6)
    assert line == pytest.approx([2.5, -3.0, -13.0])
    # A step: far from it the curve is flat, and between it rises.
    steps = loess(list(range(20)), [0.0] * 10 + [1.0] * 10, [2.0, 9.5, 17.0], span=0.4)
    assert steps == pytest.approx([0.0, 0.5, 1.0], abs=1e-9)


def test_loess_is_least_squares_with_tricube_weights() -> None:
    random = np.random.default_rng(0)
    x, y = np.sort(random.random(12)), random.random(12)
    place, count = 0.4, 9
    apart = np.abs(x - place)
    weights = np.clip(1 - (apart / np.sort(apart)[count - 1]) ** 3, 0, None) ** 3
    design = np.stack([np.ones(12), x - place], axis=1) * np.sqrt(weights)[:, None]
    want = np.linalg.lstsq(design, y * np.sqrt(weights), rcond=None)[0][0]
    assert loess(x.tolist(), y.tolist(), [place], span=0.75)[0] == pytest.approx(want, rel=1e-6)
    assert loess([1.0, 1.0, 1.0], [1.0, 2.0, 6.0], [1.0])[0] == pytest.approx(3.0)
    with pytest.raises(InputError, match="expected at least two points and a span"):
        loess([1.0], [1.0], [1.0])


def test_each_condition_differs_from_the_base_in_one_thing() -> None:
    base = LayerCondition()
    for one in conditions()[1:]:
        assert sum(asdict(one)[name] != value for name, value in asdict(base).items() if name != "name") == 1
    first = ORIGINAL[0]
    for other in ORIGINAL[1:]:
        assert sum(asdict(other)[name] != value for name, value in asdict(first).items() if name != "name") == 1


@pytest.mark.slow
def test_parity_is_of_the_digit_and_images_have_the_size_that_is_asked_for() -> None:
    drawn = LayerCondition(data="parity", side=14).rows_of(0)
    assert drawn.inputs.shape[1:] == (1, 14, 14)
    assert drawn.domain is not None
    assert drawn.domain.shape == (1, 14, 14)
    assert set(drawn.targets.tolist()) == set(drawn.sensitive.tolist()) == {0, 1}
    # Of 1 to 4 half are odd, and of 5 to 8: labels tell nothing.
    share = [float(drawn.sensitive[drawn.targets == task].float().mean()) for task in (0, 1)]
    assert share == pytest.approx([0.5, 0.5], abs=0.04)


def test_verdicts_say_what_is_told_apart() -> None:
    value = Reading(value=0.3, low=0.1, high=0.5)
    cell = LayerCell(
        rows=40, accuracy=0.9, values={"conv1": value, "fc1": value, "fc2": value}, entries={}, leakiest="fc1",
        rivals=(), difference=0.1, low=0.0, high=0.2, seconds=0.0,
    )  # fmt: skip
    assert cell.verdict == "first fully connected"
    assert replace(cell, rivals=("conv1",)).verdict == "first fully connected, not told apart"
    assert replace(cell, leakiest="conv1", rivals=("fc1",)).verdict == "elsewhere, not told apart"
    assert replace(cell, leakiest="conv1").verdict == "elsewhere"
    nothing = {layer: Reading(value=0.0, low=-0.1, high=0.1) for layer in cell.values}
    assert replace(cell, values=nothing).verdict == "nothing found"


@pytest.mark.slow
def test_models_along_the_training_share_their_batches_in_turns() -> None:
    """An attribute that stands in every pixel is found at whichever models the gradients are taken."""
    generator = torch.Generator().manual_seed(0)
    attribute = torch.arange(120) % 2
    inputs = 0.1 * torch.rand((120, 1, 16, 16), generator=generator) + 0.8 * attribute[:, None, None, None]
    drawn = Population(
        name="planted", inputs=inputs, targets=torch.arange(120) // 2 % 3, sensitive=attribute, values=("dark", "light"),
        domain=Domain.image(channels=1, height=16, width=16), holds_sensitive=True,
    )  # fmt: skip
    condition = LayerCondition(side=16, batch_size=1, epochs=16, snapshots=2, rows=40, entries=64)
    cell = measured(condition, drawn, training=20, seed=0)
    assert cell.rows == 40
    assert cell.found
    first = cell.values["conv1"].value
    assert first is not None
    assert first > 0.5
    assert cell.difference is not None
    assert cell.low is not None
    assert cell.low <= cell.difference
    one = measured(replace(condition, snapshots=1), drawn, training=20, seed=0)
    assert one.entries == cell.entries
    assert one.values != cell.values


@pytest.mark.slow
def test_both_studies_at_tiny_size_go_on_from_their_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = LayerConditions(
        axes=("training: none",), models=1, training_rows=20, rows=20, cells=str(tmp_path / "where.jsonl")
    )
    result = where.run(say=_quiet)
    assert set(result.details) == {BASE, "training: none"}
    over = LayerEpochs(
        networks=(CurveNetwork.DEEP_MLP,), originals=("base", "noise of 1e-3"), epochs=(0, 1), gradients=40, examples=2,
        targets=2, iterations=10, training_images=30, cells=str(tmp_path / "over.jsonl"),
    )  # fmt: skip
    curves = over.run(say=_quiet)
    (mlp,) = curves.details["latent"].values()
    assert set(mlp) == {"0", "1"}
    assert len(mlp["0"]["V, forest"]) == 8
    norms = {name: curve["0"]["norm"] for name, curve in curves.details["original"].items()}
    assert norms["base"] == norms["noise of 1e-3"] > 0
    drops = [one for one in curves.findings if "base: drop of the gradient norm" in one.quantity]
    base = curves.details["original"]["base"]
    assert drops[0].ours == pytest.approx(base["0"]["norm"] - base["1"]["norm"])
    over.run(say=_quiet).write(tmp_path)
    assert (tmp_path / "layer-epochs-deep-mlp.svg").exists()

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("studies.layer_conditions.layer_gradients", refuse)
    monkeypatch.setattr("studies.layer_epochs.layer_gradients", refuse)
    assert where.run(say=_quiet).details == result.details
    assert over.run(say=_quiet).details == curves.details
    with pytest.raises(InputError, match="axes: expected any of base, attribute: parity"):
        replace(where, axes=("nothing",))

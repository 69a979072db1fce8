"""What changes how much a gradient tells, at tiny size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from gradleak.attacks import Blind
from gradleak.core import Batch, Domain, Objective, derive_generator
from gradleak.defenses import Clip, LayerNoise
from studies import AttackFamily, Influence, LayerInfluences, Leakage, NoisyLayers
from studies.influence_cells import Attributes, Pictures, noise_on, over_seeds, snapshots
from studies.influence_tables import figures, original_point


def _quiet(line: str) -> None:
    del line


TINY = LayerInfluences(
    targets=2,
    iterations=2,
    products=2,
    training_images=40,
    family=AttackFamily.LOGISTIC,
    batches=60,
    batch_size=16,
    private_rows=2500,
    seeds=2,
    others=(0, 2),
    epochs=(1,),
    stds=(10.0,),
    where=(NoisyLayers.FIRST,),
)


@pytest.mark.slow
def test_every_influence_has_its_curve_and_controls_and_nothing_is_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(TINY, cells=str(tmp_path / "cells.jsonl"))
    result = study.run(say=_quiet)
    points = result.details["points"]
    assert {(point["leakage"], point["part"]) for point in points} == {
        (leakage.value, part.value) for leakage in Leakage for part in Influence
    }
    assert len(result.tables) == 6
    assert all(point["null"] is not None for point in points)
    by = {(point["leakage"], point["part"], point["place"], point["attacker"], point["x"]): point for point in points}
    assert by["original", "aggregation", "", "", 2]["beside"]["sensitivity, relative"] == pytest.approx(1 / 3)
    assert by["original", "epoch", "", "", 1]["beside"]["sensitivity"] > 0.0
    # Batches of one gender only: linear attackers tell them apart, from what carries no noise too, but no static one
    # from what is buried in noise.
    alone = by["latent", "aggregation", "", "", 0]["value"]
    assert alone > 0.1
    assert by["latent", "noise", "all", "adaptive", 0.0]["value"] > 0.1
    assert by["latent", "noise", "first", "adaptive", 10.0]["beside"]["quiet"] > 0.05
    assert by["latent", "noise", "first", "static", 10.0]["value"] < alone
    figures = [f"layer_influences_{part}" for part in ("aggregation", "epoch", "noise")]
    assert [f"figure {number}" in result.figures[name] for name, number in zip(figures, (9, 10, 11), strict=True)] == [
        True
    ] * 3
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "near zero (sensitivity)" not in page  # 30 others were not asked for
    assert "original, aggregation: above the control" in page

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Pictures, "inverted", refuse)
    monkeypatch.setattr(Attributes, "everything", refuse)
    again = study.run(say=_quiet)
    assert again.details == result.details


def test_layers_are_parted_in_thirds() -> None:
    five = ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert NoisyLayers.FIRST.of(five) == ("conv1", "conv2")
    assert NoisyLayers.MIDDLE.of(five) == ("fc1",)
    assert NoisyLayers.LAST.of(five) == ("fc2", "fc3")
    assert NoisyLayers.ALL.of(five) == tuple(five)
    four = ["0", "2", "4", "6"]
    assert [part.of(four) for part in NoisyLayers][:3] == [("0",), ("2", "4"), ("6",)]


def _classifier() -> tuple[nn.Linear, Objective, Batch]:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, 0.1)
    nn.init.zeros_(model.bias)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(100, 3, generator=generator)
    return model, Objective.from_module(model), Batch(inputs, (inputs[:, 0] > 0).long())


def test_noise_comes_after_clipping() -> None:
    _, objective, _ = _classifier()
    clip, noise = noise_on(objective, NoisyLayers.ALL, 0.5)
    assert isinstance(clip, Clip)
    assert noise == LayerNoise(std={"": 0.5})
    assert noise_on(objective, NoisyLayers.ALL, 0.0) == [clip]


def test_snapshots_are_those_of_one_training_by_torch() -> None:
    model, objective, rows = _classifier()
    found = snapshots(objective, rows, (1, 3), learning_rate=0.5, seed=0)
    shorter = snapshots(objective, rows, (1,), learning_rate=0.5, seed=0)
    assert list(found) == [0, 1, 3]
    for name, tensor in shorter[1].params.items():
        assert torch.equal(tensor, found[1].params[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = derive_generator(0, "epochs")
    for _ in range(3):
        order = torch.randperm(100, generator=generator)
        for places in (order[:64], order[64:]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows.inputs[places]), rows.targets[places]).backward()
            optimizer.step()
    torch.testing.assert_close(found[3].params["weight"], model.weight.detach())


def test_means_over_seeds_have_the_interval_of_scipy() -> None:
    mean, interval = over_seeds([0.1, None, 0.4, 0.3])
    values = np.array([0.1, 0.4, 0.3])
    assert mean == pytest.approx(values.mean())
    assert interval == pytest.approx(scipy.stats.t.interval(0.95, 2, values.mean(), scipy.stats.sem(values)))
    assert over_seeds([None]) == (None, None)
    assert over_seeds([0.2]) == (0.2, None)
    assert over_seeds([0.0, 0.0]) == (0.0, None)


def test_figures_have_a_line_a_place_of_noise_and_a_control_elsewhere() -> None:
    points = [original_point("noise", "first", "static", std, {"value": 1.0 + std, "n": 4.0}) for std in (0.0, 0.1)] + [
        original_point("aggregation", "", "", n, {"value": 3.0, "exchanged": 0.5, "n": 4.0}) for n in (0, 30)
    ]
    drawn = figures(points)
    assert list(drawn) == ["layer_influences_noise", "layer_influences_aggregation"]
    assert "first layers, static" in drawn["layer_influences_noise"]
    assert "figure 11" in drawn["layer_influences_noise"]
    assert "control" in drawn["layer_influences_aggregation"]


def test_where_a_gradient_is_round_off_it_has_a_norm_and_no_sensitivity() -> None:
    inputs = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    targets = Batch(inputs, torch.tensor([0, 1]), Domain.image(channels=1, height=4, width=4))
    model = nn.Sequential(nn.Flatten(), Sure(), nn.Linear(16, 10))
    pictures = Pictures(targets=targets, others=targets, attack=Blind(), seed=0)
    found = pictures.reacting(Objective.from_module(model), products=2)
    assert found["sensitivity"] is None
    assert found["norm"] is not None


class Sure(nn.Module):
    """A gradient of its own making, whose products contradict each other as those of round-off do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().round() + x.square() - x.square().detach()

"""I²F against real attacks at tiny size, and the rules of its numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradleak.core import Batch, Domain, Reconstruction
from gradleak.results import InputError, Outcome
from studies import InfluenceInTheWorld
from studies.influence_world_cells import World, WorldData, WorldNetwork, scored
from studies.influence_world_tables import findings, over_all, over_images, within
from studies.store import Store


def test_the_plan_varies_one_thing_at_a_time_and_stays_below_sixty_cells() -> None:
    plan = InfluenceInTheWorld(cifar="images.npz").plan()
    base = plan[0]
    assert base.title == "lenet, mnist, dgl"
    assert sum(len(setting.variances) for setting in plan) == 47
    axes = InfluenceInTheWorld(cifar="images.npz", axes=("base", "attack", "data", "network", "epoch")).plan()
    for setting in axes:
        changed = [
            name for name in ("network", "data", "attack", "epoch") if getattr(setting, name) != getattr(base, name)
        ]
        assert len(changed) <= 1 or (changed == ["attack", "epoch"] and setting.attack.value == "gs")
    assert {setting.data.value for setting in InfluenceInTheWorld().plan()} == {"mnist"}
    with pytest.raises(InputError, match="expected at most 60 cells, got 64"):
        InfluenceInTheWorld(axes=("base", "attack"), variances=tuple(10.0**-k for k in range(16))).plan()


def test_predictions_are_those_of_the_whole_derivative(tiny_images: str) -> None:
    world = World(cifar=tiny_images, only=None, pool=8, epsilons=(0.1,), seed=0, store=Store(None))
    setup = world.setup(WorldNetwork.LINEAR, WorldData.CIFAR10, [0])
    (found,) = setup.predictions(0, 1)
    operator = setup._operator(0, setup.examples(1)[0])
    matrix, noise = operator.dense().numpy(), setup.noise(0).double().numpy()
    projected, gram = matrix.T @ noise, matrix.T @ matrix
    values = np.linalg.eigvalsh(gram)
    side = math.sqrt(matrix.shape[1])
    assert found.eigenvalue_max == pytest.approx(values[-1], rel=1e-9)
    assert found.nominal == pytest.approx(np.linalg.norm(projected), rel=1e-6)
    epsilon = 0.1 * values[-1]
    moved = np.linalg.solve(gram + epsilon * np.eye(len(gram)), projected)
    assert found.influences["0.1"] == pytest.approx(np.linalg.norm(moved) / side, rel=1e-6)
    assert found.bounds["0"] == pytest.approx(np.linalg.norm(projected) / values[-1] / side, rel=1e-6)
    assert found.bounds["0.1"] == pytest.approx(found.bounds["0"] / 1.1, rel=1e-9)
    assert found.expected == pytest.approx(math.sqrt((1 / values).sum() / len(values)), rel=1e-6)
    assert found.bounds["0"] <= found.influences["0"]
    assert found.influences["0.1"] <= found.influences["0"]


def test_levels_scale_the_same_noise_and_killed_studies_go_on(tmp_path: Path, tiny_images: str) -> None:
    study = InfluenceInTheWorld(
        cifar=tiny_images, pool=8, axes=("data",), variances=(1e-6, 1e-4), color_images=3, iterations=5, epsilons=(0.1,),
        cells=str(tmp_path / "cells"),
    )  # fmt: skip
    said: list[str] = []
    unplayed = replace(study, cells=None, compute=False).run(say=said.append)
    assert said[:2] == ["lenet, cifar10, dgl: 3 images, 5 iterations, variances 1e-06, 0.0001", "2 cells"]
    assert unplayed.conclusion == ["2 cells are planned, and none was computed."]
    rows = study.run(say=said.append).details["rows"]
    small, large = ([row for row in rows if row["variance"] == variance] for variance in (1e-6, 1e-4))
    for place, (one, other) in enumerate(zip(small, large, strict=True)):
        for key in ("influence", "bound", "nominal", "expected"):
            assert other[key] == pytest.approx(10 * one[key], rel=1e-9)
        assert (one["image"], one["label"], other["image"]) == (place, place, place)
        assert one["bound"] <= one["influences"]["0.1"] * 1.1
        assert one["influences"]["0.1"] < one["influence"]
        assert one["rmse"] > 0
    again = replace(study, compute=False).run(say=said.append)
    assert again.details["rows"] == rows
    page = again.write(tmp_path / "out").read_text(encoding="utf-8")
    assert "![influence-world-rmse](influence-world-rmse.svg)" in page
    assert (tmp_path / "out" / "influence-world-epsilon.svg").read_text(encoding="utf-8").startswith("<svg")


def _row(image: int, variance: float, influence: float, rmse: float) -> dict[str, Any]:
    return {"setting": "x", "image": image, "variance": variance, "influence": influence, "rmse": rmse}


def test_noise_alone_makes_a_correlation_over_everything_and_none_within_a_level() -> None:
    # Errors grow with the noise; within a level the order is reversed.
    rows = [
        _row(image, variance, variance * (10 + image), variance * (20 - image))
        for variance in (1e-4, 1e-2, 1.0)
        for image in range(6)
    ]
    assert over_all(rows, "influence", "rmse") > 0.7
    assert within(rows, "influence", "rmse") == pytest.approx(-1)
    low, high = over_images(rows, "influence", "rmse", seed=0, by_level=True)
    assert (low, high) == pytest.approx((-1, -1))
    wide = over_images(rows, "influence", "rmse", seed=0, by_level=False)
    # Between levels the noise orders everything, whichever images are drawn.
    assert 0.7 < wide[0] < wide[1] < 1.0
    assert over_images(rows[:4], "influence", "rmse", seed=0, by_level=False) is None
    assert over_all(rows[:2], "influence", "rmse") is None


def test_findings_say_how_far_an_attack_is_from_its_prediction() -> None:
    rows = [
        _row(image, 1e-4, 0.1 + image, 0.2 + 2 * image)
        | {"bound": 0.01 * (1 + image), "nominal": 1.0, "ssim": None, "st_lpips": None}
        | {"influences": {"0": 0.1 + image, "0.1": 3.0}}
        for image in range(5)
    ]
    by_quantity = {finding.quantity: finding for finding in findings(rows, seed=0)}
    assert by_quantity["x: Spearman of I²F and RMSE, within a level of noise"].ours == pytest.approx(1)
    assert by_quantity["x: RMSE / I²F at the smallest noise, median"].ours == pytest.approx(2)
    assert by_quantity["x: share of attacks whose RMSE is at least the bound"].ours == 1.0
    # Errors are 0.2, 2.2, 4.2, 6.2 and 8.2.
    assert by_quantity["x: share of attacks whose RMSE is at least I²F at ε = 0.1 of the median λmax"].ours == 0.6
    assert by_quantity["x: median RMSE at variance 0.0001"].ours == pytest.approx(4.2)
    assert by_quantity["x: largest over smallest RMSE of an image at variance 0.0001"].ours == pytest.approx(41)
    assert by_quantity["x: median of the bound at variance 0.0001"].ours == pytest.approx(0.03)
    assert not any("SSIM" in quantity or "I_nom and" in quantity for quantity in by_quantity)


def test_claims_are_scored_in_pixels() -> None:
    truth = torch.zeros(1, 1, 12, 12)
    example = Batch(truth, torch.tensor([0]), Domain.image(channels=1, height=12, width=12))
    claim = Reconstruction(inputs=truth + 0.5, outcome=Outcome.CONVERGED, iterations=1, targets=None, loss=0.0)
    found = scored(3, claim, example)
    assert (found.image, found.rmse) == (3, pytest.approx(0.5))
    assert found.ssim < 0.01
    # 12 pixels are too few for ST-LPIPS.
    assert found.st_lpips is None
    assert scored(0, replace(claim, inputs=None), example).rmse is None

"""Costs of I²F beside an attack, at small size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradleak.results import InputError
from studies import InfluenceCost
from studies.influence_cost import DATA, NETWORKS, PAIRS, PairCost


def test_the_eleven_pairs_are_those_of_the_paper_and_have_its_sizes() -> None:
    assert len(PAIRS) == 11
    for pair, parameters in (
        ("MLP, MNIST", 784 * 256 + 256 + 2570),
        ("LeNet, MNIST", 17_038),
        ("ResNet-18, CIFAR-10", 11_173_962),
        ("ResNet-34, CIFAR-10", 21_282_122),
    ):
        network, data = pair.split(", ")
        model = NETWORKS[network](*DATA[data])
        assert sum(p.numel() for p in model.parameters()) == parameters
        side, channels = DATA[data]
        with torch.no_grad():
            assert model.eval()(torch.zeros(1, channels, side, side)).shape == (1, 10)


def test_ratios_are_made_of_the_costs(tmp_path: Path) -> None:
    study = InfluenceCost(pairs=("LeNet, MNIST",), repeats=1, attack_iterations=1, cells=str(tmp_path / "cells"))
    result = study.run(say=lambda _: None)
    assert "figure 11" in result.figures["influence_cost"]
    (pair,) = result.details["pairs"]
    assert pair["parameters"] == 17_038
    assert pair["seconds"] > 0
    # A product is at least a second derivative: never cheaper than half a gradient.
    assert pair["product"] > 0.5
    assert 1 <= pair["products"] < 200
    values = {finding.quantity.removeprefix("LeNet, MNIST: "): finding.ours for finding in result.findings}
    assert values["time of an attack over that of λmax, at the paper's counts"] == pytest.approx(
        60 * pair["attack"] / pair["product"]
    )
    assert values["time of an attack over that of λmax by Lanczos"] == pytest.approx(
        3000 * pair["attack"] / pair["largest"]
    )
    again = study.run(say=lambda _: None)
    assert again.details == result.details
    with pytest.raises(InputError, match=r"pairs: expected some of MLP, MNIST; .*, got LeNet, ImageNet"):
        InfluenceCost(pairs=("LeNet, ImageNet",)).run(say=lambda _: None)


def test_without_attacks_the_steps_stand_alone() -> None:
    study = InfluenceCost(pairs=("MLP, MNIST",), repeats=1, attack_iterations=0)
    found: PairCost = study.measured("MLP, MNIST")
    assert (found.largest, found.products, found.attack) == (None, None, None)
    assert found.product > 0

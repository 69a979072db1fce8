"""Initializations compared at tiny size."""

from __future__ import annotations

import math

import pytest
import torch

from gradleak.models import lenet_i2f
from studies import Initialization, InitializationRisk


def _quiet(line: str) -> None:
    del line


@pytest.mark.parametrize(
    ("kind", "std"),
    [
        # Second convolution: 12 filters of 12 channels, kernel 5.
        (Initialization.UNIFORM, 1 / math.sqrt(12)),
        (Initialization.NORMAL, math.sqrt(0.5)),
        (Initialization.KAIMING, math.sqrt(2 / 300)),
        (Initialization.XAVIER, math.sqrt(2 / 600)),
        (Initialization.DEFAULT, 1 / math.sqrt(3 * 300)),
    ],
)
def test_weights_have_the_law_of_their_name(kind: Initialization, std: float) -> None:
    state = torch.get_rng_state()
    first, again = (dict(kind.draw(lenet_i2f(), torch.Generator().manual_seed(1)).named_parameters()) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert float(first["2.weight"].detach().std()) == pytest.approx(std, rel=0.05)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    biases_are_zero = not bool(first["2.bias"].any())
    assert biases_are_zero is (kind in (Initialization.KAIMING, Initialization.XAVIER))


def test_the_same_noise_hurts_differently(tiny_images: str) -> None:
    kinds = (Initialization.UNIFORM, Initialization.XAVIER)
    study = InitializationRisk(images=tiny_images, count=1, draws=2, initializations=kinds, steps=4, iterations=4)
    result = study.run(say=_quiet)
    assert "figure 8" in result.figures["initialization"]
    rows = result.details["rows"]
    assert [(row["kind"], row["draw"]) for row in rows] == [(kind, draw) for kind in kinds for draw in range(2)]
    for row in rows:
        # Expected squared error: variance times the sum of inverse eigenvalues, over d = 108.
        assert row["expected"] == pytest.approx(math.sqrt(1e-4 * row["inverse_sum"] / 108), rel=1e-6)
        assert row["posterior"] < min(row["expected"], 0.3)
        assert 1 / row["eigenvalue_min"] < row["inverse_sum"] <= 108 / row["eigenvalue_min"]
        assert (row["reached"] is None) is (row["predicted"] >= 1 or row["outcome"] == "budget_spent")
    uniform, xavier = rows[0], rows[2]
    assert uniform["expected"] < xavier["expected"]
    assert result.conclusion[0].startswith("expected I²F, riskiest first: uniform")
    assert "| uniform: expected I²F, pixel RMSE, median |" in result.markdown()

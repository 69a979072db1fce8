"""Spectral against isotropic noise at tiny size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.core import Exposure, Release
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from studies import SmallNetwork, SpectralNoiseGain
from studies.private_images import draw_images


def _quiet(line: str) -> None:
    del line


def test_factor_is_predicted_and_reached(tiny_images: str, tmp_path: Path) -> None:
    study = SpectralNoiseGain(images=tiny_images, count=2, errors=(1e-5,), directions=(1, 4), attack_steps=12)
    result = study.run(say=_quiet)
    rows = {(row["image"], row["noise"]): row for row in result.details["rows"]}
    batch = draw_images(tiny_images, count=2, seed=0).to(torch.float64)
    objective = SmallNetwork.SIGMOID_LENET.objective(batch, seed=0).to(torch.float64)
    for image in range(2):
        matrix = GradientJacobian(Exposure(objective, batch.example(image), Release(FedSGD()))).dense().numpy()
        smallest = np.linalg.svd(matrix, compute_uv=False)[-4:]
        one, four, flat = (rows[image, kind] for kind in ("1", "4", "isotropic"))
        assert one["norm"] == pytest.approx(1e-5 * np.sqrt(matrix.shape[1]) * smallest[-1], rel=1e-4)
        assert one["predicted"] == pytest.approx(1e-5, rel=1e-4)
        # A mixture of four directions lies between the largest and the smallest of their errors.
        assert 1e-5 * smallest[-1] / smallest[0] <= four["predicted"] <= 1e-5
        assert flat["predicted"] < four["predicted"]
        for row in (one, four, flat):
            assert row["reached"] == pytest.approx(row["predicted"], rel=1e-3)
        assert one["attack"] == pytest.approx(1e-5, rel=0.05)
        assert 0 < one["boxed"] < 1.05e-5
        assert four["attack"] is four["boxed"] is None
    factors = {finding.quantity: finding for finding in result.findings}
    predicted, attacked = (
        factors[f"one direction, predicted RMSE 1e-05: factor by {who}"]
        for who in ("I²F", "GaussNewton without the box")
    )
    assert attacked.ours == pytest.approx(predicted.ours, rel=0.05)
    assert predicted.interval is not None
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "## Median pixel RMSE over images" in page
    assert "one direction, predicted RMSE 1e-05: the error grows by a factor of" in page


def test_relu_network_follows_for_small_noise(tiny_images: str) -> None:
    study = SpectralNoiseGain(
        images=tiny_images, count=1, errors=(1e-6,), directions=(1,), attack_steps=0, network=SmallNetwork.RELU_CONVNET
    )
    result = study.run(say=_quiet)
    assert [row["attack"] for row in result.details["rows"]] == [None, None]
    assert not any("GaussNewton" in finding.quantity for finding in result.findings)
    off = next(finding for finding in result.findings if "relative difference" in finding.quantity)
    assert off.ours is not None
    assert off.ours < 1e-3

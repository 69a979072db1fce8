"""The same perturbation in different directions, at tiny size."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gradleak.risk import InversionInfluence
from studies import InfluenceDirections
from studies import influence_directions as module
from studies.influence_directions import _Line


def test_directions_of_small_eigenvalues_are_predicted_to_cost_more(
    tmp_path: Path, tiny_images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SAMPLES", 1)
    study = InfluenceDirections(
        cifar=tiny_images, digits=False, count=1, deep_count=0, iterations=20, cells=str(tmp_path / "cells")
    )
    result = study.run(say=lambda _: None)
    (title, spectra), *none = result.details["spectra"].items()
    assert (title, none) == ("lenet, CIFAR-10", [])
    rows = result.details["rows"]
    assert len(rows) == 4
    assert len({row["size"] for row in rows}) == 1
    for image in range(1):
        mine = [row for row in rows if row["image"] == image]
        values = [row["eigenvalue"] for row in mine]
        assert values == sorted(values, reverse=True)
        assert set(values) <= set(spectra[image])
        assert values[0] == spectra[image][-1]
        for row in mine:
            assert row["predicted"] == pytest.approx(row["size"] ** 2 / row["eigenvalue"] / 108)
            assert row["reached"]["dgl"] > 0
    # The size is such that the smallest direction of the first image is off by the error that was asked for.
    assert rows[3]["predicted"] == pytest.approx(0.3**2)
    notes = {finding.quantity: finding for finding in result.findings}
    assert notes["lenet, CIFAR-10: μ_L from 1 points near each image, median"].paper == "0.5014 (H.1)"
    for mu_release, mu_jacobian, norm in result.details["constants"]["CIFAR-10"]:
        assert mu_release >= norm > 0
        assert mu_jacobian > 0
    page = result.write(tmp_path / "out").read_text(encoding="utf-8")
    assert "![influence-directions-lenet-cifar-10]" in page
    grid = (tmp_path / "out" / "influence-directions-lenet-cifar-10.svg").read_text(encoding="utf-8")
    # The original and four claims, within the file.
    assert grid.count('href="data:image/png;base64') == 5
    assert "xlink" not in grid
    assert study.run(say=lambda _: None).details == result.details


def test_the_prediction_is_influence_along_that_direction(tiny_images: str) -> None:
    study = InfluenceDirections(cifar=tiny_images, digits=False, count=1, deep_count=0, iterations=1)
    (setting,) = study._settings()
    ((example, objective),) = study._images(setting)
    line = _Line(study=study, setting=setting, objective=objective, example=example, image=0)
    operator = line.operator
    spectrum = operator.spectrum
    for place in (0, -1):
        value = float(spectrum.values[place])
        moved = operator.matmat(spectrum.vectors[:, [place]].contiguous())[:, 0]
        unit = moved / moved.norm()
        influence = InversionInfluence()(operator.exposure, delta=0.5 * unit, operator=operator).value
        assert influence == pytest.approx(0.5 / math.sqrt(value), rel=1e-6)
    values = np.array(line.spectrum())
    assert np.all(np.diff(values) >= 0)

"""Photographs read layer by layer, at small size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradleak.results import InputError
from studies import PeeledImages, PeeledNetwork


def _file(path: Path, side: int = 12) -> str:
    levels = np.random.default_rng(0).integers(0, 256, (4, side, side), dtype=np.uint8)
    np.savez(path, x=levels, y=np.arange(4))
    return str(path)


def test_images_are_counted_and_kept(tmp_path: Path) -> None:
    study = PeeledImages(images=_file(tmp_path / "some.npz"), count=2, cells=str(tmp_path / "cells"))
    result = study.run(say=lambda _: None)
    values = {finding.quantity.partition(": ")[2]: finding.ours for finding in result.findings}
    assert values["at 100 dB or the exact image"] == values["converged"] == 2
    assert values["most plain gradients"] == 1
    rows = result.details["rows"]
    assert all(row["exact"] and row["psnr"] > 200 for row in rows)
    assert rows[0]["unknowns"]["0.weight"] == 144
    assert study.run(say=lambda _: None).details == result.details
    said = PeeledImages(images=study.images, count=2, cells=study.cells, compute=False).run(say=lambda _: None)
    assert said.details == result.details


def test_a_float32_update_is_read_too(tmp_path: Path) -> None:
    result = PeeledImages(images=_file(tmp_path / "some.npz"), count=1, single=True).run(say=lambda _: None)
    (row,) = result.details["rows"]
    assert row["exact"]
    assert 80 < row["psnr"] < 200


def test_a_network_with_skip_connections_says_where_it_ends(tmp_path: Path) -> None:
    study = PeeledImages(images=_file(tmp_path / "some.npz", side=8), count=1, network=PeeledNetwork.RESNET8)
    (row,) = study.run(say=lambda _: None).details["rows"]
    assert row["unknowns"]
    assert row["outcome"] in ("converged", "not_identifiable")


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(InputError, match="network: expected one of lenet_i2f"):
        PeeledImages(network="vgg")  # type: ignore[arg-type]

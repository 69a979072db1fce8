"""The FedAvg study at small size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.results import InputError
from studies import FedAvgQuality

SMALL = {"batches": 2, "batch_size": 3, "pool": 40, "learning_rates": (0.05,), "iterations": 6, "resamples": 50}


@pytest.mark.slow
def test_both_ways_are_run_and_their_costs_counted_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.fed_avg_quality.TIMED_REPEATS", 1)
    said: list[str] = []
    threads = torch.get_num_threads()
    result = FedAvgQuality(steps=(1, 3), **SMALL).run(say=said.append)
    assert torch.get_num_threads() == threads
    assert len(said) == 2 + 5
    rows = {(row["steps"], row["way"]): row for row in result.details["rows"]}
    assert rows[1, "unrolled"]["psnr"] == pytest.approx(rows[1, "average gradient"]["psnr"], abs=0.2)
    assert rows[3, "unrolled"]["counted"] == 3 * rows[3, "average gradient"]["counted"]
    # The value of the last iterate comes on top, three gradients an epoch of it.
    cheap = rows[3, "unrolled at the cost of the average gradient"]["counted"]
    assert cheap - 9 <= rows[3, "average gradient"]["counted"] - 3
    assert rows[1, "unrolled"]["cosine"] == pytest.approx(1.0, abs=1e-6)
    assert all(len(row["per_example"]["psnr"]) == 6 for row in rows.values())
    saved = result.findings[-1]
    assert "T = 3: processor time" in saved.quantity
    assert saved.ours > 1.3
    assert any("plain gradients counted" in finding.note for finding in result.findings)
    assert list(result.figures) == ["fed_avg_quality"]
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "similar for both (figure 7)" in page
    assert json.loads((tmp_path / "fed_avg_quality.json").read_text(encoding="utf-8"))["settings"]["batches"] == 2


def test_batches_hold_no_label_twice_and_share_no_image(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=rng.integers(0, 10, 60), good=np.arange(60) < 50)
    study = FedAvgQuality(images=str(tmp_path / "images.npz"), only="good", pool=50, batches=3)
    batches = study._batches()
    assert [batch.size for batch in batches] == [8, 8, 8]
    assert all(len(set(batch.targets.tolist())) == 8 for batch in batches)
    rows = torch.cat([batch.inputs.flatten(1) for batch in batches])
    assert len(torch.unique(rows, dim=0)) == 24
    with pytest.raises(InputError, match="raise pool, or lower the size"):
        FedAvgQuality(images=str(tmp_path / "images.npz"), pool=20, batches=3)._batches()

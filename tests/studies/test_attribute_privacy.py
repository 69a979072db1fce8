"""The study of per-attribute privacy at tiny size."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from studies import AttributePrivacy

pytestmark = pytest.mark.skipif(find_spec("xai") is None, reason="xai is not installed")


def test_canaries_and_random_records_stand_beside_theory(tmp_path: Path) -> None:
    said: list[str] = []
    study = AttributePrivacy(
        clip_norms=(1.5, 2.0), noise_stds=(0.1, 0.13), more_for=(1.5,), more_trials=2000, trials=500, epochs=(0,),
        private_rows=32, iterations=5, starts=2, random_records=2,
    )  # fmt: skip
    result = study.run(say=said.append)
    rows = result.details["rows"]
    settings = {(row["clip_norm"], row["noise_std"], row["trials"]) for row in rows}
    assert settings == {(1.5, 0.1, 500), (1.5, 0.1, 2000), (2.0, 0.1, 500), (2.0, 0.13, 500)}
    by_name = {(row["name"], row["clip_norm"], row["noise_std"], row["trials"]): row for row in rows}
    # The same record at the same parameters, with other noise.
    one, other = (by_name["canary, epoch 0", 2.0, std, 500]["facts"]["distances"] for std in (0.1, 0.13))
    assert one == other
    theory = {score["name"]: score["value"] for score in by_name["canary, epoch 0", 2.0, 0.1, 500]["theory"]}
    assert theory["classical_epsilon_share"] == pytest.approx(96.90 / 14, abs=1e-3)
    assert theory["gaussian_epsilon"] == pytest.approx(284.4, abs=0.05)
    # At little noise the likelihood ratio tells all apart where distances hardly do.
    for row in rows:
        assert row["auroc"]["likelihood_ratio"] > max(row["auroc"]["distance"], 0.99)
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "## Figure 8: Δ = 2, noise 0.1, 500 trials a hypothesis" in page
    assert "1.33" in page
    assert "is no bound" in page
    assert (tmp_path / "attribute_privacy_figure_9_epoch_0.svg").read_text(encoding="utf-8").startswith("<svg")
    assert any("valid canary" in row["name"] for row in rows)
    assert said

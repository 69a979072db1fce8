"""The validation of I²F at small size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies import InfluenceValidation


def test_the_perfect_attacker_follows_the_prediction(tmp_path: Path) -> None:
    said: list[str] = []
    result = InfluenceValidation(digits=1, activations=("sigmoid",), variances=(1e-8, 1e-7, 1e-6)).run(say=said.append)
    by_quantity = {finding.quantity: finding for finding in result.findings}
    assert by_quantity["sigmoid: log-log slope, reached on predicted"].ours == pytest.approx(1, abs=0.02)
    assert by_quantity["sigmoid: reached error / lower bound, median"].ours > 10
    assert "predicts the perfect attacker" in result.conclusion[0]
    assert said
    assert "figure 1" in result.figures["influence_validation"]
    page = result.write(tmp_path)
    assert "near 1 (figure 1)" in page.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "influence_validation.json").read_text(encoding="utf-8"))["settings"]["digits"] == 1

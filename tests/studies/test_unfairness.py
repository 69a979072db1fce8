"""Unfairness at tiny size."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from gradleak.core import Batch, Domain
from studies import Unfairness
from studies.unfairness import _figures


def test_digits_differ_under_the_same_noise(tmp_path: Path) -> None:
    said: list[str] = []
    study = Unfairness(
        classes=(3, 5), per_class=1, attacked_per_class=0, variances=(1e-6, 1e-5), training_steps=(0,), worst=1
    )
    result = study.run(say=said.append)
    rows = result.details["rows"]
    assert [row["label"] for row in rows] == [3, 3, 5, 5]
    small, large = rows[:2]
    assert large["expected"] == pytest.approx(math.sqrt(10) * small["expected"], rel=1e-9)
    for row in rows:
        # One draw over 784 directions lies near its mean, and the perfect attacker near the prediction.
        assert 0.5 < row["predicted"] / row["expected"] < 2
        assert row["reached"] == pytest.approx(row["predicted"], rel=0.1)
        assert 0.5 * row["expected"] < row["posterior"] < row["expected"]
    assert said == ["0 steps of training: digits of class 3", "0 steps of training: digits of class 5"]
    worst = next(table for table in result.tables if table.title == "The least protected digits")
    least = min((row for row in rows if row["variance"] == 1e-6), key=lambda row: row["expected"])
    assert worst.rows[0][3] == str(least["label"])
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "## Pixel RMSE by class: untrained, variance 1e-06" in page
    assert "large variances among samples (figure 7)" in page
    assert list(result.figures) == ["unfairness"]


def test_pictures_begin_with_the_least_protected_digit() -> None:
    """Of two claims, the nearer one stands first, each below its digit."""
    digits = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    private = Batch(digits, torch.tensor([3, 5]), Domain.image(channels=1, height=28, width=28))
    rows = [
        {"digit": place, "label": label, "steps": 300, "variance": 1e-3, "expected": 1.0, "attack": error}
        for place, label, error in ((0, 3, 0.5), (1, 5, 0.04))
    ]
    claims = [(row, digits[row["digit"], None]) for row in rows]  # type: ignore[call-overload]
    figures = _figures([(300, 1e-3, rows)], claims, private)
    assert list(figures) == ["unfairness", "unfairness_trained_0.001"]
    picture = figures["unfairness_trained_0.001"]
    assert picture.count("<image") == 4
    said = re.findall(r">(3|5|RMSE [.0-9]+)</text>", picture)
    assert said == ["5", "3", "RMSE 0.04", "RMSE 0.50"]

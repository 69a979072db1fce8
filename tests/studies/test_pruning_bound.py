"""Pruning against the lower bound at tiny size."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import GaussNewton
from gradleak.results import UnsupportedError
from studies import PruningBound, SmallNetwork, StudyResult
from studies.private_images import draw_images


def _quiet(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def result(tiny_images: str) -> StudyResult:
    return PruningBound(images=tiny_images, count=1, ratios=(0.3, 0.5, 0.99), steps=10, iterations=5).run(say=_quiet)


@pytest.mark.slow
def test_rows_hold_bound_prediction_and_attacks(result: StudyResult, tiny_images: str) -> None:
    rows = result.details["rows"]
    batch = draw_images(tiny_images, count=1, seed=0).to(torch.float64)
    objective = SmallNetwork.SIGMOID_LENET.objective(batch, seed=0).to(torch.float64)
    gradient = objective.flatten(objective.gradient(objective.params, batch))
    smallest = gradient.abs().sort().values
    for row in rows:
        cut = smallest[: int(row["ratio"] * len(smallest))]
        assert row["relative_norm"] == pytest.approx(float(cut.norm() / gradient.norm()), rel=1e-6)
        assert row["bound"] <= row["predicted"]
    light, _, heavy = rows
    assert light["reached"] == pytest.approx(light["predicted"], rel=0.05)
    assert light["bound"] <= light["gauss_newton_static"] <= 1.1 * light["predicted"]
    # The adversary who knows finds the image; too few entries leave a null space.
    assert light["gauss_newton_adaptive"] < 1e-6
    assert light["null_dimension"] == 0
    assert heavy["null_dimension"] > 0
    assert heavy["gauss_newton_adaptive"] > 0.01


@pytest.mark.slow
def test_the_page_says_what_holds(result: StudyResult) -> None:
    assert "figure 16" in result.figures["pruning_bound"]
    page = result.markdown()
    assert "gauss_newton, static: Spearman of lower bound and RMSE" in page
    assert "a good estimator of RMSE (figure 16)" in page
    assert "up to a ratio of 0.5; what is left has full rank" in result.conclusion[-1]


def test_a_refusal_keeps_its_reason(tiny_images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("too many unknowns")

    monkeypatch.setattr(GaussNewton, "_recover", refuse)
    (row,) = PruningBound(images=tiny_images, count=1, ratios=(0.5,), iterations=2).run(say=_quiet).details["rows"]
    assert row["gauss_newton_static"] is None
    assert row["notes"]["gauss_newton_adaptive"] == "too many unknowns"

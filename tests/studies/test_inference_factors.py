"""The studies of what an inference depends on, at small size: values beside the paper, figures, cells by setting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gradleak.data import Encoding
from gradleak.defenses import Prune
from gradleak.games import PerturbedGame, UserGame
from studies import (
    InferenceAdversaries,
    InferenceData,
    InferenceDefenses,
    InferenceKnowledge,
    InferenceModelSize,
    InferenceShield,
    InferenceTradeoff,
    RiskGame,
)
from studies.game_cells import Cell
from studies.game_studies import Play
from studies.inference_data import cramers_v, pearson
from studies.inference_factors import ADVERSARIES, _change, _order, _verdict
from studies.privacy_utility import Family
from studies.study import StudyResult
from studies.summaries import student

SMALL = {"trials": 200, "shadow_batches": 200, "user_trials": 40, "rounds": 2, "private_rows": 600}


def silent(line: str) -> None:
    del line


def values(found: StudyResult) -> dict[str, float]:
    return {finding.quantity: finding.ours for finding in found.findings if finding.ours is not None}


def cell(areas: list[float], **changes: object) -> Cell:
    """A cell of made-up scores."""
    mean = sum(areas) / len(areas)
    shared = {"scores": {"auroc": (mean, min(areas), max(areas))}, "per_seed": {"auroc": areas}}
    return Cell(single={}, utility=None, blind=0.5, seconds=0.0, outcome="converged", **(shared | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def census() -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")


def test_models_of_two_widths_are_two_games() -> None:
    study = InferenceModelSize(**SMALL)
    narrow, wide = (study.game(Play(kind=RiskGame.PROPERTY, width=width)) for width in (0.25, 2.0))
    assert narrow.describe() != wide.describe()
    assert narrow.describe()["model"]["hidden"] == [8, 4]
    # 63 inputs: 64·64 + 65·32 + 33·2.
    assert study._parameters(Play(kind=RiskGame.PROPERTY, width=2.0)) == 64 * 64 + 65 * 32 + 33 * 2
    shapes = [tuple(weight.shape) for weight in narrow.model(torch.Generator().manual_seed(0)).parameters()]
    assert shapes == [(8, 63), (8,), (4, 8), (4,), (2, 4), (2,)]


def test_the_change_with_size_is_taken_seed_by_seed() -> None:
    at = {(RiskGame.USER, 0.5): cell([0.70, 0.90]), (RiskGame.USER, 4.0): cell([0.72, 0.92])}
    found = _change(RiskGame.USER, at)
    assert found is not None
    # Both seeds gain the same, so that the seeds' own spread of 0.2 does not enter.
    assert found.ours == pytest.approx(0.02)
    assert found.interval == pytest.approx((0.02, 0.02))
    assert "AUROC grows," in _verdict(RiskGame.USER, found)
    uneven = _change(RiskGame.USER, at | {(RiskGame.USER, 4.0): cell([0.60, 0.95])})
    assert uneven is not None
    assert uneven.interval == pytest.approx(student([-0.10, 0.05]))
    assert "no more than seeds differ" in _verdict(RiskGame.USER, uneven)
    assert _change(RiskGame.USER, {(RiskGame.USER, 1.0): cell([0.7, 0.9])}) is None


def test_knowledge_is_a_grid_of_rows_and_rounds() -> None:
    found = InferenceKnowledge(public_rows=[40, 400], seeds=1, **SMALL).run(say=silent)
    grid = values(found)
    assert set(grid) == {
        f"property inference, {rows} public rows, {n} rounds: AUROC" for rows in (40, 400) for n in (1, 2)
    }
    assert grid["property inference, 400 public rows, 2 rounds: AUROC"] > 0.95
    few, many = (grid[f"property inference, {rows} public rows, 1 rounds: AUROC"] for rows in (40, 400))
    assert few < many
    assert found.figures["inference_knowledge"].count("<text") > 8
    fewest = cell([0.9, 0.9], first_areas={"5": [0.80, 0.90], "10": [0.85, 0.88]})
    assert _order(fewest, 100) == [
        "With 100 public rows ten rounds beat five on 1 of 2 seeds (in the paper they do not)."
    ]


def test_five_adversaries_have_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [type(adversary).__name__ for adversary in ADVERSARIES.values()] == [
        "GaussianNaiveBayes", "LinearDiscriminant", "QuadraticDiscriminant", "MultilayerPerceptron", "RandomForest",
    ]  # fmt: skip
    for name in ("perceptron, 100 units", "quadratic discriminant", "naive Bayes"):
        monkeypatch.delitem(ADVERSARIES, name)  # type: ignore[arg-type]
    study = InferenceAdversaries(forms=["one-hot"], seeds=1, **(SMALL | {"rounds": 1, "private_rows": 200}))
    found = study.run(say=silent)
    areas = values(found)
    assert areas["attribute inference, k = 1, one-hot, random forest, 50 trees: AUROC"] > 0.9
    curve = found.details["random forest, 50 trees, one-hot"]["static"]["curve"]
    assert list(curve) == ["0.01", "0.001", "0.003", "0.03", "0.1", "0.3"]
    assert curve["0.1"][0] <= curve["0.3"][0] <= 1.0


def test_the_advantage_stands_beside_utility() -> None:
    found = InferenceTradeoff(families=[Family.PRUNE], values=[0.9], seeds=1, **SMALL).run(say=silent)
    told = values(found)
    assert told["pruning, ratio 0.9, adaptive: advantage"] > 0.5
    assert 0.5 < told["pruning, ratio 0.9: AUROC of the model"] < 1.0
    assert "no defense, static: advantage" in told
    by_quantity = {finding.quantity: finding.paper for finding in found.findings}
    assert by_quantity["pruning, ratio 0.9, adaptive: advantage"] == "no meaningful privacy"


def test_every_game_is_played_through_every_defense() -> None:
    study = InferenceDefenses(games=list(RiskGame)[:4], seeds=1, **SMALL)
    for kind in (RiskGame.ATTRIBUTE, RiskGame.DISTRIBUTION):
        pruned = study.game(study._one(kind, InferenceShield.PRUNE))
        assert isinstance(pruned.release.defenses[0], Prune)  # type: ignore[union-attr]
        assert pruned.kind == kind.value
        with_layer = study.game(study._one(kind, InferenceShield.BOTTLENECK))
        assert with_layer.mode == "train"
    with_layer.rehearse()
    users = study.game(study._one(RiskGame.USER, InferenceShield.ADVERSARIAL))
    assert isinstance(users, UserGame)
    assert isinstance(users.release, PerturbedGame)
    assert (users.release.target, users.release.gamma, users.release.alpha) == (0, 5e-3, 2e-3)
    one = InferenceDefenses(games=["attribute"], shields=["sign"], seeds=1, **SMALL)
    found = one.run(say=silent)
    told = values(found)
    assert told["attribute: sign, adaptive: advantage"] > 0.5
    assert [finding.paper for finding in found.findings if finding.quantity.endswith("advantage")] == [
        "near 0", "little below none",
    ]  # fmt: skip
    assert "advantage" in found.figures["inference_defenses"]


def test_the_correlation_of_table_1_and_the_census_in_two_forms() -> None:
    study = InferenceData(forms=["one-hot", "standardized codes"], games=["property"], seeds=1, **SMALL)
    found = study.run(say=silent)
    told = {finding.quantity: finding for finding in found.findings}
    adult = told["Adult, 32,561 rows: correlation of target and sensitive variable"]
    # Of the published file: 9,592 of 10,771 women and 15,128 of 21,790 men earn up to 50,000.
    counts = np.array([[9592, 1179], [15128, 6662]])
    assert counts.sum() == 32561
    (phi,) = [math.sqrt(stats.chi2_contingency(counts, correction=False)[0] / counts.sum())]
    assert adult.ours == pytest.approx(phi, abs=1e-6)
    assert adult.paper == "-0.1985"
    assert told["Health: correlation of target and sensitive variable"].note == "no file given"
    areas = [told[f"census, {form}, property inference: AUROC"].ours for form in ("one-hot", "standardized codes")]
    assert min(area or 0.0 for area in areas) > 0.9
    assert areas[0] != areas[1]
    coded = study.game(Play(kind=RiskGame.PROPERTY, encoding=Encoding.CODES, standardized=True))
    assert coded.population.inputs.shape[1] == 11
    assert coded.population.inputs.mean(dim=0).abs().max() < 1e-4


def test_correlations_are_those_of_scipy() -> None:
    random = np.random.default_rng(0)
    ours = random.integers(0, 3, 400)
    theirs = (ours + random.integers(0, 2, 400)) % 4
    value, interval = pearson(ours.tolist(), theirs.tolist())
    judged = stats.pearsonr(ours, theirs)
    assert value == pytest.approx(judged.statistic)
    assert interval == pytest.approx(tuple(judged.confidence_interval(0.95)))
    table = stats.contingency.crosstab(ours, theirs).count
    assert cramers_v(ours.tolist(), theirs.tolist()) == pytest.approx(
        stats.contingency.association(table, method="cramer")
    )
    assert pearson([0, 1, 0, 1], [0, 1, 0, 1]) == (pytest.approx(1.0), (pytest.approx(1.0), pytest.approx(1.0)))

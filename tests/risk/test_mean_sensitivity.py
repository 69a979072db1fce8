from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from tests.oracles import Oracle
from tests.risk.cases import Scale, color, signed

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from gradleak.risk import GradientNorm, Sensitivity, mean_sensitivity, sensitivity_profile


def _scaled(inputs: list[list[float]], weight: list[float]) -> Exposure:
    """For one example A is diagonal with 4 w x/d."""
    x = torch.tensor(inputs, dtype=torch.float64)
    objective = Objective.from_module(Scale(torch.tensor(weight)), loss="mse")
    return Exposure(objective, Batch(x, torch.zeros_like(x)), Release(FedSGD()))


def test_mean_and_interval_of_known_norms_are_those_of_scipy() -> None:
    inputs, weight = [[1.0, 2.0], [3.0, -1.0], [0.5, 0.1]], [0.7, -2.0]
    norms = 2 * np.linalg.norm(np.array(inputs) * np.array(weight), axis=1)
    score = mean_sensitivity(_scaled(inputs, weight))["weight"]
    assert score.value == pytest.approx(norms.mean())
    low, high = scipy.stats.t.interval(0.95, 2, loc=norms.mean(), scale=scipy.stats.sem(norms))
    assert score.interval == pytest.approx((max(0.0, low), high))
    assert score.n == 3
    assert score.details["std"] == pytest.approx(norms.std(ddof=1))
    assert score.details["entries"] == 2
    assert "only 3 examples" in score.note


@pytest.mark.parametrize("norm", ["frobenius", "one", "inf"])
def test_layers_of_a_network_against_one_by_one(mlp: Oracle, norm: str) -> None:
    measure = Sensitivity(norm=norm, by="layer")
    batch = mlp.exposure.batch
    one_by_one = [
        measure(replace(mlp.exposure, batch=Batch(batch.inputs[i : i + 1], batch.targets[i : i + 1]))).details["values"]
        for i in range(batch.size)
    ]
    scores = mean_sensitivity(mlp.exposure, measure)
    assert list(scores) == list(one_by_one[0])
    for layer, score in scores.items():
        assert score.value == pytest.approx(np.mean([values[layer] for values in one_by_one]))
        assert score.details["largest"] == pytest.approx(max(values[layer] for values in one_by_one))


def test_an_example_without_derivative_counts_with_zero() -> None:
    score = mean_sensitivity(_scaled([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0]))["weight"]
    assert score.value == pytest.approx(1.0)
    assert score.details["zero_examples"] == 1


def test_one_example_has_no_interval() -> None:
    score = mean_sensitivity(_scaled([[1.0, 0.0]], [1.0, 1.0]))["weight"]
    assert score.value == pytest.approx(2.0)
    assert score.interval is None


def test_says_in_a_word_what_has_no_number() -> None:
    exposure = color(torch.Generator().manual_seed(0))
    assert {score.outcome for score in mean_sensitivity(signed(exposure)).values()} == {Outcome.NOT_INFORMATIVE}


def test_refuses_another_measure() -> None:
    with pytest.raises(InputError, match="expected a Sensitivity, got GradientNorm"):
        mean_sensitivity(_scaled([[1.0, 0.0]], [1.0, 1.0]), GradientNorm())  # type: ignore[arg-type]


def test_the_profile_compares_layers_on_the_same_examples(mlp: Oracle) -> None:
    measure = Sensitivity(by="layer")
    profile = sensitivity_profile(mlp.exposure, measure)
    assert profile.scores == mean_sensitivity(mlp.exposure, measure)
    first, second = profile.ranked[:2]
    values = {
        layer: np.array(
            [
                measure(
                    replace(
                        mlp.exposure,
                        batch=Batch(mlp.exposure.batch.inputs[i : i + 1], mlp.exposure.batch.targets[i : i + 1]),
                    )
                ).details["values"][layer]
                for i in range(mlp.exposure.batch.size)
            ]
        )
        for layer in (first, second)
    }
    score = profile.difference(first, second)
    assert score.value == pytest.approx((values[first] - values[second]).mean())
    truth = scipy.stats.ttest_rel(values[first], values[second]).confidence_interval()
    assert score.interval is not None
    assert score.interval[0] <= truth.low
    assert score.interval[1] >= truth.high
    assert score.n == mlp.exposure.batch.size

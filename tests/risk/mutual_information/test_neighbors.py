from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

from gradleak.results import InputError, Outcome
from gradleak.risk import NeighborInformation
from gradleak.risk.mutual_information import components_of
from gradleak.risk.neighbors import GaussianPairs


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9, 0.99])
def test_inputs_against_scikit_learn_and_the_closed_form(correlation: float) -> None:
    rows = _random(600, 1)
    inputs = correlation * rows + math.sqrt(1 - correlation**2) * _random(600, 1, seed=1)
    score = NeighborInformation()({"layer": rows}, inputs)["layer"]
    theirs = mutual_info_regression(rows.numpy(), inputs[:, 0].numpy(), random_state=0)[0]
    assert max(0.0, score.value or 0.0) == pytest.approx(theirs, abs=1e-6)
    assert score.interval is not None
    low, high = score.interval
    assert low - 0.05 < -0.5 * math.log(1 - correlation**2) < high + 0.05


def test_labels_against_scikit_learn() -> None:
    labels = torch.arange(400) % 4
    rows = _random(400, 1) + labels[:, None]
    score = NeighborInformation()({"layer": rows}, labels)["layer"]
    theirs = mutual_info_classif(rows.numpy(), labels.numpy(), discrete_features=False, random_state=0)[0]
    assert score.value == pytest.approx(theirs, abs=1e-6)
    assert score.details["target_entropy"] == pytest.approx(math.log(4))


def test_two_components_with_a_closed_form() -> None:
    rows = _random(1500, 2)
    inputs = 0.8 * rows + 0.6 * _random(1500, 2, seed=1)
    score = NeighborInformation(components=2)({"layer": rows}, inputs)["layer"]
    assert score.value == pytest.approx(-math.log(1 - 0.64), abs=0.12)


def test_a_shuffled_label_gives_0_within_the_interval() -> None:
    inside = 0
    for seed in range(20):
        score = NeighborInformation()({"a": _random(200, 5, seed=seed)}, torch.arange(200) % 2)["a"]
        assert score.interval is not None
        inside += score.interval[0] <= 0.0 <= score.interval[1]
    assert inside >= 17  # 95 % of 20 are 19


def test_a_copy_of_the_input_is_saturated_and_never_above_the_ceiling() -> None:
    rows = _random(100, 2)
    score = NeighborInformation(neighbors=3)({"a": rows}, rows)["a"]
    assert score.outcome is Outcome.SATURATED
    assert score.value is not None
    assert score.value <= score.details["ceiling"] < math.log(100)
    assert score.interval is None


def _correlated(count: int, correlations: list[float], seed: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Gaussian rows and inputs, and their mutual information in nats."""
    rho = torch.tensor(correlations, dtype=torch.float64)
    rows = _random(count, len(rho), seed=2 * seed)
    inputs = rho * rows + (1 - rho.square()).sqrt() * _random(count, len(rho), seed=2 * seed + 1)
    return rows, inputs, float(-0.5 * (1 - rho.square()).log().sum())


def test_a_deterministic_map_far_below_the_ceiling_is_saturated() -> None:
    """Its information is infinite: before the calibration it gave a number that was called converged."""
    inputs = _random(1000, 3)
    for rows in (inputs**3 + inputs, torch.tanh(inputs @ _random(3, 3, seed=9)), inputs.square()):
        score = NeighborInformation()({"a": rows}, inputs)["a"]
        assert score.value is not None
        assert score.value < score.details["ceiling"] - 2.0
        assert score.outcome is Outcome.SATURATED
        assert score.interval is None
        assert score.details["calibrated"] > score.value + 0.5
        assert score.note.startswith("a lower estimate")


@pytest.mark.parametrize("count", [200, 1000])
def test_strong_dependence_is_saturated_and_calibrated(count: int) -> None:
    """3.55 nats in three pairs gave 2.3 (200 rows) and 2.9 (1,000), with intervals that excluded the truth."""
    rows, inputs, truth = _correlated(count, [0.952] * 3, seed=0)
    score = NeighborInformation()({"a": rows}, inputs)["a"]
    assert score.value is not None
    assert score.value < truth - 0.5
    assert score.outcome is Outcome.SATURATED
    assert score.details["calibrated"] == pytest.approx(truth, abs=0.15)


@pytest.mark.parametrize("correlations", [[0.8] * 3, [0.6, 0.4, 0.0]], ids=str)
def test_intervals_of_gaussian_pairs_hold_the_truth(correlations: list[float]) -> None:
    """With three components the plain interval misses it nearly always."""
    inside = 0
    for seed in range(12):
        rows, inputs, truth = _correlated(300, correlations, seed)
        score = NeighborInformation()({"a": rows}, inputs)["a"]
        inside += score.interval is None or score.interval[0] <= truth <= score.interval[1]
    assert inside >= 10  # 95 % of 12 are 11


def test_gaussian_pairs_give_back_what_they_were_made_with() -> None:
    rows, inputs, truth = _correlated(500, [0.9, 0.5], seed=1)
    pairs = GaussianPairs.like(components_of(rows, 2).numpy(), components_of(inputs, 2).numpy(), 3)
    shares = np.array([0.83, 0.144]) / (0.83 + 0.144)
    np.testing.assert_allclose(pairs.shares, shares, atol=0.08)
    assert pairs.truth_of(pairs.value_at(truth), 20.0) == pytest.approx(truth, rel=0.02)
    assert pairs.truth_of(0.02, 20.0) == 0.02
    assert pairs.truth_of(9.0, 20.0) == math.inf


def test_a_label_that_occurs_once_is_left_out() -> None:
    labels = torch.tensor([0, 1] * 20 + [2])
    score = NeighborInformation()({"a": _random(41, 1) + 50 * labels[:, None]}, labels)["a"]
    assert score.value == pytest.approx(math.log(2), abs=0.05)


def test_few_rows_and_constant_targets_have_no_number() -> None:
    few = NeighborInformation()({"a": _random(10, 2)}, torch.arange(10) % 2)["a"]
    constant = NeighborInformation()({"a": _random(50, 2)}, torch.zeros(50, dtype=torch.long))["a"]
    same = NeighborInformation()({"a": torch.ones(50, 2)}, torch.arange(50) % 2)["a"]
    assert [few.outcome, constant.outcome, same.outcome] == [
        Outcome.NOT_RESOLVABLE,
        Outcome.NOT_RESOLVABLE,
        Outcome.NO_SIGNAL,
    ]


def test_refuses_targets_that_are_neither() -> None:
    with pytest.raises(InputError, match="give inputs as real numbers"):
        NeighborInformation()({"a": _random(50, 2)}, torch.zeros(50, 2, dtype=torch.long))
    with pytest.raises(InputError, match="expected finite real inputs"):
        NeighborInformation()({"a": _random(50, 2)}, torch.full((50,), math.nan))
    with pytest.raises(InputError, match="neighbors"):
        NeighborInformation(neighbors=0)

from __future__ import annotations

import math

import pytest
import torch
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

from gradleak.results import InputError, Outcome
from gradleak.risk import NeighborInformation


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

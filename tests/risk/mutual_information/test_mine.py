from __future__ import annotations

import math

import pytest
import torch

from gradleak.results import InputError, Outcome
from gradleak.risk import MINE
from gradleak.risk.mutual_information import Critic, _evaluated

SMALL = MINE(hidden=32, steps=120, batch_size=32, learning_rate=5e-3)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_gaussians_have_the_closed_form_or_a_little_less(correlation: float) -> None:
    rows = _random(400, 1)
    inputs = correlation * rows + math.sqrt(1 - correlation**2) * _random(400, 1, seed=1)
    score = SMALL({"layer": rows}, inputs)["layer"]
    truth = -0.5 * math.log(1 - correlation**2)
    assert score.interval is not None
    assert 0.5 * truth < score.interval[1]
    assert score.interval[0] < truth
    assert score.value == pytest.approx(truth, rel=0.35)
    assert score.details["held_out"] == [200, 200]


def test_near_what_batches_teach_it_is_saturated() -> None:
    """Four nats of three Gaussian components: less is found, and no interval says that there is no more."""
    rows, share = _random(400, 3), -math.expm1(-2 * 4 / 3)
    inputs = math.sqrt(share) * rows + math.sqrt(1 - share) * _random(400, 3, seed=1)
    score = SMALL({"layer": rows}, inputs)["layer"]
    assert score.details["training_ceiling"] == pytest.approx(math.log(32))
    assert score.value is not None
    assert math.log(32) - 1 < score.value < 4
    assert (score.outcome, score.interval) == (Outcome.SATURATED, None)
    assert "at most 3.47 nats" in score.note


def test_labels_give_at_most_their_entropy() -> None:
    labels = torch.arange(200) % 2
    score = SMALL({"layer": _random(200, 6) + 6 * labels[:, None]}, labels)["layer"]
    assert score.value is not None
    assert 0.55 < score.value <= math.log(2) + 1e-3


def test_nothing_to_find_gives_0_within_the_interval_or_less() -> None:
    score = SMALL({"layer": _random(200, 6)}, torch.arange(200) % 2)["layer"]
    assert score.interval is not None
    assert score.interval[0] <= 0.0
    assert abs(score.value or 0.0) < 0.05


def test_never_above_the_log_of_the_evaluated_rows() -> None:
    """Whatever the critic is; a copy of the input, of which the information is infinite, ends just below."""
    rows = _random(50, 2).float()
    for scale in (1.0, 30.0, 1e3):
        critic = Critic.drawn(2, 2, 8, torch.Generator().manual_seed(0))
        critic.weights[-1].data += scale
        assert _evaluated(critic, rows, rows)[0] <= math.log(50) + 1e-9
    eye = torch.eye(50)
    critic = Critic(weights=[eye, eye, -torch.ones(50), 200 * eye, torch.zeros(50), torch.ones(50)])
    assert _evaluated(critic, eye, eye)[0] == pytest.approx(math.log(50), abs=1e-6)


def test_the_value_and_its_error_are_those_of_the_formula() -> None:
    first, second = _random(150, 2).float(), _random(150, 1, seed=1).float()
    critic = Critic.drawn(2, 1, 8, torch.Generator().manual_seed(0))
    critic.weights[-1].data += 1.0
    with torch.no_grad():
        scores = torch.stack([critic.pairs(first[i : i + 1], second)[0] for i in range(150)]).double()
    value, error = _evaluated(critic, first, second)
    assert value == pytest.approx(float(scores.diagonal().mean() - scores.exp().mean().log()))
    # The jackknife over rows, which leave with their line and their column.
    kept = [torch.arange(150) != i for i in range(150)]
    without = torch.stack([scores[k][:, k].diagonal().mean() - scores[k][:, k].exp().mean().log() for k in kept])
    assert error == pytest.approx(float(without.std()) * 149 / math.sqrt(150), rel=0.1)


def test_gradients_that_are_zero_but_for_one_row_have_a_number() -> None:
    rows = torch.zeros(60, 3)
    rows[7] = 1e6
    score = MINE(hidden=8, steps=20, batch_size=16)({"a": rows}, torch.arange(60) % 2)["a"]
    assert score.value is not None
    assert abs(score.value) < 0.2


def test_few_rows_have_no_number() -> None:
    assert SMALL({"a": _random(39, 2)}, torch.arange(39) % 2)["a"].outcome is Outcome.NOT_RESOLVABLE


def test_refuses_arguments_without_meaning() -> None:
    with pytest.raises(InputError, match="learning_rate"):
        MINE(learning_rate=0.0)
    with pytest.raises(InputError, match="batch_size"):
        MINE(batch_size=1)

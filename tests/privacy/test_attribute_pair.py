"""A record against itself with another attribute: distances of a linear model by hand, and what releases make of them."""

from __future__ import annotations

from dataclasses import replace

import dp_accounting
import pytest
import torch
from scipy import stats
from tests.privacy.setting import COLOR, SEX, dp_sgd, objective, record
from torch import Tensor, nn

from gradleak.core import Batch, Defense, Objective, Protocol, Release
from gradleak.defenses import DPSGD, ClipPerExample, GaussianNoise, LaplaceNoise, LayerNoise, Prune, RandomSparsify
from gradleak.privacy import AttributePair, GaussianPair, RecordAttribute, SampledPair
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError

DELTA = 1e-5
CHANCE = 1e-3


def linear() -> tuple[Objective, Tensor, Tensor]:
    """A softmax regression with its weights."""
    draws = torch.Generator().manual_seed(3)
    model = nn.Linear(7, 2).double()
    weight, bias = (torch.randn(*shape, generator=draws, dtype=torch.float64) for shape in ((2, 7), (2,)))
    with torch.no_grad():
        model.weight.copy_(weight)
        model.bias.copy_(bias)
    return Objective.from_module(model), weight, bias


def by_hand(weight: Tensor, bias: Tensor, x: Tensor, target: int, clip: float) -> Tensor:
    """(p − y) ⊗ (x, 1), scaled to the clipping bound."""
    error = torch.softmax(weight @ x + bias, dim=0) - torch.eye(2, dtype=torch.float64)[target]
    gradient = torch.cat([torch.outer(error, x).reshape(-1), error])
    return gradient * min(1.0, clip / float(gradient.norm()))


@pytest.mark.parametrize("clip", [0.3, 100.0])
@pytest.mark.parametrize("attribute", [SEX, COLOR], ids=["sex", "color"])
def test_sensitivity_of_a_linear_model_is_that_by_hand(attribute: RecordAttribute, clip: float) -> None:
    known, weight, bias = linear()
    data = record()
    own = attribute.value_of(data.inputs)
    pair = AttributePair(objective=known, release=dp_sgd(clip=clip, std=0.2), record=data, attribute=attribute)
    null = by_hand(weight, bias, data.inputs[0], 1, clip)
    others = [value for value in range(len(attribute.values)) if value != own]
    expected = [
        float((by_hand(weight, bias, attribute.with_value(data.inputs, value)[0], 1, clip) - null).norm())
        for value in others
    ]
    assert isinstance(pair.law, GaussianPair)
    assert pair.facts["distances"] == pytest.approx(expected, rel=1e-12)
    (score,) = pair.theory(delta=DELTA)
    assert score.value == pytest.approx(dp_accounting.get_epsilon_gaussian(0.2 / max(expected), DELTA), rel=1e-6)
    assert score.evidence.value == "exact"
    assert score.details["std"] == 0.2


@pytest.mark.parametrize(
    ("protocol", "defenses", "std", "scale"),
    [
        (FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")], 0.1, 1.0),
        (FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum", expected_batch_size=4)], 0.025, 0.25),
        (FedSGD(), [ClipPerExample(0.5), GaussianNoise(std=0.1)], 0.1, 1.0),
        (FedSGD(), [ClipPerExample(0.5), GaussianNoise(std=0.06), GaussianNoise(std=0.08)], 0.1, 1.0),
        (FedAvg(learning_rate=0.5), [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")], 0.05, 0.5),
        (FedAvg(learning_rate=0.5), [ClipPerExample(0.5), GaussianNoise(std=0.1)], 0.1, 0.5),
    ],
    ids=["sum", "public divisor", "clip and noise", "two noises", "one local step", "noise on a delta"],
)
def test_releases_with_gaussian_noise_are_known_in_law(
    protocol: Protocol, defenses: list[Defense], std: float, scale: float
) -> None:
    pair = AttributePair(objective=objective(), release=Release(protocol, defenses), record=record(), attribute=SEX)
    plain = replace(pair, release=dp_sgd(clip=0.5, std=0.1))
    assert isinstance(pair.law, GaussianPair)
    assert pair.facts["std"] == pytest.approx([std])
    assert pair.facts["distances"] == pytest.approx([scale * plain.facts["distances"][0]], rel=1e-6)


def test_noise_by_layer_weighs_each_layer_by_its_own() -> None:
    release = Release(FedSGD(), [ClipPerExample(0.5), LayerNoise(std={"0": 0.1}, default=0.3)])
    pair = AttributePair(objective=objective(), release=release, record=record(), attribute=SEX)
    assert isinstance(pair.law, GaussianPair)
    moved = pair.law.alternatives[0] - pair.law.null
    first = 7 * 6 + 6
    expected = float(((moved[:first] / 0.1).square().sum() + (moved[first:] / 0.3).square().sum()).sqrt())
    assert pair.law.shifts == pytest.approx([expected])
    assert pair.theory(delta=DELTA)[0].value == pytest.approx(
        dp_accounting.get_epsilon_gaussian(1 / expected, DELTA), rel=1e-6
    )


def test_releases_that_are_drawn_have_the_law_of_the_closed_form() -> None:
    pair = AttributePair(objective=objective(), release=dp_sgd(), record=record(), attribute=SEX)
    rows = Batch(torch.cat([SEX.with_value(record().inputs, value) for value in (0, 1)]), torch.tensor([1, 1]))
    drawn = SampledPair(objective=objective(), release=dp_sgd(), rows=rows, null=(0,), alternatives=((1,),))
    one = pair.trials(1500, generator=torch.Generator().manual_seed(1))
    two = drawn.trials(1500, generator=torch.Generator().manual_seed(2))
    for name, other in (("distance", "distance"), ("likelihood_ratio", "matched_filter")):
        assert stats.ks_2samp(one[name].null, two[other].null).pvalue > CHANCE
        assert stats.ks_2samp(one[name].alternative, two[other].alternative).pvalue > CHANCE


@pytest.mark.parametrize(
    ("defenses", "bounded"),
    [
        ([ClipPerExample(0.5), LaplaceNoise(scale=0.1)], False),
        ([ClipPerExample(0.5), RandomSparsify(0.5)], False),
        ([DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum"), Prune(0.5)], True),
        ([GaussianNoise(std=0.1), Prune(0.5)], True),
    ],
    ids=["laplace", "sparsified", "pruned after noise", "noise without a bound"],
)
def test_other_noise_is_really_drawn(defenses: list[Defense], bounded: bool) -> None:
    pair = AttributePair(objective=objective(), release=Release(FedSGD(), defenses), record=record(), attribute=COLOR)
    assert isinstance(pair.law, SampledPair)
    found = pair.trials(200, generator=torch.Generator().manual_seed(0))
    assert set(found) == {"distance", "matched_filter"}
    assert {scores.counts for scores in found.values()} == {(200, 200)}
    assert found["matched_filter"].null.std() > 0
    (score,) = pair.theory(delta=DELTA)
    if not bounded:
        assert score.value is None
        return
    assert score.evidence.value == "upper_bound"
    noisy = replace(pair, release=Release(FedSGD(), defenses[:1]))
    assert score.value == noisy.theory(delta=DELTA)[0].value


def test_the_matched_filter_tells_laplace_noise_apart_better_than_the_distance() -> None:
    release = Release(FedSGD(), [ClipPerExample(0.5), LaplaceNoise(scale=0.1)])
    pair = AttributePair(objective=objective(), release=release, record=record(), attribute=SEX)
    found = pair.trials(400, generator=torch.Generator().manual_seed(0))
    better, worse = (
        stats.mannwhitneyu(found[name].alternative, found[name].null).statistic / 400**2
        for name in ("matched_filter", "distance")
    )
    assert better > worse > 0.5


def test_without_noise_the_hypotheses_are_two_points() -> None:
    pair = AttributePair(objective=objective(), release=Release(FedSGD()), record=record(), attribute=SEX)
    found = pair.trials(50, generator=torch.Generator().manual_seed(0))
    assert len(set(found["distance"].null)) == len(set(found["distance"].alternative)) == 1
    moved = pair.objective.gradient(pair.objective.params, Batch(SEX.with_value(record().inputs, 1), record().targets))
    still = pair.objective.gradient(pair.objective.params, record())
    expected = float((pair.objective.flatten(moved) - pair.objective.flatten(still)).norm())
    assert found["distance"].alternative[0] - found["distance"].null[0] == pytest.approx(expected, rel=1e-9)


def test_dropout_draws_masks_of_its_own_in_every_trial() -> None:
    model = nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 2)).double()
    known = Objective.from_module(model, mode="train")
    pair = AttributePair(objective=known, release=dp_sgd(std=1e-3), record=record(), attribute=SEX)
    assert isinstance(pair.law, SampledPair)
    found = pair.trials(300, generator=torch.Generator().manual_seed(0))["distance"]
    # Far more spread than noise of 1e-3 on these few entries gives.
    assert found.null.std() > 0.01


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Batch(torch.zeros(2, 7), torch.zeros(2, dtype=torch.int64)), "one example"),
        (Batch(torch.full((1, 7), 0.5), torch.zeros(1, dtype=torch.int64)), "one of the values"),
        (Batch(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)), "entries from 0 to 2"),
    ],
    ids=["two", "no value", "short"],
)
def test_records_that_have_no_value_are_refused(data: Batch, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AttributePair(objective=objective(), release=dp_sgd(), record=data, attribute=SEX)

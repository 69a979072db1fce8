"""Rank by layer: what a spectrum of A says of the example, and what the attack has to go by."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.attacks import Peel
from gradleak.core import Batch, Defense, Domain, Exposure, HonestButCurious, Objective, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.models import initialize_default, lenet_i2f, resnet8
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, Leakier, Outcome
from gradleak.risk import PeelRank

DOMAIN = Domain.image(channels=1, height=12, width=12)


def _exposure(model: nn.Module, *, count: int = 1, defenses: tuple[Defense, ...] = ()) -> Exposure:
    pixels = torch.rand(count, 1, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = Batch(pixels, torch.arange(count), DOMAIN)
    return Exposure(Objective.from_module(model.double()), batch, Release(FedSGD(), defenses))


def _net(*layers: nn.Module, seed: int = 0) -> nn.Module:
    return initialize_default(nn.Sequential(*layers), generator=torch.Generator().manual_seed(seed))


def _narrow(bend: nn.Module, filters: int, seed: int) -> nn.Module:
    first = nn.Conv2d(1, filters, 3, stride=2, padding=1)
    return _net(first, bend, nn.Flatten(), nn.Linear(36 * filters, 5), seed=seed)


@pytest.mark.parametrize(("filters", "seed"), [(2, 3), (3, 1), (6, 2)])
@pytest.mark.parametrize("bend", [nn.ReLU(), nn.Tanh()], ids=["relu", "tanh"])
def test_open_directions_of_the_first_layer_are_the_null_space_of_the_derivative(
    bend: nn.Module, filters: int, seed: int
) -> None:
    exposure = _exposure(_narrow(bend, filters, seed))
    score = PeelRank()(exposure)
    rank = GradientJacobian(exposure).rank
    first = score.details["inputs_of"][-1]
    assert first["null"] == 144 - rank
    assert score.value == rank / 144
    assert (score.evidence, score.outcome, score.leakier) == (Evidence.EXACT, Outcome.CONVERGED, Leakier.HIGHER)


def test_ranks_and_conditions_are_those_that_the_attack_finds() -> None:
    exposure = _exposure(lenet_i2f(size=12, activation="relu", generator=torch.Generator().manual_seed(1)))
    whole, *layers = PeelRank().scores(exposure)
    assert whole.value == 1
    update = exposure.release(exposure.objective, exposure.batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious().disclose(exposure.objective, exposure.release, exposure.batch)
    found = Peel()(update, knowledge, generator=torch.Generator().manual_seed(0))
    assert found.outcome is Outcome.CONVERGED
    for score, layer in zip(layers, found.details["inputs_of"], strict=True):
        assert score.about == {"layer": layer["layer"]}
        assert [score.details[key] for key in ("unknowns", "rank", "null")] == [
            layer[key] for key in ("unknowns", "rank", "null")
        ]
        assert score.details["condition"] == pytest.approx(layer["condition"], rel=0.05)


def test_a_layer_above_that_lacks_rank_is_named() -> None:
    model = _net(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(8, 2, 1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(288, 3),
    )
    score = PeelRank()(_exposure(model))
    # Two equations a channel from the weight, two a pixel from the outputs, of eight unknowns a pixel; two of the weight's are
    # not told by the outputs' in each channel.
    assert score.details["narrowest"] == "2.weight"
    middle = score.details["inputs_of"][1]
    assert (middle["unknowns"], middle["equations"]) == (8 * 144, 2 * 8 + 2 * 144)
    assert 2 * 144 < middle["rank"] <= 2 * 8 + 2 * 144
    assert score.value == middle["rank"] / middle["unknowns"]
    assert score.note.startswith("2.weight: 304 equations determine")


def test_units_that_are_all_off_leave_nothing() -> None:
    model = _narrow(nn.ReLU(), 2, 3)
    nn.init.constant_(model.get_submodule("0").get_parameter("bias"), -100.0)
    score = PeelRank()(_exposure(model))
    assert score.value == 0
    assert "active" in score.note


def test_noise_is_not_looked_at() -> None:
    model = _narrow(nn.ReLU(), 3, 0)
    noisy = PeelRank()(_exposure(model, defenses=(GaussianNoise(std=0.1),)))
    assert noisy.value == PeelRank()(_exposure(model)).value
    assert PeelRank().assumed_noise == "no noise"


@pytest.mark.parametrize(
    ("exposure", "said"),
    [
        (_exposure(_narrow(nn.ReLU(), 2, 3), count=2), "one example, got 2"),
        (_exposure(_narrow(nn.ReLU(), 2, 3), defenses=(Clip(max_norm=1e-3),)), "needs the gradient itself"),
        (_exposure(resnet8(classes=3, channels=1)), "joins two branches"),
    ],
    ids=["batch", "clip", "skip"],
)
def test_what_cannot_be_peeled_has_no_value(exposure: Exposure, said: str) -> None:
    score = PeelRank()(exposure)
    assert score.value is None
    assert score.outcome is Outcome.UNSUPPORTED
    assert said in score.note


def test_a_layer_that_is_too_large_has_no_value() -> None:
    score = PeelRank(max_unknowns=100)(_exposure(_narrow(nn.ReLU(), 2, 3)))
    assert score.value is None
    assert "max_unknowns=100" in score.note

"""Randomness whose rule the adversary knows: directions of spectral noise, draws of a bottleneck."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.attacks import GaussNewton, InvertingGradients
from gradleak.attacks.inversion.problem import DRAWS, LabelPolicy, Problem
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Batch, HonestButCurious, Objective, Release
from gradleak.datasets import scikit_digits
from gradleak.defenses import GaussianNoise, SpectralNoise, VariationalBottleneck
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from tests.attacks.setting import rows, setting, small_net


def _digit() -> tuple[Objective, Batch]:
    generator = torch.Generator().manual_seed(1)
    net = mlp(features=64, hidden=(48, 24), classes=10, activation="sigmoid", generator=generator)
    return Objective.from_module(nn.Sequential(nn.Flatten(), net)).to(torch.float64), scikit_digits(count=1).to(
        torch.float64
    )


def test_one_direction_of_spectral_noise_hides_nothing_from_who_knows_the_rule() -> None:
    objective, batch = _digit()
    release = Release(FedSGD(), [SpectralNoise(norm=0.01)])
    update = release(objective, batch, torch.Generator().manual_seed(0))
    errors = {}
    for adaptive in (True, False):
        knowledge = HonestButCurious(defenses=adaptive).disclose(objective, release, batch)
        found = GaussNewton(starts=1)(update, knowledge, generator=torch.Generator().manual_seed(5))
        errors[adaptive] = float((found.inputs - batch.inputs).square().mean().sqrt())
        if adaptive:
            assert abs(found.details["noise_weights"][0]) == 1.0
            assert "the rule of SpectralNoise" in found.details["information"]
            assert found.details["labels"] == "recovered"
    assert errors[False] > 1e-2
    assert errors[True] < 1e-2 * errors[False]


def test_several_directions_are_searched_for_on_the_sphere() -> None:
    objective, batch = _digit()
    release = Release(FedSGD(), [SpectralNoise(norm=0.003, directions=3)])
    update = release(objective, batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious().disclose(objective, release, batch)
    found = GaussNewton(starts=1)(update, knowledge, generator=torch.Generator().manual_seed(5))
    weights = torch.tensor(found.details["noise_weights"])
    assert weights.shape == (3,)
    assert float(weights.norm()) == pytest.approx(1.0)


def test_first_order_attacks_read_spectral_noise_as_an_undefended_update() -> None:
    case = setting(small_net(), rows(1), defenses=[SpectralNoise(norm=1e-4)], threat=HonestButCurious(targets=True))
    found = InvertingGradients(iterations=100)(case.update, case.knowledge, generator=torch.Generator().manual_seed(0))
    assert case.error(found.inputs) < 0.05


def test_spectral_noise_behind_other_noise_is_no_reason_to_stop() -> None:
    defenses = [SpectralNoise(norm=1e-3), GaussianNoise(std=1e-5)]
    case = setting(small_net(), rows(1), defenses=defenses, threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=torch.Generator().manual_seed(0))
    assert found.inputs is not None
    assert "noise_weights" not in found.details


def test_who_knows_the_bottleneck_matches_the_mean_over_its_draws() -> None:
    rule = VariationalBottleneck(beta=0.01, width=4)
    generator = torch.Generator().manual_seed(1)
    encoder, decoder = mlp(features=12, hidden=(8,), classes=6, generator=generator), nn.Linear(4, 3)
    model = rule.insert(encoder, decoder, features=6, generator=generator).double()
    objective = Objective.from_module(model, loss=rule.loss(), mode="train")
    batch, release = rows(1).to(torch.float64), Release(FedSGD(), [rule])
    update = release(objective, batch, torch.Generator().manual_seed(0))
    problems = {}
    for adaptive in (True, False):
        knowledge = HonestButCurious(defenses=adaptive, targets=True).disclose(objective, release, batch)
        problems[adaptive] = Problem.pose(update, knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER)
    assert len(problems[False].draws) == 1
    assert len({draw.mask_seed for draw in problems[True].draws}) == DRAWS
    made = problems[True].released(batch.inputs, batch.targets)
    each = [objective.flatten(draw.gradient(draw.params, batch)) for draw in problems[True].draws]
    torch.testing.assert_close(made, torch.stack(each).mean(dim=0))
    # The client's own draw is none of them.
    assert all(draw.mask_seed != objective.mask_seed for draw in problems[True].draws)
    found = GaussNewton(starts=1, max_steps=2)(
        update,
        HonestButCurious(targets=True).disclose(objective, release, batch),
        generator=torch.Generator().manual_seed(0),
    )
    assert found.inputs is not None
    assert found.plain_gradients > DRAWS

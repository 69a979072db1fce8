"""Randomness whose rule the adversary knows: directions of spectral noise, draws of dropout and of a bottleneck."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.attacks import GaussNewton, InvertingGradients, residuals_under
from gradleak.attacks.inversion.problem import LabelPolicy, Problem
from gradleak.attacks.inversion.reading import DRAWS
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Batch, HonestButCurious, Objective, Release
from gradleak.datasets import scikit_digits
from gradleak.defenses import GaussianNoise, SpectralNoise, VariationalBottleneck
from gradleak.models import initialize_default, mlp
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


def test_who_knows_the_model_matches_the_mean_over_draws_of_its_bottleneck() -> None:
    rule = VariationalBottleneck(beta=0.01, width=4)
    generator = torch.Generator().manual_seed(1)
    encoder, decoder = mlp(features=12, hidden=(8,), classes=6, generator=generator), nn.Linear(4, 3)
    model = rule.insert(encoder, decoder, features=6, generator=generator).double()
    objective = Objective.from_module(model, loss=rule.loss(), mode="train")
    batch, release = rows(1).to(torch.float64), Release(FedSGD(), [rule])
    update = release(objective, batch, torch.Generator().manual_seed(0))
    # The layer is in the model, which is disclosed whether the defense is named or not.
    for adaptive in (True, False):
        knowledge = HonestButCurious(defenses=adaptive, targets=True).disclose(objective, release, batch)
        problem = Problem.pose(update, knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER)
        assert len({draw.mask_seed for draw in problem.draws}) == DRAWS
        made = problem.released(batch.inputs, batch.targets)
        each = [objective.flatten(draw.gradient(draw.params, batch)) for draw in problem.draws]
        torch.testing.assert_close(made, torch.stack(each).mean(dim=0))
        # The client's own draw is none of them.
        assert all(draw.mask_seed != objective.mask_seed for draw in problem.draws)
    found = GaussNewton(starts=1, max_steps=2)(
        update,
        HonestButCurious(targets=True).disclose(objective, release, batch),
        generator=torch.Generator().manual_seed(0),
    )
    assert found.inputs is not None
    assert found.plain_gradients > DRAWS


class _Noisy(nn.Module):
    """Draws by code of its own, which no list of layers names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 24), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sigmoid(self.first(x))
        return self.last(h * (torch.rand(h.shape) > 0.5))


def _dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(24, 3))


def _weighted(model: nn.Module) -> nn.Module:
    initialize_default(model, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize(("build", "mode"), [(_dropout, "train"), (_Noisy, "eval")], ids=["dropout", "own code"])
def test_masks_hide_unless_they_are_disclosed(build: type[nn.Module], mode: str) -> None:
    objective = Objective.from_module(_weighted(build()), mode=mode, mask_seed=1234).to(torch.float64)
    batch, release = rows(1).to(torch.float64), Release(FedSGD())
    update = release(objective, batch, torch.Generator().manual_seed(0))
    errors = {}
    for masks, words in ((True, "the client's own, disclosed"), (False, "not known; the mean over 8 draws of its own")):
        knowledge = HonestButCurious(masks=masks).disclose(objective, release, batch)
        found = GaussNewton(starts=1, max_steps=15)(update, knowledge, generator=torch.Generator().manual_seed(5))
        assert f"masks of random layers: {words}" in found.details["information"]
        errors[masks] = float((found.inputs - batch.inputs).square().mean().sqrt())
    assert errors[True] < 1e-7
    assert errors[False] > 0.1


def test_a_claim_is_held_against_the_mean_over_draws() -> None:
    objective = Objective.from_module(_weighted(_dropout()), mode="train").to(torch.float64)
    batch, release = rows(1).to(torch.float64), Release(FedSGD())
    update = release(objective, batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious().disclose(objective, release, batch)
    found = GaussNewton(starts=1, max_steps=15)(update, knowledge, generator=torch.Generator().manual_seed(5))
    trial = residuals_under(found, update, knowledge, [FedSGD()])[0]
    problem = Problem.pose(update, knowledge, pixels=Pixels(), policy=LabelPolicy.RECOVER)
    made, seen = problem.released(found.inputs, found.targets), objective.flatten(update.tensors)
    assert trial.relative_residual == pytest.approx(float((made - seen).norm() / seen.norm()), rel=1e-9)


@pytest.mark.parametrize(("masks", "draws"), [(True, 1), (False, DRAWS)])
def test_the_estimate_counts_every_draw(masks: bool, draws: int) -> None:
    objective = Objective.from_module(_weighted(_dropout()), mode="train").to(torch.float64)
    batch, release = rows(1).to(torch.float64), Release(FedSGD())
    update = release(objective, batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious(masks=masks).disclose(objective, release, batch)
    attack = InvertingGradients(iterations=3)
    found = attack(update, knowledge, generator=torch.Generator().manual_seed(5))
    assert found.plain_gradients == attack.estimate(knowledge) == 3 * 4 * draws

"""Several updates of one batch as one with less noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradleak.attacks import GaussNewton, pool_rounds
from gradleak.core import Defense, HonestButCurious, Objective, Release, Update, UpdateKind
from gradleak.defenses import DPSGD, GaussianNoise, LaplaceNoise, LayerNoise, Prune, Quantize, RandomSparsify, Sign
from gradleak.protocols import FedSGD
from gradleak.results import InputError, UnsupportedError
from tests.attacks.setting import rows, small_net

ROUNDS = 64


def _case(*defenses: Defense) -> tuple[Objective, Release, list[Update], HonestButCurious]:
    objective = Objective.from_module(small_net()).to(torch.float64)
    release, batch = Release(FedSGD(), defenses), rows(1).to(torch.float64)
    updates = [release(objective, batch, torch.Generator().manual_seed(seed)) for seed in range(ROUNDS)]
    return objective, release, updates, HonestButCurious(targets=True)


@pytest.mark.parametrize(
    ("defense", "expected"),
    [
        (GaussianNoise(std=0.1), GaussianNoise(std=0.0125)),
        (LaplaceNoise(scale=0.1), GaussianNoise(std=0.1 * 2**0.5 / 8)),
        (LayerNoise(std={"0": 0.1}, default=0.8), LayerNoise(std={"0": 0.0125}, default=0.1)),
        (
            DPSGD(clip_norm=1.0, noise_std=0.1, noise="sum"),
            DPSGD(clip_norm=1.0, noise_std=0.0125, noise="sum"),
        ),
    ],
    ids=repr,
)
def test_the_mean_carries_the_noise_that_the_pooled_defense_states(defense: Defense, expected: Defense) -> None:
    objective, release, updates, threat = _case(defense)
    batch = rows(1).to(torch.float64)
    pooled, knowledge = pool_rounds(updates, threat.disclose(objective, release, batch))
    assert knowledge.defenses == (expected,)
    assert pooled.provenance["pooled_rounds"] == ROUNDS
    mean = release.mean(objective, objective.params, batch)
    std = Release(FedSGD(), [expected]).noise(objective, examples=1).std
    squares = [((pooled.tensors[name] - mean[name]) / std[name]).square().reshape(-1) for name in mean]
    assert float(torch.cat(squares).mean()) == pytest.approx(1.0, abs=0.2)


def test_masks_uncover_what_other_masks_hid() -> None:
    objective, release, updates, threat = _case(RandomSparsify(0.1))
    batch = rows(1).to(torch.float64)
    pooled, knowledge = pool_rounds(updates, threat.disclose(objective, release, batch))
    truth = objective.gradient(objective.params, batch)
    for name, tensor in pooled.tensors.items():
        torch.testing.assert_close(tensor, torch.where(tensor != 0, truth[name], 0.0))
    held = float(torch.cat([(tensor != 0).double().reshape(-1) for tensor in pooled.tensors.values()]).mean())
    assert held > 0.98
    found = GaussNewton(starts=1)(pooled, knowledge, generator=torch.Generator().manual_seed(0))
    assert float((found.inputs - batch.inputs).abs().max()) < 1e-8


def test_an_attack_errs_less_after_many_rounds() -> None:
    objective, release, updates, threat = _case(GaussianNoise(std=3e-3))
    batch = rows(1).to(torch.float64)
    knowledge = threat.disclose(objective, release, batch)
    errors = []
    for given in ((updates[0], knowledge), pool_rounds(updates, knowledge)):
        found = GaussNewton(starts=1)(*given, generator=torch.Generator().manual_seed(0))
        errors.append(float((found.inputs - batch.inputs).square().mean().sqrt()))
    # √64 = 8 in the linear regime.
    assert errors[1] < errors[0] / 3


def test_what_draws_nothing_stays_as_it_is() -> None:
    objective, release, updates, threat = _case(Prune(0.5))
    knowledge = threat.disclose(objective, release, rows(1).to(torch.float64))
    pooled, after = pool_rounds(updates, knowledge)
    assert after.defenses == (Prune(0.5),)
    assert all(torch.equal(tensor, updates[0].tensors[name]) for name, tensor in pooled.tensors.items())


@pytest.mark.parametrize(
    ("defenses", "message"),
    [
        ((GaussianNoise(std=0.1), Sign()), "got GaussianNoise before Sign"),
        ((Quantize(bits=4),), "got Quantize; attack the updates one by one"),
    ],
)
def test_what_nobody_knows_how_to_pool_is_refused(defenses: tuple[Defense, ...], message: str) -> None:
    objective, release, updates, threat = _case(*defenses)
    with pytest.raises(UnsupportedError, match=message):
        pool_rounds(updates, threat.disclose(objective, release, rows(1).to(torch.float64)))


def test_updates_that_differ_are_refused() -> None:
    objective, release, updates, threat = _case(GaussianNoise(std=0.1))
    knowledge = threat.disclose(objective, release, rows(1).to(torch.float64))
    with pytest.raises(InputError, match="at least one update"):
        pool_rounds([], knowledge)
    with pytest.raises(InputError, match="two that differ"):
        pool_rounds([updates[0], replace(updates[1], kind=UpdateKind.DELTA)], knowledge)

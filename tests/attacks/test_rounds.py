"""Several updates of one batch as one with less noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.attacks import GaussNewton, pool_rounds
from gradleak.core import Defense, HonestButCurious, Objective, Release, Update, UpdateKind
from gradleak.defenses import (
    DPSGD,
    Clip,
    GaussianNoise,
    LaplaceNoise,
    LayerNoise,
    Prune,
    Quantize,
    RandomSparsify,
    Sign,
)
from gradleak.models import initialize_default
from gradleak.protocols import FedAvg, FedSGD
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
    assert pooled.provenance["pooling"] == "the first; nothing in the release is random"


@pytest.mark.parametrize("defense", [None, Prune(0.5), Sign(), Clip(0.1)], ids=repr)
def test_updates_that_differ_though_nothing_is_random_are_not_of_one_batch(defense: Defense | None) -> None:
    objective, release, updates, threat = _case(*([] if defense is None else [defense]))
    knowledge = threat.disclose(objective, release, rows(1).to(torch.float64))
    other = release(objective, rows(2).to(torch.float64), torch.Generator())
    with pytest.raises(InputError, match="expected equal updates, since nothing in the release is random"):
        pool_rounds([updates[0], other], knowledge)
    # Round-off is no difference.
    nearly = replace(other, tensors={name: tensor * (1 + 1e-12) for name, tensor in updates[0].tensors.items()})
    pool_rounds([updates[0], nearly], knowledge)


@pytest.mark.parametrize(
    "defenses",
    [(GaussianNoise(std=0.1),), (GaussianNoise(std=0.1), Sign()), (Quantize(bits=4),), (Prune(0.5),)],
    ids=repr,
)
def test_who_does_not_know_the_defenses_takes_the_mean(defenses: tuple[Defense, ...]) -> None:
    objective, release, updates, _ = _case(*defenses)
    knowledge = HonestButCurious(defenses=False).disclose(objective, release, rows(1).to(torch.float64))
    pooled, after = pool_rounds(updates, knowledge)
    assert after is knowledge
    for name, tensor in pooled.tensors.items():
        expected = torch.stack([update.tensors[name] for update in updates]).mean(dim=0)
        torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-15)
    assert pooled.provenance["pooling"].startswith("the mean; the defenses")


def _drawing(*defenses: Defense) -> tuple[Objective, Release, list[Update]]:
    """Updates of one batch through a model whose dropout masks are drawn anew every time."""
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
    initialize_default(model, generator=torch.Generator().manual_seed(0))
    objective = Objective.from_module(model, mode="train").to(torch.float64)
    release, batch = Release(FedSGD(), defenses), rows(1).to(torch.float64)
    updates = [
        release(replace(objective, mask_seed=seed), batch, torch.Generator().manual_seed(seed))
        for seed in range(ROUNDS)
    ]
    return objective, release, updates


@pytest.mark.parametrize("defenses", [(), (Clip(0.1),), (GaussianNoise(std=0.01),)], ids=repr)
def test_masks_of_a_model_average_out(defenses: tuple[Defense, ...]) -> None:
    objective, release, updates = _drawing(*defenses)
    batch = rows(1).to(torch.float64)
    pooled, knowledge = pool_rounds(updates, HonestButCurious(targets=True).disclose(objective, release, batch))
    assert knowledge.defenses == tuple(
        GaussianNoise(std=0.01 / 8) if isinstance(defense, GaussianNoise) else defense for defense in defenses
    )
    # Fresh draws of the released mean are on average as far as two independent means of 64 and 256 are.
    fresh = [
        objective.flatten(release.mean(replace(objective, mask_seed=1000 + seed), objective.params, batch))
        for seed in range(256)
    ]
    center, spread = torch.stack(fresh).mean(dim=0), torch.stack(fresh).var(dim=0).sum()
    one, many = (float((objective.flatten(u.tensors) - center).square().sum()) for u in (updates[0], pooled))
    noise = objective.size * (0.01 / 8) ** 2 if GaussianNoise(std=0.01) in defenses else 0
    assert many == pytest.approx(float(spread) * (1 / ROUNDS + 1 / 256) + noise, rel=0.5)
    assert many < one / 10


@pytest.mark.parametrize("defense", [Prune(0.5), Sign(), RandomSparsify(0.5)], ids=repr)
def test_a_model_that_draws_before_what_is_read_entry_by_entry_is_refused(defense: Defense) -> None:
    objective, release, updates = _drawing(defense)
    knowledge = HonestButCurious(targets=True).disclose(objective, release, rows(1).to(torch.float64))
    with pytest.raises(UnsupportedError, match=f"no {type(defense).__name__} after a model that draws"):
        pool_rounds(updates, knowledge)


def test_with_disclosed_masks_updates_have_to_agree() -> None:
    objective, release, updates = _drawing()
    knowledge = HonestButCurious(targets=True, masks=True).disclose(objective, release, rows(1).to(torch.float64))
    with pytest.raises(InputError, match="nothing in the release is random"):
        pool_rounds(updates, knowledge)


def test_noise_inside_of_local_steps_follows_no_pooled_law() -> None:
    objective = Objective.from_module(small_net()).to(torch.float64)
    batch, noisy = rows(1).to(torch.float64), DPSGD(clip_norm=1.0, noise_std=0.1, noise="sum")
    for epochs in (1, 3):
        release = Release(FedAvg(learning_rate=0.5, epochs=epochs), [noisy])
        updates = [release(objective, batch, torch.Generator().manual_seed(seed)) for seed in range(4)]
        knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)
        if epochs == 1:
            assert pool_rounds(updates, knowledge)[1].defenses == (replace(noisy, noise_std=0.05),)
            continue
        with pytest.raises(UnsupportedError, match="inside the local training of FedAvg"):
            pool_rounds(updates, knowledge)
        with pytest.raises(UnsupportedError, match="how many local steps"):
            pool_rounds(updates, replace(knowledge, batch_size=None, targets=None))
        static = HonestButCurious(defenses=False).disclose(objective, release, batch)
        assert "mean" in pool_rounds(updates, static)[0].provenance["pooling"]


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

"""The consistency gate finds the usual causes of weeks lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.auditing import GateStatus, check_update
from gradleak.core import Batch, Domain, Objective, Release, Update
from gradleak.defenses import Clip, GaussianNoise
from gradleak.protocols import FedSGD


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sigmoid(), nn.Flatten(), nn.Linear(512, 24), nn.Tanh(),
        nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5),
    )  # fmt: skip


@pytest.fixture
def batch() -> Batch:
    domain = Domain.image(channels=3, height=8, width=8, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.2))
    pixels = torch.rand((4, 3, 8, 8), generator=generator(1))
    return Batch(domain.from_pixels(pixels), torch.tensor([0, 1, 2, 4]), domain)


PLAIN = Release(FedSGD())


def test_an_honest_update_is_consistent(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    for release in (PLAIN, Release(FedSGD(), [Clip(1e-3)]), Release(FedSGD(), [Clip(0.1), GaussianNoise(std=1e-2)])):
        result = check_update(objective, release, batch, release(objective, batch, generator()))
        assert result.status is GateStatus.CONSISTENT
        assert not result.causes


def test_the_other_mode_is_found(model: nn.Module, batch: Batch) -> None:
    client = Objective.from_module(model, mode="train")
    result = check_update(Objective.from_module(model), PLAIN, batch, PLAIN(client, batch, generator()))
    assert result.status is GateStatus.INCONSISTENT
    assert "train mode" in result.causes[0]


def test_missing_normalization_is_found(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    assert batch.domain is not None
    sent = PLAIN(objective, batch.with_inputs(batch.domain.to_pixels(batch.inputs)), generator())
    result = check_update(objective, PLAIN, batch, sent)
    assert result.status is GateStatus.INCONSISTENT
    assert any("did not normalize" in cause for cause in result.causes)


@pytest.mark.parametrize(
    ("factor", "message"), [(4.0, "4 times as long"), (0.5, "0.5 times"), (65536.0, "times as long")]
)
def test_scale_is_reported(model: nn.Module, batch: Batch, factor: float, message: str) -> None:
    objective = Objective.from_module(model)
    sent = PLAIN(objective, batch, generator())
    scaled = Update(tensors={name: tensor * factor for name, tensor in sent.tensors.items()})
    result = check_update(objective, PLAIN, batch, scaled)
    assert result.status is GateStatus.INCONSISTENT
    assert result.scale == pytest.approx(factor, rel=1e-4)
    assert message in result.causes[0]


def test_reversed_sign_is_found(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    sent = PLAIN(objective, batch, generator())
    result = check_update(objective, PLAIN, batch, Update(tensors={k: -t for k, t in sent.tensors.items()}))
    assert result.status is GateStatus.INCONSISTENT
    assert "sign=-1" in result.causes[0]


def test_a_transposed_square_weight_is_found(batch: Batch) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5))
    objective = Objective.from_module(model)
    sent = PLAIN(objective, batch, generator())
    with torch.no_grad():
        big = {name: tensor * (30.0 if name == "3.weight" else 1.0) for name, tensor in sent.tensors.items()}
    turned = Update(tensors={name: tensor.T if name == "3.weight" else tensor for name, tensor in big.items()})
    result = check_update(objective, PLAIN, batch, turned)
    assert result.status is GateStatus.INCONSISTENT
    honest = Update(tensors={k: t.T if k == "3.weight" else t for k, t in sent.tensors.items()})
    result = check_update(objective, PLAIN, batch, honest)
    if result.status is GateStatus.INCONSISTENT:
        assert any("3.weight is transposed" in cause for cause in result.causes)


def test_an_unexplained_update_lists_what_was_tried(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    noise = Update(tensors={k: torch.randn(p.shape, generator=generator(3)) for k, p in objective.params.items()})
    result = check_update(objective, PLAIN, batch, noise)
    assert result.status is GateStatus.INCONSISTENT
    assert "tried without success" in result.causes[0]
    assert "another round" in result.causes[1]


@pytest.mark.parametrize("real", [0.5e-2, 2e-2])
def test_another_noise_level_is_found(model: nn.Module, batch: Batch, real: float) -> None:
    objective = Objective.from_module(model)
    sent = Release(FedSGD(), [GaussianNoise(std=real)])(objective, batch, generator())
    result = check_update(objective, Release(FedSGD(), [GaussianNoise(std=1e-2)]), batch, sent)
    assert result.status is GateStatus.INCONSISTENT
    assert result.chi_square_z is not None
    assert abs(result.chi_square_z) > 5
    assert f"{real:.1g}"[:3] in result.causes[0] or "stated was 0.01" in result.causes[0]


def test_a_zero_update_is_not_called_consistent(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    zero = Update(tensors={name: torch.zeros_like(tensor) for name, tensor in objective.params.items()})
    result = check_update(objective, PLAIN, batch, zero)
    assert result.status is GateStatus.INCONSISTENT
    assert result.cosine is None

"""The consistency gate finds the usual causes of weeks lost."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.audits.released import GateStatus, check_update
from gradleak.audits.released.gate import without_noise
from gradleak.core import Batch, DiagonalGaussian, Domain, Objective, Release, Update
from gradleak.defenses import Clip, ClipPerExample, GaussianNoise, Prune, Sign
from gradleak.protocols import FedAvg, FedSGD, LocalAdam


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
    for release in (PLAIN, Release(FedSGD(), [Clip(1e-3)]), Release(FedSGD(), [Clip(0.1), GaussianNoise(std=1e-4)])):
        result = check_update(objective, release, batch, release(objective, batch, generator()))
        assert result.status is GateStatus.CONSISTENT
        assert not result.causes


def test_the_other_mode_is_found(model: nn.Module, batch: Batch) -> None:
    """U33."""
    client = Objective.from_module(model, mode="train")
    result = check_update(Objective.from_module(model), PLAIN, batch, PLAIN(client, batch, generator()))
    assert result.status is GateStatus.INCONSISTENT
    assert "train mode" in result.causes[0]


def test_missing_normalization_is_found(model: nn.Module, batch: Batch) -> None:
    """U33: one side divides by other constants."""
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
    """U25."""
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
    """U33: below a cosine of 0.99 there is no verdict but a list of causes."""
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
    assert f"{real:.1g}"[:3] in result.causes[0] or "not the stated 0.01" in result.causes[0]


@pytest.mark.parametrize("std", [1e-2, 10.0])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.1])
def test_entries_that_carry_less_noise_are_found(model: nn.Module, batch: Batch, share: float, std: float) -> None:
    objective = Objective.from_module(model)
    release = Release(FedSGD(), [GaussianNoise(std=std)])
    mean = release.mean(objective, objective.params, batch)
    sent = dict(release(objective, batch, generator()).tensors)
    assert check_update(objective, release, batch, Update(tensors=sent)).status is not GateStatus.INCONSISTENT
    name = "4.weight"
    row = torch.lerp(mean[name][:1], sent[name][:1], share)
    sent[name] = torch.cat([row, sent[name][1:]])
    result = check_update(objective, release, batch, Update(tensors=sent))
    assert result.status is GateStatus.INCONSISTENT
    assert result.chi_square_z is not None
    assert abs(result.chi_square_z) < 5
    assert f"{name} does not carry the stated noise of standard deviation {std:.3g}" in result.causes[0]


def test_honest_noise_hardly_ever_seems_to_leave_entries_out() -> None:
    shapes, noise = {"a": (3,), "b": (40,), "c": (1000,)}, DiagonalGaussian(std={"a": 1.0, "b": 2.0, "c": 0.1})
    drawn = generator()
    draws = [
        {name: noise.std[name] * torch.randn(shape, generator=drawn).double() for name, shape in shapes.items()}
        for _ in range(200)
    ]
    assert not any(without_noise(draw, noise) for draw in draws)
    clear = draws[0] | {"a": torch.zeros(3).double()}
    assert len(without_noise(clear, noise)) == 1


def test_a_zero_update_is_not_called_consistent(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    zero = Update(tensors={name: torch.zeros_like(tensor) for name, tensor in objective.params.items()})
    result = check_update(objective, PLAIN, batch, zero)
    assert result.status is GateStatus.INCONSISTENT
    assert result.cosine is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_is_called_so(model: nn.Module, batch: Batch, value: float) -> None:
    objective = Objective.from_module(model)
    for release in (PLAIN, Release(FedSGD(), [GaussianNoise(std=0.1)])):
        sent = release(objective, batch, generator())
        next(iter(sent.tensors.values())).view(-1)[0] = value
        result = check_update(objective, release, batch, sent)
        assert result.status is GateStatus.INCONSISTENT
        assert result.causes == ("the update holds NaN or infinite numbers",)


LOCAL = FedAvg(learning_rate=0.5, epochs=2, batch_size=3, momentum=0.5)


@pytest.mark.parametrize(
    "release",
    [
        Release(LOCAL),
        Release(LOCAL, [ClipPerExample(0.5), Clip(0.1)]),
        Release(LOCAL, [ClipPerExample(0.5), GaussianNoise(std=1e-3)]),
        Release(FedSGD(), [Prune(0.9)]),
        Release(FedSGD(), [Sign()]),
        Release(LOCAL, [Sign(), GaussianNoise(std=0.1)]),
    ],
    ids=repr,
)
def test_every_protocol_and_defense_is_recomputed(model: nn.Module, batch: Batch, release: Release) -> None:
    objective = Objective.from_module(model)
    result = check_update(objective, release, batch, release(objective, batch, generator()))
    assert result.status is GateStatus.CONSISTENT
    other = batch.with_inputs(batch.inputs.flip(0))
    result = check_update(objective, release, batch, release(objective, other, generator()))
    assert result.status is GateStatus.INCONSISTENT


def test_noise_before_a_sign_cannot_be_compared(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    release = Release(FedSGD(), [GaussianNoise(std=0.1), Sign()])
    result = check_update(objective, release, batch, release(objective, batch, generator()))
    assert result.status is GateStatus.NOT_APPLICABLE
    assert "Sign" in result.causes[0]


def test_another_local_training_is_found(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    sent = Release(FedAvg(learning_rate=1e-3, epochs=2))(objective, batch, generator())
    result = check_update(objective, Release(FedAvg(learning_rate=1e-3)), batch, sent)
    assert result.status is GateStatus.INCONSISTENT
    assert result.scale == pytest.approx(2.0, rel=0.01)
    assert result.causes == ("a client with epochs=2 would fit: state the protocol as the client ran it",)
    far = Release(FedAvg(learning_rate=3.0, epochs=6))
    result = check_update(objective, far, batch, PLAIN(objective, batch, generator()))
    assert result.status is GateStatus.INCONSISTENT
    assert result.causes[0] == "the update is a gradient, but FedAvg makes a delta"
    assert any("the update is one gradient, not what FedAvg makes" in cause for cause in result.causes)


def test_a_delta_with_the_other_sign_is_found(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    sent = Release(LOCAL)(objective, batch, generator())
    turned = Update(tensors={name: -tensor for name, tensor in sent.tensors.items()}, kind=sent.kind)
    result = check_update(objective, Release(LOCAL), batch, turned)
    assert result.status is GateStatus.INCONSISTENT
    assert "sign=-1" in result.causes[0]


def test_noise_that_drowns_the_update_leaves_the_gate_without_an_answer(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    release = Release(FedSGD(), [GaussianNoise(std=10.0)])
    result = check_update(objective, release, batch, release(objective, batch, generator()))
    assert result.status is GateStatus.NOT_APPLICABLE
    assert "cannot tell" in result.causes[0]


def test_noise_below_round_off_counts_as_none(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    release = Release(FedSGD(), [GaussianNoise(std=1e-12)])
    assert (
        check_update(objective, release, batch, release(objective, batch, generator())).status is GateStatus.CONSISTENT
    )


def test_another_digit_of_the_same_class_is_not_taken_for_this_one() -> None:
    from gradleak.datasets import mnist_digits
    from gradleak.models import initialize_uniform, lenet_i2f

    network = initialize_uniform(lenet_i2f(), low=-0.5, high=0.5, generator=generator(1))
    objective = Objective.from_module(network)
    digits = mnist_digits(count=40, seed=2)
    same = (digits.targets == digits.targets[0]).nonzero()[1:4, 0].tolist()
    mine = digits.example(0)
    for other in same:
        result = check_update(objective, PLAIN, mine, PLAIN(objective, digits.example(other), generator()))
        assert result.status is GateStatus.INCONSISTENT
    assert check_update(objective, PLAIN, mine, PLAIN(objective, mine, generator())).status is GateStatus.CONSISTENT


@pytest.mark.parametrize("mode", [{"epochs": 1}, {"epochs": 3, "batch_size": 2}])
def test_an_adam_client_is_named(model: nn.Module, batch: Batch, mode: dict[str, int]) -> None:
    objective = Objective.from_module(model)
    sent = Release(LocalAdam(learning_rate=2e-3, **mode))(objective, batch, generator())
    assert check_update(objective, Release(LocalAdam(learning_rate=2e-3, **mode)), batch, sent).status == "consistent"
    result = check_update(objective, Release(FedAvg(learning_rate=0.1, **mode)), batch, sent)
    assert result.status is GateStatus.INCONSISTENT
    assert result.cosine is not None
    assert result.cosine < 0.9
    assert any("the client trained with Adam, see LocalAdam" in cause for cause in result.causes)


def test_one_step_of_adam_called_a_gradient_is_named_too(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    sent = Release(LocalAdam())(objective, batch, generator())
    result = check_update(objective, PLAIN, batch, sent)
    assert result.causes[0] == "the update is a delta, but FedSGD makes a gradient"
    assert any("trained with Adam" in cause for cause in result.causes)


@pytest.mark.parametrize(
    ("factor", "likeliest"),
    [
        (65536.0, "mixed precision's loss scale of 2^16 that was not undone"),
        (0.5, "a factor ½ in one of the two losses"),
        (4.0, "sum instead of mean reduction (batch size 4)"),
        (3.7, "loss scaling, or a learning rate, sum instead"),
    ],
)
def test_the_likeliest_cause_of_a_scale_comes_first(
    model: nn.Module, batch: Batch, factor: float, likeliest: str
) -> None:
    objective = Objective.from_module(model)
    sent = PLAIN(objective, batch, generator())
    scaled = Update(tensors={name: tensor * factor for name, tensor in sent.tensors.items()})
    (cause,) = check_update(objective, PLAIN, batch, scaled).causes
    assert f"times as long: {likeliest}" in cause
    undone = Update(tensors={name: tensor / factor for name, tensor in scaled.tensors.items()})
    assert check_update(objective, PLAIN, batch, undone).status is GateStatus.CONSISTENT


def test_a_learning_rate_or_number_of_steps_that_fits_is_given(model: nn.Module, batch: Batch) -> None:
    objective = Objective.from_module(model)
    sent = Release(FedAvg(learning_rate=1e-3, epochs=2))(objective, batch, generator())
    (cause,) = check_update(objective, Release(FedAvg(learning_rate=1e-3)), batch, sent).causes
    assert cause.startswith("a client with epochs=2 would fit")
    (cause,) = check_update(objective, Release(FedAvg(learning_rate=4e-3, epochs=2)), batch, sent).causes
    assert cause.startswith("a client with learning_rate=0.001 would fit")

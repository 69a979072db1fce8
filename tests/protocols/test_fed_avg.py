"""FedAvg against torch.optim.SGD, and its derivative against finite differences and a reference without torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release, Update, UpdateKind, describe
from gradleak.defenses import Clip, ClipPerExample
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

INPUTS = torch.rand(5, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 1, 0])
BATCH = Batch(INPUTS, LABELS)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def by_optimizer(model: nn.Module, protocol: FedAvg, inputs: Tensor = INPUTS, labels: Tensor = LABELS) -> list[Tensor]:
    """Initial minus final parameters of a loop as every client writes it."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=protocol.learning_rate,
        momentum=protocol.momentum,
        dampening=protocol.dampening,
        nesterov=protocol.nesterov,
        weight_decay=protocol.weight_decay,
    )
    for epoch in range(protocol.epochs):
        if protocol.schedule is not None:
            optimizer.param_groups[0]["lr"] = protocol.learning_rate * protocol.schedule[epoch]
        size = protocol.batch_size or len(inputs)
        places = torch.arange(len(inputs)) if protocol.order is None else torch.tensor(protocol.order[epoch])
        for rows, targets in zip(inputs[places].split(size), labels[places].split(size), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows), targets)
            for start, parameter in zip(before, model.parameters(), strict=True):
                loss = loss + protocol.proximal / 2 * (parameter - start).square().sum()
            loss.backward()
            optimizer.step()
    return [start - parameter.detach() for start, parameter in zip(before, model.parameters(), strict=True)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("batch_size", [None, 1, 2, 5, 64])
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_delta_is_that_of_torchs_sgd(epochs: int, batch_size: int | None, momentum: float) -> None:
    protocol = FedAvg(learning_rate=0.3, epochs=epochs, batch_size=batch_size, momentum=momentum)
    model = net()
    objective = Objective.from_module(model)
    found = protocol.mean(objective, objective.params, BATCH)
    assert list(found) == list(objective.params)
    for tensor, expected in zip(found.values(), by_optimizer(model, protocol), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-14)


SETTINGS: list[dict[str, Any]] = [
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "momentum": 0.5},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"momentum": 0.8, "dampening": 0.3},
    {"proximal": 1.0},
    {"proximal": 0.5, "weight_decay": 0.2, "momentum": 0.5, "nesterov": True},
    {"schedule": [1.0, 0.5, 0.1], "momentum": 0.5},
    {"order": [[4, 0, 2, 1, 3], [1, 3, 0, 4, 2], [0, 1, 2, 3, 4]]},
    {"order": [[4, 3, 2, 1, 0]] * 3, "schedule": [1.0, 2.0, 3.0], "proximal": 0.1},
]


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_options_are_those_of_torchs_sgd_and_of_fed_prox(settings: dict[str, Any], batch_size: int | None) -> None:
    protocol = FedAvg(learning_rate=0.3, epochs=3, batch_size=batch_size, **settings)
    model = net()
    objective = Objective.from_module(model)
    found = protocol.mean(objective, objective.params, BATCH)
    for tensor, expected in zip(found.values(), by_optimizer(model, protocol), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_for_small_steps_the_delta_is_its_weighted_gradients_and_its_decay(settings: dict[str, Any]) -> None:
    rate = 1e-6
    protocol = FedAvg(learning_rate=rate, epochs=3, batch_size=None, **settings)
    objective = Objective.from_module(net())
    whole = protocol.mean(objective, objective.params, BATCH)
    (_, weight), *others = protocol.mini_batch_weights(5)
    assert not others
    gradient = objective.gradient(objective.params, BATCH)
    for name, start in objective.params.items():
        first = weight * gradient[name] + protocol.decay(5) * start
        torch.testing.assert_close(whole[name] / rate, first / rate, rtol=1e-4, atol=1e-4)


def test_a_shuffled_client_weighs_all_examples_alike() -> None:
    order = [[4, 0, 2, 1, 3], [1, 3, 0, 4, 2]]
    protocol = FedAvg(learning_rate=0.5, epochs=2, batch_size=2, order=order)
    assert protocol.mini_batch_weights(5) == [(slice(0, 5), 3.0)]
    assert len(FedAvg(learning_rate=0.5, epochs=2, batch_size=2).mini_batch_weights(5)) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 2, "order": [[0, 1]]}, "order: expected one entry an epoch, 2 in all, got 1"),
        ({"order": [[0, 0, 1]]}, "order: expected every place of the batch once an epoch"),
        ({"schedule": [1.0, 0.5]}, "schedule: expected one entry an epoch, 1 in all, got 2"),
        ({"nesterov": True}, "nesterov: expected a momentum above 0 and no dampening"),
        ({"weight_decay": -0.1}, "weight_decay: expected a finite number of at least 0"),
        ({"proximal": float("nan")}, "proximal: expected a"),
    ],
)
def test_options_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedAvg(learning_rate=0.1, **settings)


def test_orders_of_another_batch_are_refused() -> None:
    objective = Objective.from_module(net())
    with pytest.raises(InputError, match="order: expected places of the 5 examples of the batch, got 3"):
        FedAvg(learning_rate=0.1, order=[[2, 1, 0]]).mean(objective, objective.params, BATCH)


def test_one_step_is_the_learning_rate_times_the_gradient() -> None:
    objective = Objective.from_module(net())
    delta = FedAvg(learning_rate=0.25).mean(objective, objective.params, BATCH)
    gradient = FedSGD().mean(objective, objective.params, BATCH)
    for name in gradient:
        torch.testing.assert_close(delta[name], 0.25 * gradient[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("batch_size", "epochs", "examples", "steps"),
    [(None, 3, 10, 3), (4, 3, 10, 9), (10, 2, 10, 2), (64, 2, 10, 2), (1, 1, 7, 7)],
)  # fmt: skip
def test_the_number_of_steps(batch_size: int | None, epochs: int, examples: int, steps: int) -> None:
    assert FedAvg(learning_rate=0.1, epochs=epochs, batch_size=batch_size).steps(examples) == steps


@pytest.mark.parametrize(
    "protocol",
    [
        FedAvg(learning_rate=0.5, epochs=3),
        FedAvg(learning_rate=0.5, epochs=2, batch_size=2, momentum=0.5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("defenses", [(), (ClipPerExample(0.4), Clip(0.3))], ids=repr)
def test_the_derivative_runs_through_all_steps(protocol: FedAvg, defenses: tuple[Any, ...]) -> None:
    objective = Objective.from_module(net())
    exposure = Exposure(objective, BATCH, Release(protocol, defenses))
    point = exposure.inputs
    forward = torch.func.jacfwd(exposure.mean)(point)
    reverse = torch.func.jacrev(exposure.mean)(point)
    torch.testing.assert_close(forward, reverse, rtol=1e-9, atol=1e-12)
    step = 1e-6
    for place in range(0, point.numel(), 7):
        shift = torch.zeros_like(point)
        shift[place] = step
        difference = (exposure.mean(point + shift) - exposure.mean(point - shift)) / (2 * step)
        torch.testing.assert_close(forward[:, place], difference, rtol=1e-5, atol=1e-8)
    both = torch.func.vmap(exposure.mean)(torch.stack([point, point + 0.1]))
    torch.testing.assert_close(both[1], exposure.mean(point + 0.1))


def test_the_derivative_of_two_steps_of_a_scalar_model_by_hand() -> None:
    """y = w x, loss (w x − t)²: θ₀ − θ₂ = η(g₀ + g₁) with g = 2x(wx − t), w₁ = w − ηg₀."""
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(0.7)
    x, t, w, rate = 1.3, 0.4, 0.7, 0.2
    objective = Objective.from_module(model, loss="mse")
    one = torch.ones(1, 1, dtype=torch.float64)
    exposure = Exposure(objective, Batch(x * one, t * one), Release(FedAvg(learning_rate=rate, epochs=2)))
    first = 2 * x * (w * x - t)
    first_slope = 4 * w * x - 2 * t
    w_next, w_slope = w - rate * first, -rate * first_slope
    second_slope = 4 * w_next * x - 2 * t + 2 * x * x * w_slope
    assert float(exposure.released_mean()) == pytest.approx(rate * (first + 2 * x * (w_next * x - t)), rel=1e-14)
    assert float(torch.func.jacrev(exposure.mean)(exposure.inputs)) == pytest.approx(
        rate * (first_slope + second_slope), rel=1e-13
    )


def test_example_defenses_act_in_every_local_step() -> None:
    """Against a loop that clips every example's gradient by itself."""
    model = net()
    objective = Objective.from_module(model)
    found = Release(FedAvg(learning_rate=0.5, epochs=2, batch_size=3), [ClipPerExample(0.3)]).mean(
        objective, objective.params, BATCH
    )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    bitten = 0
    for _ in range(2):
        for rows, targets in zip(INPUTS.split(3), LABELS.split(3), strict=True):
            total = [torch.zeros_like(parameter) for parameter in model.parameters()]
            for row, target in zip(rows, targets, strict=True):
                loss = F.cross_entropy(model(row[None]), target[None])
                gradient = torch.autograd.grad(loss, list(model.parameters()))
                norm = float(torch.cat([g.reshape(-1) for g in gradient]).norm())
                bitten += norm > 0.3
                for place, g in enumerate(gradient):
                    total[place] += g * min(1.0, 0.3 / norm) / len(rows)
            with torch.no_grad():
                for parameter, step in zip(model.parameters(), total, strict=True):
                    parameter -= 0.5 * step
    assert bitten == 10
    for tensor, start, parameter in zip(found.values(), before, model.parameters(), strict=True):
        torch.testing.assert_close(tensor, start - parameter.detach(), rtol=1e-12, atol=1e-14)


def test_update_defenses_act_once_on_the_delta() -> None:
    objective = Objective.from_module(net())
    protocol = FedAvg(learning_rate=0.5, epochs=4)
    clipped = objective.flatten(Release(protocol, [Clip(0.01)]).mean(objective, objective.params, BATCH))
    plain = objective.flatten(protocol.mean(objective, objective.params, BATCH))
    assert float(clipped.norm()) == pytest.approx(0.01, rel=1e-12)
    torch.testing.assert_close(clipped, plain * (0.01 / plain.norm()))


def test_batch_norm_in_train_mode_normalizes_by_the_mini_batch_and_shares_no_buffer() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double().train()
    objective = Objective.from_module(model, mode="train")
    buffers = {name: tensor.clone() for name, tensor in objective.buffers.items()}
    protocol = FedAvg(learning_rate=0.3, epochs=2, batch_size=3)
    found = protocol.mean(objective, objective.params, BATCH)
    assert all(torch.equal(objective.buffers[name], buffers[name]) for name in buffers)
    expected = by_optimizer(model, protocol)
    assert not torch.equal(model[1].running_mean, buffers["1.running_mean"]), "the client's own statistics moved"
    assert list(found) == [name for name, _ in model.named_parameters()]
    for tensor, reference in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(tensor, reference, rtol=1e-10, atol=1e-12)
    with pytest.raises(InputError, match=r"got one of a single example out of 5 .*; choose a batch_size"):
        FedAvg(learning_rate=0.3, batch_size=2).mean(objective, objective.params, BATCH)


def test_it_is_pure() -> None:
    model = net()
    objective = Objective.from_module(model)
    params = {name: tensor.clone() for name, tensor in objective.params.items()}
    first, second = (FedAvg(learning_rate=0.3, epochs=2).mean(objective, objective.params, BATCH) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(objective.params[name], params[name]) for name in params)


def test_the_update_is_a_delta_and_survives_a_file(tmp_path: Any) -> None:
    objective = Objective.from_module(net())
    release = Release(FedAvg(learning_rate=0.3, epochs=2, batch_size=2), [ClipPerExample(0.4)])
    update = release(objective, BATCH, generator=torch.Generator())
    assert FedAvg.kind is update.kind is UpdateKind.DELTA
    assert update.provenance["release"] == {
        "use": "Release",
        "protocol": describe(FedAvg(learning_rate=0.3, epochs=2, batch_size=2)),
        "defenses": [{"use": "ClipPerExample", "max_norm": 0.4}],
    }
    update.save(tmp_path / "u.safetensors")
    again = Update.load(tmp_path / "u.safetensors")
    assert again.kind is UpdateKind.DELTA
    assert again.provenance["release"] == update.provenance["release"]
    assert all(torch.equal(again.tensors[name], update.tensors[name]) for name in update.tensors)


def test_a_delta_the_other_way_round_is_loaded_with_its_sign(tmp_path: Any) -> None:
    """Final minus initial parameters, as many clients send them, in a file that says nothing of it."""
    model = net()
    objective = Objective.from_module(model)
    protocol = FedAvg(learning_rate=0.3, epochs=2)
    names = [name for name, _ in model.named_parameters()]
    sent = {name: -tensor for name, tensor in zip(names, by_optimizer(model, protocol), strict=True)}
    torch.save(sent, tmp_path / "delta.pt")
    update = Update.load(tmp_path / "delta.pt", kind="delta", sign=-1)
    assert update.kind is UpdateKind.DELTA
    mean = protocol.mean(objective, objective.params, BATCH)
    for name in names:
        torch.testing.assert_close(update.tensors[name], mean[name], rtol=1e-12, atol=1e-14)


def test_what_it_says_of_itself() -> None:
    protocol = FedAvg(learning_rate=0.1, epochs=3)
    assert protocol == FedAvg(learning_rate=0.1, epochs=3)
    assert hash(protocol) == hash(FedAvg(learning_rate=0.1, epochs=3))
    assert FedAvg(**{k: v for k, v in describe(protocol).items() if k != "use"}) == protocol


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate: expected a finite positive number, got 0.0"),
        ({"learning_rate": float("inf")}, "learning_rate: expected a finite positive number, got inf"),
        ({"learning_rate": "0.1"}, "learning_rate: expected a finite positive number, got '0.1'"),
        ({"learning_rate": 0.1, "epochs": 0}, "epochs: expected a whole number of at least 1, got 0"),
        ({"learning_rate": 0.1, "epochs": 1.5}, "epochs: expected a whole number of at least 1, got 1.5"),
        ({"learning_rate": 0.1, "epochs": True}, "epochs: expected a whole number of at least 1, got True"),
        ({"learning_rate": 0.1, "batch_size": 0}, "batch_size: expected a whole number of at least 1"),
        ({"learning_rate": 0.1, "momentum": 1.0}, "momentum: expected a number from 0 to below 1, got 1.0"),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedAvg(**fields)

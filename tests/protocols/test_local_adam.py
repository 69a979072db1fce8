"""LocalAdam against torch.optim.Adam, and its derivative where Adam's own square root has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release, UpdateKind
from gradleak.protocols import LocalAdam
from gradleak.results import InputError

INPUTS = torch.rand(5, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 1, 0])
BATCH = Batch(INPUTS, LABELS)


def net(activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), activation or nn.Tanh(), nn.Linear(5, 3)).double()


def by_optimizer(model: nn.Module, protocol: LocalAdam) -> list[Tensor]:
    """Initial minus final parameters of a loop as every client writes it."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    kind = torch.optim.AdamW if protocol.decoupled else torch.optim.Adam
    optimizer = kind(
        model.parameters(),
        lr=protocol.learning_rate,
        betas=(protocol.beta1, protocol.beta2),
        eps=protocol.eps,
        weight_decay=protocol.weight_decay,
    )
    for _ in range(protocol.epochs):
        size = protocol.batch_size or len(INPUTS)
        for rows, targets in zip(INPUTS.split(size), LABELS.split(size), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(rows), targets).backward()
            optimizer.step()
    return [start - parameter.detach() for start, parameter in zip(before, model.parameters(), strict=True)]


@pytest.mark.parametrize(
    "protocol",
    [
        LocalAdam(),
        LocalAdam(learning_rate=0.1, epochs=3, batch_size=2),
        LocalAdam(learning_rate=0.05, epochs=4, beta1=0.5, beta2=0.9, eps=1e-3),
        LocalAdam(learning_rate=0.05, epochs=2, beta1=0.0, beta2=0.0),
        LocalAdam(learning_rate=0.05, epochs=3, batch_size=2, weight_decay=0.1),
        LocalAdam(learning_rate=0.05, epochs=3, batch_size=2, weight_decay=0.1, decoupled=True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU()], ids=["tanh", "relu"])
def test_the_delta_is_that_of_torchs_adam(protocol: LocalAdam, activation: nn.Module) -> None:
    model = net(activation)
    objective = Objective.from_module(model)
    found = protocol.mean(objective, objective.params, BATCH)
    for tensor, expected in zip(found.values(), by_optimizer(model, protocol), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-10, atol=1e-13)


def test_one_step_is_almost_a_sign_and_says_so() -> None:
    objective = Objective.from_module(net())
    gradient = objective.flatten(objective.gradient(objective.params, BATCH))
    protocol = LocalAdam(learning_rate=0.01)
    delta = objective.flatten(protocol.mean(objective, objective.params, BATCH))
    torch.testing.assert_close(delta, 0.01 * gradient / (gradient.abs() + 1e-8), rtol=1e-10, atol=1e-15)
    torch.testing.assert_close(delta, 0.01 * gradient.sign(), rtol=1e-4, atol=0)
    assert "almost nothing but the signs" in protocol.note(5)
    assert "no evidence of safety" in protocol.note(5)
    assert LocalAdam(epochs=2).note(5) == LocalAdam(batch_size=2).note(5) == ""


@pytest.mark.parametrize("protocol", [LocalAdam(eps=0.05), LocalAdam(learning_rate=0.1, epochs=3, batch_size=3)])
def test_the_derivative_is_that_of_central_differences(protocol: LocalAdam) -> None:
    exposure = Exposure(Objective.from_module(net()), BATCH, Release(protocol))
    point = exposure.inputs
    forward = torch.func.jacfwd(exposure.mean)(point)
    torch.testing.assert_close(forward, torch.func.jacrev(exposure.mean)(point), rtol=1e-8, atol=1e-12)
    for place in range(0, point.numel(), 7):
        shift = torch.zeros_like(point)
        shift[place] = 1e-7
        difference = (exposure.mean(point + shift) - exposure.mean(point - shift)) / 2e-7
        torch.testing.assert_close(forward[:, place], difference, rtol=1e-3, atol=1e-6)


def test_entries_without_gradient_have_finite_derivatives() -> None:
    """Dead units: g = 0 and v = 0, where the square root has slope infinity."""
    model = net(nn.ReLU())
    with torch.no_grad():
        model[0].bias.fill_(-10.0)
    objective = Objective.from_module(model)
    exposure = Exposure(objective, BATCH, Release(LocalAdam(epochs=3)))
    mean = objective.unflatten(exposure.released_mean())
    assert not mean["0.weight"].any()
    assert mean["2.bias"].any()
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        assert torch.isfinite(jacobian(exposure.mean)(exposure.inputs)).all()


def test_a_zero_entry_in_one_step_keeps_the_slope_of_its_formula() -> None:
    """g/(|g| + ε) has slope 1/ε at 0: one scalar weight whose gradient is zero at this input."""
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(2.0)
    objective = Objective.from_module(model, loss="mse")
    one = torch.ones(1, 1, dtype=torch.float64)
    exposure = Exposure(objective, Batch(one, 2 * one), Release(LocalAdam(learning_rate=0.1, eps=0.5)))
    assert float(exposure.released_mean()) == 0.0
    # g = 2x(wx − t) has derivative 4wx − 2t = 4 here.
    assert float(torch.func.jacrev(exposure.mean)(exposure.inputs)) == pytest.approx(0.1 * 4 / 0.5, rel=1e-12)


def test_what_it_is() -> None:
    protocol = LocalAdam(epochs=3, batch_size=2)
    assert protocol.kind is UpdateKind.DELTA
    assert protocol.steps(5) == 9
    assert protocol.plain_gradients(5) == 3.0
    assert protocol.mini_batch_weights(5) is None
    assert protocol.gradient_scale() is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": -1.0}, "LocalAdam.learning_rate: expected a finite positive number, got -1.0"),
        ({"eps": 0.0}, "LocalAdam.eps: expected a finite positive number, got 0.0"),
        ({"beta1": 1.0}, "LocalAdam.beta1: expected a number from 0 to below 1, got 1.0"),
        ({"beta2": "x"}, "LocalAdam.beta2: expected a number from 0 to below 1, got 'x'"),
        ({"epochs": 0}, "LocalAdam.epochs: expected a whole number of at least 1, got 0"),
        ({"batch_size": 0}, "LocalAdam.batch_size: expected a whole number of at least 1"),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LocalAdam(**fields)

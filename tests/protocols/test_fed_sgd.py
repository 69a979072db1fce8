from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradleak.core import Batch, Objective, Protocol, UpdateKind, describe
from gradleak.protocols import FedSGD


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_mean_is_the_plain_gradient_as_the_loss_reduces_it(reduction: str) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)).double()
    inputs, targets = torch.rand(3, 5, dtype=torch.float64), torch.tensor([0, 2, 1])
    objective = Objective.from_module(model, loss=nn.CrossEntropyLoss(reduction=reduction))
    found = FedSGD().mean(objective, objective.params, Batch(inputs, targets))
    expected = torch.autograd.grad(
        F.cross_entropy(model(inputs), targets, reduction=reduction), list(model.parameters())
    )
    assert list(found) == list(objective.params)
    for tensor, reference in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(tensor, reference, rtol=1e-12, atol=1e-14)


def test_the_gradient_of_softmax_regression_in_closed_form() -> None:
    model = nn.Linear(4, 3).double()
    inputs, targets = torch.rand(2, 4, dtype=torch.float64), torch.tensor([2, 0])
    objective = Objective.from_module(model)
    found = FedSGD().mean(objective, objective.params, Batch(inputs, targets))
    residual = (model(inputs).softmax(dim=1) - F.one_hot(targets, 3)).detach() / 2
    torch.testing.assert_close(found["weight"], residual.T @ inputs, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found["bias"], residual.sum(dim=0), rtol=1e-12, atol=1e-14)


def test_it_is_taken_at_the_parameters_that_are_passed() -> None:
    objective = Objective.from_module(nn.Linear(4, 3))
    batch = Batch(torch.rand(2, 4), torch.tensor([2, 0]))
    shifted = {name: tensor + 1 for name, tensor in objective.params.items()}
    moved = FedSGD().mean(objective, shifted, batch)
    twin = nn.Linear(4, 3)
    twin.load_state_dict(shifted)
    expected = torch.autograd.grad(F.cross_entropy(twin(batch.inputs), batch.targets), list(twin.parameters()))
    torch.testing.assert_close(list(moved.values()), list(expected))


def test_what_it_says_of_itself() -> None:
    assert FedSGD.kind is UpdateKind.GRADIENT
    assert isinstance(FedSGD(), Protocol)
    assert FedSGD() == FedSGD()
    assert describe(FedSGD()) == {"use": "FedSGD"}

"""Targets whose shape makes torch compare outputs with the targets of other examples are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError

ROWS = torch.rand(4, 8, generator=torch.Generator().manual_seed(1))
NUMBERS = torch.rand(4, generator=torch.Generator().manual_seed(2))
# Torch's own warning of the same, where a user's function calls torch's losses.
pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")


class Returns(nn.Module):
    """A linear layer whose outputs are put into another form."""

    def __init__(self, form: Callable[[Tensor], Any], outputs: int = 1) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(8, outputs), form

    def forward(self, rows: Tensor) -> Any:
        return self.form(self.layer(rows))


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        "mse",
        nn.L1Loss(),
        nn.SmoothL1Loss(),
        nn.HuberLoss(delta=0.5),
        nn.MSELoss(reduction="sum"),
        nn.PoissonNLLLoss(),
        nn.KLDivLoss(reduction="sum"),
        partial(F.l1_loss, reduction="sum"),
        squared,
        lambda outputs, targets: (outputs - targets).abs().sum(),
        lambda outputs, targets: F.mse_loss(outputs, targets),
        lambda outputs, targets: torch.log1p((outputs - targets) ** 2).mean() + 100.0,
        lambda outputs, targets: -(outputs * targets).mean(),
    ],
)
def test_a_column_against_a_row_is_refused(loss: Any) -> None:
    objective = Objective.from_module(nn.Linear(8, 1), loss=loss)
    for targets in (NUMBERS, 50.0 + 1e3 * NUMBERS, torch.zeros(4)):
        with pytest.raises(InputError, match=r"expected shape \(4, 1\) like the outputs of the model, got \(4,\)"):
            objective.check(Batch(ROWS, targets))
    objective.check(Batch(ROWS, NUMBERS[:, None]))


@pytest.mark.parametrize(
    ("form", "outputs", "targets", "loss"),
    [
        (lambda y: y[:, 0], 1, NUMBERS[:, None], squared),  # a row against a column
        (lambda y: y, 4, NUMBERS, squared),  # as many outputs as examples: targets run along the outputs
        (lambda y: y.reshape(4, 1, 2, 2), 4, torch.rand(4, 2, 2), squared),  # maps without their channel
        (lambda y: y[:1].reshape(1, 3, 1), 3, torch.rand(1, 3), squared),  # a sequence, one example
        (lambda y: (y, 2 * y), 1, NUMBERS, lambda given, t: squared(given[0], t)),
        (lambda y: {"value": y}, 1, NUMBERS, lambda given, t: squared(given["value"], t)),
        (lambda y: y, 1, torch.tensor([0, 1, 1, 0]), lambda y, t: F.softplus(y * (1.0 - 2 * t)).mean()),
    ],
)
def test_so_are_its_siblings(form: Any, outputs: int, targets: Tensor, loss: Any) -> None:
    objective = Objective.from_module(Returns(form, outputs), loss=loss)
    with pytest.raises(InputError, match="compare outputs with the targets of other examples"):
        objective.check(Batch(ROWS[: len(targets)], targets))


@pytest.mark.parametrize(
    ("outputs", "targets", "loss"),
    [
        (1, NUMBERS, lambda y, t: squared(y.squeeze(1), t)),
        (1, 1e3 * NUMBERS, lambda y, t: (y[:, 0] - t).abs().mean()),  # all outputs below all targets
        (1, torch.zeros(4), lambda y, t: squared(y, t[:, None])),  # no two targets differ
        (1, NUMBERS, lambda y, t: y.square().mean()),  # reads no targets
        (4, torch.tensor([0, 1, 1, 3]), lambda y, t: F.cross_entropy(y, t)),
        (4, torch.tensor([0.0, 1.0, 1.0, 3.0]), lambda y, t: F.cross_entropy(y, t.long())),
        (3, NUMBERS[:, None], squared),  # every output against the target of its own example
        (1, torch.tensor([0, 1, 1, 0]), lambda y, t: F.binary_cross_entropy_with_logits(y.reshape(-1), t.float())),
        (4, NUMBERS, nn.MarginRankingLoss().forward),  # takes a third argument: a refusal of its own
    ],
)
def test_losses_that_reshape_for_themselves_pass(outputs: int, targets: Tensor, loss: Any) -> None:
    objective = Objective.from_module(nn.Linear(8, outputs), loss=loss)
    objective.check_pairs(Batch(ROWS, targets))


def test_one_example_pairs_with_itself() -> None:
    Objective.from_module(nn.Linear(8, 1), loss=squared).check(Batch(ROWS[:1], NUMBERS[:1]))
    with pytest.raises(InputError, match=r"\(1, 1\) like the outputs of the model, got \(1,\)"):
        Objective.from_module(nn.Linear(8, 1), loss=nn.L1Loss()).check(Batch(ROWS[:1], NUMBERS[:1]))


def test_measures_that_never_release_refuse_too() -> None:
    objective = Objective.from_module(nn.Linear(8, 1), loss=squared)
    with pytest.raises(InputError, match=r"expected shape \(4, 1\).*got \(4,\)"):
        GradientJacobian(Exposure(objective, Batch(ROWS, NUMBERS), Release(FedSGD())))

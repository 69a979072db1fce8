"""Targets that nobody tells the attacker, of squared error and binary cross entropy: found with the inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import GaussNewton, Inversion, InvertingGradients, LabelPolicy
from gradleak.attacks.inversion.targets import FreeTargets, Shares, form_of
from gradleak.core import Batch
from gradleak.results import KnowledgeError, Outcome
from tests.attacks.setting import ROW, setting


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _net(outputs: int, act: type[nn.Module]) -> nn.Module:
    net = nn.Sequential(nn.Linear(12, 32), act(), nn.Linear(32, 16), act(), nn.Linear(16, outputs))
    generator = _generator(4)
    with torch.no_grad():
        for tensor in net.parameters():
            scale = tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.1
            tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))
    return net


def _truth(loss: object, examples: int, outputs: int) -> Batch:
    generator = _generator(5)
    inputs = torch.rand(examples, 12, generator=generator, dtype=torch.float64)
    drawn = torch.rand(examples, outputs, generator=generator, dtype=torch.float64)
    squared = loss == "mse" or isinstance(loss, nn.MSELoss)
    return Batch(inputs, 10 * drawn - 3 if squared else (drawn > 0.5).double(), ROW)


def _sorted(rows: Tensor) -> Tensor:
    return rows[rows[:, 0].argsort()]


@pytest.mark.parametrize(("examples", "outputs", "act"), [(1, 1, nn.ReLU), (1, 3, nn.Tanh), (4, 3, nn.Tanh)])
@pytest.mark.parametrize(
    "loss",
    ["mse", "bce_with_logits", nn.MSELoss(reduction="sum"), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))],
    ids=["mse", "bce", "summed mse", "weighted bce"],
)
def test_gauss_newton_finds_inputs_and_targets_to_round_off(
    loss: object, examples: int, outputs: int, act: type[nn.Module]
) -> None:
    truth = _truth(loss, examples, outputs)
    case = setting(_net(outputs, act), truth, loss=loss)
    assert case.knowledge.targets is None
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.details["labels"] == "optimized"
    assert found.details["unknowns"] == examples * (12 + outputs)
    order, true_order = found.inputs[:, 0].argsort(), truth.inputs[:, 0].argsort()
    assert float((found.inputs[order] - truth.inputs[true_order]).abs().max()) < 1e-10
    assert float((found.targets[order] - truth.targets[true_order]).abs().max()) < 1e-9


@pytest.mark.parametrize("loss", ["mse", "bce_with_logits"])
def test_first_order_attacks_search_targets_too(loss: str) -> None:
    case = setting(_net(3, nn.Tanh), _truth(loss, 1, 3), loss=loss)
    attack = InvertingGradients(iterations=400, restarts=1)
    found = attack(case.update, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < 1e-6
    # The cosine does not tell the length of an update, nor therefore how far a target is off.
    assert found.targets.shape == case.truth.targets.shape
    assert bool(found.targets.isfinite().all())


def test_hard_labels_lie_on_the_border_of_what_is_searched() -> None:
    form = Shares(shape=(2,))
    assert form.bounds == (0.0, 1.0)
    hard = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    assert torch.equal(form.read(form.flat(hard)), hard)
    assert FreeTargets(shape=()).entries == 1
    started = form.start(torch.randn(1000, generator=_generator()))
    assert 0 <= float(started.min()) < 0.05 < 0.95 < float(started.max()) <= 1


def test_the_form_goes_by_the_loss() -> None:
    assert form_of("mse") is form_of("MSELoss(reduction=sum)") is FreeTargets
    assert form_of("bce_with_logits") is form_of("BCEWithLogitsLoss(pos_weight=[1])") is form_of("BCELoss()") is Shares
    assert form_of("nll") is form_of("L1Loss()") is form_of("mse_of_my_own") is None


def test_a_loss_of_ones_own_is_refused_with_what_to_write() -> None:
    def mine(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean()

    case = setting(_net(1, nn.Tanh), _truth("mse", 1, 1), loss=mine)
    with pytest.raises(
        KnowledgeError, match=r"squared error and binary cross entropy .*HonestButCurious\(targets=True"
    ):
        Inversion(labels=LabelPolicy.OPTIMIZE)(case.update, case.knowledge, generator=_generator())

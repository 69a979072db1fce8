"""Per-example gradients against autograd on one example at a time, and the models that have none."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Objective, Release, example_gradients, mean_gradient
from gradleak.defenses import ClipPerExample
from gradleak.models import transformer
from gradleak.protocols import FedSGD
from gradleak.results import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

INPUTS = torch.rand(3, 4, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1])
BATCH = Batch(INPUTS, LABELS)


class Recurrent(nn.Module):
    """Has no batching rule."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells = kind(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


class Decides(nn.Module):
    """Control flow that depends on the data, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x.flatten(1))
        return out * 2 if x.sum().item() > 0 else out


def flat_net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.parametrize(
    "model", [flat_net(), Recurrent(nn.GRU), Recurrent(nn.LSTM), Decides()], ids=["mlp", "gru", "lstm", "control flow"]
)
def test_they_are_those_of_one_example_batches(model: nn.Module) -> None:
    model.double()
    objective = Objective.from_module(model)
    found = example_gradients(objective, objective.params, BATCH)
    for place in range(3):
        loss = F.cross_entropy(model(INPUTS[place : place + 1]), LABELS[place : place + 1])
        for rows, expected in zip(found.values(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            torch.testing.assert_close(rows[place], expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("reduction", "factor"), [("mean", 1.0), ("sum", 3.0)]
)  # fmt: skip
def test_without_a_bite_the_mean_is_the_gradient_of_a_mean_loss(reduction: str, factor: float) -> None:
    """And a third of the gradient of a sum over three examples, as documented."""
    objective = Objective.from_module(flat_net().double(), loss=nn.CrossEntropyLoss(reduction=reduction))
    plain = mean_gradient(objective, objective.params, BATCH)
    found = mean_gradient(objective, objective.params, BATCH, [ClipPerExample(1e9)])
    for name in plain:
        torch.testing.assert_close(factor * found[name], plain[name], rtol=1e-11, atol=1e-14)


def test_a_dropout_mask_is_that_of_a_batch_of_one() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 40), nn.Dropout(0.5), nn.Linear(40, 3)).double()
    objective = Objective.from_module(model, mode="train", mask_seed=3)
    found = example_gradients(objective, objective.params, BATCH)
    for place in range(3):
        alone = objective.gradient(objective.params, BATCH.example(place))
        for name in alone:
            torch.testing.assert_close(found[name][place], alone[name], rtol=1e-11, atol=1e-14)


def mixing(kind: str) -> nn.Module:
    if kind == "BatchNorm":
        return nn.Sequential(nn.Flatten(), nn.Linear(24, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    if kind == "BatchNorm without statistics":
        return nn.Sequential(nn.Flatten(), nn.Linear(24, 5), nn.BatchNorm1d(5, track_running_stats=False))

    class Centers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x - x.mean(0)).flatten(1))

    return Centers()


@pytest.mark.parametrize(
    ("kind", "mode", "message"),
    [
        ("BatchNorm", "train", r"got one where it normalizes by the batch in 2; use mode='eval'"),
        ("BatchNorm without statistics", "eval", "normalizes by the batch in 2"),
        ("centers", "eval", "examples mix in its forward pass"),
    ],
)
def test_a_model_that_mixes_examples_is_refused(kind: str, mode: str, message: str) -> None:
    objective = Objective.from_module(mixing(kind).double(), mode=mode)
    release = Release(FedSGD(), [ClipPerExample(1.0)])
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=message):
            release(objective, BATCH, generator=torch.Generator())
    Release(FedSGD())(objective, BATCH, generator=torch.Generator())


def test_whether_examples_mix_is_tried_ever_more_rarely_in_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, ...]] = []
    of_examples = importlib.import_module("gradleak.core.example_gradients")
    mixes = of_examples._mixes

    def counting(objective: Objective, shape: tuple[int, ...], *, ids: bool) -> bool:
        tried.append(shape)
        return bool(mixes(objective, shape, ids=ids))

    monkeypatch.setattr(of_examples, "_mixes", counting)
    objective = Objective.from_module(nn.Linear(4, 2))
    batch = Batch(torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1]))
    for _ in range(9):
        example_gradients(objective, objective.params, batch)
        objective = replace(objective, params={name: tensor / 2 for name, tensor in objective.params.items()})
    assert tried == [(4,)] * 4  # at calls 1, 2, 4 and 8


def test_a_gate_that_opens_in_a_training_is_seen() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.gate = nn.Linear(4, 2), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x - self.gate * x.mean(0))

    objective = Objective.from_module(Gated())
    batch = Batch(torch.rand(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1]))
    example_gradients(objective, objective.params, batch)
    opened = replace(objective, params=objective.params | {"gate": torch.tensor(0.5)})
    with pytest.raises(UnsupportedError, match="examples mix"):
        example_gradients(opened, opened.params, batch)


def test_batch_norm_in_eval_mode_is_fine() -> None:
    objective = Objective.from_module(mixing("BatchNorm").double())
    assert objective.batch_statistics == ()
    assert objective.in_mode("train").batch_statistics == ("2",)
    example_gradients(objective, objective.params, BATCH)


def test_they_pass_through_transforms() -> None:
    objective = Objective.from_module(flat_net().double())
    release = Release(FedSGD(), [ClipPerExample(0.2)])

    def g(x: Tensor) -> Tensor:
        return objective.flatten(release.mean(objective, objective.params, Batch(x, LABELS)))

    tangents = torch.eye(72, dtype=torch.float64).reshape(72, 3, 4, 6)
    forward = torch.func.vmap(lambda t: torch.func.jvp(g, (INPUTS,), (t,))[1])(tangents)
    reverse = torch.func.jacrev(g)(INPUTS).reshape(-1, 72).T
    torch.testing.assert_close(forward, reverse, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_examples_at_embeddings_of_their_ids_have_the_gradients_of_the_ids(count: int) -> None:
    network = transformer(words=20, length=5, width=8, blocks=1, classes=3, generator=torch.Generator().manual_seed(0))
    objective = Objective.from_module(network.double())
    ids = torch.randint(20, (count, 5), generator=torch.Generator().manual_seed(1))
    expected = example_gradients(objective, objective.params, Batch(ids, LABELS[:count]))
    at = objective.at_embeddings(ids)
    found = example_gradients(at, at.params, Batch(objective.embed(ids).detach(), LABELS[:count]))
    for name, rows in expected.items():
        torch.testing.assert_close(found[name], rows, rtol=1e-12, atol=1e-14)

"""Objective without what its evaluation does not read."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradleak import models
from gradleak.core import Batch, Objective
from gradleak.core.sealed import lean

INPUTS = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
BATCH = Batch(INPUTS, torch.tensor([0, 1, 1]))


class Keeping(nn.Module):
    """A linear layer with five tables; a subclass says what becomes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.first, self.second = torch.ones(2), {"rows": [torch.ones(2)]}
        self.numbers, self.few, self.text = list(range(9)), [1, 2], "a text"
        self.register_buffer("third", torch.ones(2))
        self.register_buffer("fourth", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def kept(model: Keeping, batch: Batch = BATCH, **options: Any) -> set[str]:
    """The tables that stay, after a check that everything else does and that the gradient is the same."""
    objective = Objective.from_module(model, **options)
    made = lean(objective, batch)
    assert lean(objective, batch) is made
    one, two = (each.gradient(each.params, batch) for each in (objective, made))
    assert all(torch.equal(one[name], two[name]) for name in one)
    module = made._module
    assert (module.few, module.text) == ([1, 2], "a text")
    assert {name for name in made.buffers if "." not in name} == set(module._buffers)
    return {name for name in ("first", "second", "numbers") if name in vars(module)} | set(module._buffers)


def test_what_is_not_read_is_left_out_and_named() -> None:
    assert kept(Keeping()) == set()
    notes = lean(Objective.from_module(Keeping()), BATCH).notes
    assert notes == ("kept from attacks, since no evaluation reads it: first, second, numbers, third, fourth",)
    many = nn.Sequential(Keeping(), Keeping())
    many[1].layer = nn.Linear(2, 2)
    assert lean(Objective.from_module(many), BATCH).notes[0].endswith("0.third, 0.fourth, 5 more")


@pytest.mark.parametrize(
    ("forward", "stays"),
    [
        (lambda self, x: self.layer(x) + self.first, {"first"}),
        (lambda self, x: self.layer(x) * self.second["rows"][0] + self.third, {"second", "third"}),
        (lambda self, x: self.layer(x) + getattr(self, "fourth", 0), {"fourth"}),
        (lambda self, x: self.layer(x) + (1 if hasattr(self, "numbers") else 0), {"numbers"}),
        (lambda self, x: self.layer(x) + vars(self)["few"][0], {"first", "second", "numbers", "third", "fourth"}),
        (lambda self, x: self.layer(x) + sum(one.sum() for one in self.buffers()), {"third", "fourth"}),
        (lambda self, x: self.layer(x) + self.first if len(x) == 1 else self.layer(x), {"first"}),
        (lambda self, x: self.layer(x) + self.first if torch.is_grad_enabled() else self.layer(x), {"first"}),
        (lambda self, x: setattr(self, "first", x) or self.layer(self.first), set()),
        (lambda self, x: setattr(self, "first", self.first + 1) or self.layer(x), {"first"}),
        (
            lambda self, x: self.layer(x) + self.first if len(x) == 1 else setattr(self, "first", x) or self.layer(x),
            {"first"},
        ),
        (lambda self, x: setattr(self, "third", x) or self.layer(self.third), set()),
    ],
)
def test_what_is_read_before_it_is_written_stays(forward: Any, stays: set[str]) -> None:
    kind = type("Kind", (Keeping,), {"forward": forward})
    assert kept(kind()) == stays


def test_what_only_the_loss_reads_stays_in_the_loss() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.other = torch.ones(2), torch.ones(3)

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(outputs * self.table, targets)

    made = lean(Objective.from_module(nn.Linear(4, 2), loss=Loss()), BATCH)
    assert "table" in vars(made._loss)
    assert "other" not in vars(made._loss)
    assert made.notes == ("kept from attacks, since no evaluation reads it: loss.other",)


def test_the_models_of_the_package_hold_nothing_to_leave_out() -> None:
    for make in (
        models.lenet_i2f,
        models.lenet_dlg,
        models.lenet5,
        models.resnet8,
        models.resnet18,
        models.text_classifier,
    ):
        objective = Objective.from_module(make())
        assert lean(objective, BATCH) is objective, "found out without an evaluation"
    for layer in (
        nn.LSTM(4, 2),
        nn.TransformerEncoderLayer(4, 2, 3),
        nn.BatchNorm1d(4),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
    ):
        objective = Objective.from_module(layer, mode="train")
        assert lean(objective, BATCH) is objective


def test_running_statistics_stay_in_layers_derived_from_torch_s() -> None:
    class Normalizing(nn.BatchNorm1d):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self.register_buffer("last", torch.ones(2))

    objective = Objective.from_module(nn.Sequential(Normalizing(4), nn.Linear(4, 2)), mode="train")
    made = lean(objective, BATCH)
    assert set(made.buffers) == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}


def test_a_buffer_of_two_names_goes_by_name() -> None:
    class Second(Keeping):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.fourth

    model = Second()
    model.fourth = model.third
    objective = Objective.from_module(model)
    assert set(objective.buffers) == {"third"}
    made = lean(objective, BATCH)
    assert set(made.buffers) == {"fourth"}
    assert torch.equal(made.outputs(made.params, INPUTS), objective.outputs(objective.params, INPUTS))


def test_everything_stays_where_the_model_cannot_be_evaluated_or_changes() -> None:
    class Failing(Keeping):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    class Secretive(Keeping):
        """Reads a table by a way that cannot be seen."""

        def forward(self, x: Tensor) -> Tensor:
            table = object.__getattribute__(self, "__dict__").get("first")
            return self.layer(x) * (2 if table is None else 1)

    for kind in (Failing, Secretive):
        objective = Objective.from_module(kind())
        assert lean(objective, BATCH) is objective


def test_torch_is_as_before_afterwards_and_other_threads_see_nothing() -> None:
    before = {
        name: vars(nn.Module).get(name) for name in ("__getattribute__", "__getattr__", "__setattr__", "__delattr__")
    }

    class Asking(Keeping):
        def forward(self, x: Tensor) -> Tensor:
            other = threading.Thread(target=lambda: getattr(self, "first", None))
            other.start()
            other.join()
            return self.layer(x)

    class Failing(Keeping):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    assert kept(Asking()) == set()
    with pytest.raises(KeyboardInterrupt):
        lean(Objective.from_module(Failing()), BATCH)
    assert {name: vars(nn.Module).get(name) for name in before} == before


def test_tensors_are_shared_and_the_objective_stays_as_it_is() -> None:
    objective = Objective.from_module(Keeping())
    made = lean(objective, BATCH)
    assert made.params["layer.weight"] is objective.params["layer.weight"]
    assert "first" in vars(objective._module)
    assert set(objective.buffers) == {"third", "fourth"}
    assert lean(objective, BATCH.example(0)) is not made

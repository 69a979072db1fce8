from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import prune

from gradleak.core import Batch, Objective
from gradleak.core.module_copy import private_copy, unwrap
from gradleak.results import InputError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first compile

INPUTS = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
BATCH = Batch(INPUTS, torch.tensor([0, 1, 1]))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


class GradSampleModule(nn.Module):
    """Stands in for the wrapper of per-sample gradient libraries: hooks that are its methods, a part `_module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self.captured: list[Any] = []
        for part in module.modules():
            if not list(part.children()):
                part.register_forward_hook(self.capture)
                part.register_full_backward_hook(self.capture)

    def capture(self, *values: Any) -> None:
        self.captured.append(values)

    def forward(self, x: Tensor) -> Tensor:
        return self._module(x)


@pytest.mark.parametrize(
    "wrap",
    [
        torch.compile,
        nn.DataParallel,
        GradSampleModule,
        lambda m: nn.DataParallel(torch.compile(m)),
        lambda m: torch.compile(nn.DataParallel(m)),
        lambda m: GradSampleModule(torch.compile(m)),
        lambda m: nn.DataParallel(checkpoint_wrapper(m)),
    ],
)
def test_wrappers_are_taken_off(wrap: Any) -> None:
    plain = net()
    expected = Objective.from_module(plain)
    wrapped = wrap(plain)
    names = [name for name, _ in wrapped.named_parameters()]
    objective = Objective.from_module(wrapped)
    assert unwrap(wrapped) is plain
    assert list(objective.params) == list(expected.params)
    assert objective.renamed["0.weight"] == names[0] != "0.weight"
    assert objective.renamed["1.running_mean"].endswith("1.running_mean")
    assert expected.renamed == {}
    for mine, theirs in zip(
        objective.gradient(objective.params, BATCH).values(),
        expected.gradient(expected.params, BATCH).values(),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    assert getattr(wrapped, "captured", []) == []
    assert [name for name, _ in wrapped.named_parameters()] == names


def test_wrapped_parts_are_taken_out_wherever_they_hang() -> None:
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            part = torch.compile(nn.Linear(4, 4))
            self.first, self.second = part, part
            self.more = nn.ModuleList([nn.DataParallel(nn.Sequential(torch.compile(nn.Linear(4, 2))))])

        def forward(self, x: Tensor) -> Tensor:
            return self.more[0](torch.tanh(self.second(torch.tanh(self.first(x)))))

    model = Shares()
    objective = Objective.from_module(model)
    assert list(objective.params) == ["first.weight", "first.bias", "more.0.0.weight", "more.0.0.bias"]
    assert objective.renamed["more.0.0.weight"] == "more.0.module.0._orig_mod.weight"
    assert objective.tied == {"second.weight": "first.weight", "second.bias": "first.bias"}
    assert type(objective._module.second) is nn.Linear
    assert type(model.second).__name__ == "OptimizedModule"
    plain = torch.tanh(model.second._orig_mod(torch.tanh(model.first._orig_mod(INPUTS))))
    expected = model.more[0].module[0]._orig_mod(plain)
    torch.testing.assert_close(objective.outputs(objective.params, INPUTS), expected)


@pytest.mark.parametrize("attribute", ["_module", "module", "_orig_mod"])
def test_a_model_that_calls_a_part_of_itself_like_a_wrapper_is_left_whole(attribute: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, attribute, nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return 3.0 * getattr(self, attribute)(x)

    model = Scaled()
    objective = Objective.from_module(model)
    assert list(objective.params) == [f"{attribute}.weight", f"{attribute}.bias"]
    torch.testing.assert_close(objective.outputs(objective.params, INPUTS), model(INPUTS))


def test_hooks_that_compute_weights_stay_and_others_go() -> None:
    model = net()
    seen: list[Any] = []
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    model[0].register_forward_hook(lambda *values: seen.append(values))
    model[2].register_forward_pre_hook(lambda *values: seen.append(values))
    private, notes, _ = private_copy(model)
    assert notes == ("hooks of 0 are not run", "hooks of 2 are not run")
    with torch.no_grad():
        torch.testing.assert_close(private.eval()(INPUTS), model.eval()(INPUTS))
    assert len(seen) == 2, "only the call of the model itself may be seen"
    objective = Objective.from_module(model)
    assert "0.weight_orig" in objective.params
    gradient = objective.gradient(objective.params, BATCH)["0.weight_orig"]
    assert torch.equal(gradient == 0, objective.buffers["0.weight_mask"] == 0)


def test_a_model_with_activations_stored_from_training_can_be_audited() -> None:
    class Stores(nn.Linear):
        last: Any = None

        def forward(self, x: Tensor) -> Tensor:
            self.last = super().forward(x)
            return self.last

    model = Stores(4, 2)
    model(INPUTS).sum().backward()
    kept = model.last
    objective = Objective.from_module(model)
    objective.gradient(objective.params, BATCH)
    assert model.last is kept
    assert not objective._module.last.requires_grad


def test_what_cannot_be_copied_is_named() -> None:
    class Locked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.guard = threading.Lock()

    with pytest.raises(UnsupportedError, match=r"cannot be copied \(cannot pickle '_thread.lock' object\).*untouched"):
        Objective.from_module(Locked())


def test_wrappers_that_are_taken_off_are_noted() -> None:
    linear = nn.Linear(2, 2)
    assert Objective.from_module(linear).notes == ()
    assert Objective.from_module(nn.DataParallel(linear)).notes == ("DataParallel is taken off the model",)
    assert Objective.from_module(torch.compile(linear)).notes == ("OptimizedModule is taken off the model",)
    inner = nn.Sequential(nn.Identity(), nn.DataParallel(linear))
    assert Objective.from_module(inner).notes == ("DataParallel is taken off 1",)


def test_layers_that_draw_are_named() -> None:
    module = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.0), nn.RReLU(), nn.TransformerEncoderLayer(4, 2, 4, dropout=0.1)
    )
    objective = Objective.from_module(module)
    assert objective.random_layers == ()
    names = ("1", "3", "4.dropout", "4.dropout1", "4.dropout2")
    assert objective.in_mode("train").random_layers == names
    assert Objective.from_module(nn.LSTM(2, 2, 2, dropout=0.1), mode="train").random_layers == ("LSTM",)
    assert Objective.from_module(nn.LSTM(2, 2, 2), mode="train").random_layers == ()


def test_complex_parameters_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_parameter("phase", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    with pytest.raises(UnsupportedError, match=r"expected real parameters, got torch\.complex64 in 0\.phase"):
        Objective.from_module(module)


def test_parameters_without_values_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="got none in weight; run a lazy model once"):
        Objective.from_module(nn.LazyLinear(3))
    with pytest.raises(InputError, match="got none in weight"):
        Objective.from_module(nn.Linear(4, 2, device="meta"))

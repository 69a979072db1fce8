"""Copies that share nothing with their originals."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.core import HonestButCurious, Knowledge, Objective, Update, fresh, sealed
from gradleak.protocols import FedAvg, FedSGD, SecureAggregation
from gradleak.results import Settings, UnsupportedError


def knowledge(module: nn.Module, loss: Any = "cross_entropy") -> Knowledge:
    return Knowledge(objective=Objective.from_module(module, loss=loss), protocol=FedSGD())


def test_a_slice_comes_without_the_memory_around_it() -> None:
    whole = torch.arange(100.0)
    (copied,) = sealed([Update(tensors={"weight": whole[10:13]})])
    assert copied.tensors["weight"].tolist() == [10.0, 11.0, 12.0]
    assert copied.tensors["weight"].untyped_storage().nbytes() == 12


def test_layout_dtype_and_gradient_flags_stay() -> None:
    images = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    table = {
        "images": images,
        "leaf": torch.ones(2, requires_grad=True),
        "same": images,
        "weight": nn.Parameter(torch.ones(3)),
    }
    table["leaf"].grad = torch.ones(2)
    ((copied, again),) = sealed([(table, table)])
    assert again is copied
    assert copied["images"].stride() == images.stride()
    assert torch.equal(copied["images"], images)
    assert copied["images"] is copied["same"]
    assert copied["leaf"].requires_grad
    assert copied["leaf"].grad is None
    assert isinstance(copied["weight"], nn.Parameter)


def test_a_model_and_its_parameters_share_one_copy() -> None:
    (copied,) = sealed([knowledge(nn.Linear(3, 2))])
    objective = copied.objective
    (weight, _) = objective._module.parameters()
    assert objective.params["weight"].data_ptr() == weight.data_ptr()
    whole = torch.arange(6.0)
    ((half, again, turned),) = sealed([(whole[:3], whole[:3], whole.reshape(2, 3))])
    assert half.data_ptr() == again.data_ptr() != turned.data_ptr()
    assert half.untyped_storage().nbytes() == 12


def test_tensors_with_a_graph_and_attributes_come_without_them() -> None:
    secret = torch.rand(4, requires_grad=True)
    made = secret * 2
    made.note = secret
    ((copied,),) = sealed([(made,)])
    assert copied.grad_fn is None
    assert not vars(copied)
    assert torch.equal(copied, made.detach())


def test_closures_defaults_and_functions_in_functions_are_copied() -> None:
    weight, shift = torch.ones(3), [torch.zeros(3)]

    def inner(outputs: Tensor) -> Tensor:
        return outputs * weight

    def loss(outputs: Tensor, targets: Tensor, *, moved: list[Tensor] = shift) -> Tensor:
        return (inner(outputs) + moved[0]).sum()

    given = knowledge(nn.Linear(2, 3), functools.partial(loss, moved=[torch.ones(3)]))
    ((copied,),) = sealed([(given,)])
    values = torch.tensor([[1.0, 2.0, 3.0]])
    assert copied.objective.loss_of_outputs(values, torch.zeros(1)) == given.objective.loss_of_outputs(
        values, torch.zeros(1)
    )
    weight.zero_()
    assert given.objective.loss_of_outputs(values, torch.zeros(1)) == 3.0
    assert copied.objective.loss_of_outputs(values, torch.zeros(1)) == 9.0


def test_functions_without_data_stay_themselves() -> None:
    def plain(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum()

    pool = torch.nn.functional.max_pool2d
    ((one, two),) = sealed([(plain, pool)])
    assert one is plain
    assert two is pool


def test_a_function_that_calls_itself_calls_its_copy() -> None:
    data = torch.ones(1)

    def down(number: int) -> Any:
        return data if number == 0 else down(number - 1)

    (copied,) = sealed([down])
    assert copied is not down
    assert copied(3) is copied(0)
    assert copied(3) is not data


def test_what_cannot_be_copied_is_refused() -> None:
    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return outputs.sum()

    with pytest.raises(UnsupportedError, match=r"cannot be copied \(cannot pickle '_thread.lock' object\).*locks"):
        sealed([knowledge(nn.Linear(2, 3), Locked())])


class Stubborn:
    """Copies as itself."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __deepcopy__(self, memo: Any) -> Stubborn:
        return self

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum()


@pytest.mark.parametrize("inside", [torch.ones(3), [np.ones(3)], {"part": nn.Linear(2, 2)}])
def test_what_copies_as_itself_is_refused_by_name(inside: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"_loss\.inside.*is still the auditor's own.*__deepcopy__"):
        sealed([knowledge(nn.Linear(2, 3), Stubborn(inside))])


def test_a_module_that_copies_as_itself_is_refused_by_name() -> None:
    class Shared(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Shared:
            return self

    class SharedWeight(nn.Linear):
        def __deepcopy__(self, memo: Any) -> SharedWeight:
            made = SharedWeight(2, 2)
            made.weight = self.weight
            return made

    for kind, place in ((Shared, "0"), (SharedWeight, r"0\.weight")):
        with pytest.raises(UnsupportedError, match=rf"the copy of {place} is the original"):
            Objective.from_module(nn.Sequential(kind(2, 2), nn.Linear(2, 3)))
    with pytest.raises(UnsupportedError, match="the loss cannot be copied: the copy of 0 is the original"):
        Objective.from_module(nn.Linear(2, 2), loss=nn.Sequential(Shared(2, 2)))


@dataclass(frozen=True, kw_only=True)
class Derived(Settings):
    """Settings with a number that follows from them, and a protocol."""

    size: int = 3
    protocol: Any = field(default_factory=FedSGD)

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", list(range(self.size)))


def test_settings_are_built_anew_where_they_hold_more_than_their_fields() -> None:
    plain = FedAvg(learning_rate=0.1)
    assert fresh(plain) is plain
    made = Derived(size=2)
    made.table.append("a batch")
    object.__setattr__(made, "last", "a batch")
    assert vars(fresh(made)) == {"size": 2, "protocol": FedSGD(), "table": [0, 1]}
    around = SecureAggregation(protocol=FedAvg(learning_rate=0.1), examples=[1, 2])
    object.__setattr__(around.protocol, "last", "a batch")
    assert fresh(around) == around
    assert not hasattr(fresh(around).protocol, "last")
    assert fresh(around) is not around


def test_knowledge_without_a_model_is_copied() -> None:
    assert sealed([Knowledge(batch_size=3)])[0].batch_size == 3
    assert sealed([]) == []
    assert HonestButCurious().batch_size

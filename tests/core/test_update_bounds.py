"""An update is valid once it exists: names, tensors and facts are checked and bounded, whoever made it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Objective, Update
from gradleak.core.update import MOST_NOTES
from gradleak.core.update_files import MOST_TENSORS
from gradleak.results import InconsistentUpdateError, InputError

ONE = {"w": torch.ones(2)}
PLACE = torch.zeros(1, 1, dtype=torch.int64)
HUGE = torch.sparse_coo_tensor(PLACE, torch.ones(1), (10**13,), check_invariants=True)


def deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def round_table() -> dict[str, Any]:
    table: dict[str, Any] = {}
    table["self"] = table
    return table


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([np.ones(2)], r"expected a dict of tensors by name, got list; write Update\(tensors=dict\(zip"),
        ([torch.ones(2)], "which is read in the order of the model's parameters"),
        (np.ones(2), "got ndarray"),
        (torch.ones(2), "got Tensor"),
        (nn.Linear(1, 1).named_parameters(), "got generator"),
        (nn.Linear(1, 1), "got Linear"),
        (None, "got NoneType"),
        ({}, "expected at least one tensor"),
        (dict.fromkeys(map(str, range(MOST_TENSORS + 1)), torch.ones(1)), "at most 50000, got 50001"),
        ({"w": np.ones(2)}, r"got ndarray for w; write torch.as_tensor"),
        ({"w": [1.0]}, r"got list for w"),
        ({"w": None}, r"got NoneType for w; write torch.zeros_like\(p\) for p.grad"),
        ({0: torch.ones(1)}, r"got 0 \(int\); rename the tensor, as text"),
        ({"a" * 1001: torch.ones(1)}, "of at most 1000 letters .* of 1001 letters"),
        ({"a" * 10**6: torch.ones(1)}, r"got 'aaa.* \.\.\. of 1000000 letters"),
        ({"w\0": torch.ones(1)}, r"got 'w\\x00'"),
        ({"\u202ew": torch.ones(1)}, r"got '\\u202ew'"),
        ({"w\x1b[2J": torch.ones(1)}, r"got 'w\\x1b"),
        ({"w\n": torch.ones(1)}, "can be printed"),
        ({"\ud800": torch.ones(1)}, "can be printed"),
        ({"w": torch.ones(2, device="meta")}, "expected plain dense tensors .* on meta for w"),
        ({"w": torch.ones(1).reshape((1,) * 65)}, "of at most 64 axes"),
        ({"w": torch.zeros(1).expand(10**13)}, "40000000000000 bytes in a smaller one for w"),
        ({"w": HUGE}, "expected plain dense tensors"),
    ],
)
def test_what_is_no_update_is_refused_in_one_line(tensors: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Update(tensors=tensors)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("provenance", "message"),
    [
        (5, "expected a dict of facts, got int"),
        ([("a", 1)], "got list"),
        ({"a": torch.ones(3)}, "do not enter a record"),
        ({"a": object()}, "got object"),
        ({"a": deep(100_000)}, "at most 90 deep in each other"),
        (round_table(), "at most 90 deep in each other"),
        ({"a": "x" * 2**20}, "expected at most 1048576 letters"),
        ({"a": 10**5000}, "expected facts as JSON holds them"),
    ],
)
def test_facts_are_bounded_json(provenance: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Update(tensors=ONE, provenance=provenance)


def test_facts_become_json_at_once() -> None:
    facts = Update(tensors=ONE, provenance={"a": float("nan"), "b": (1, {2}), 3: np.float32(0.5)}).provenance
    assert facts == {"a": None, "b": [1, [2]], "3": 0.5}


def test_gradients_of_sparse_embeddings_are_made_dense() -> None:
    for layer in (nn.Embedding(5, 2, sparse=True), nn.EmbeddingBag(5, 2, sparse=True, mode="sum")):
        layer(torch.tensor([[1, 3, 1]])).sum().backward()
        sent = layer.weight.grad
        assert sent is not None
        assert sent.is_sparse
        update = Update(tensors={"weight": sent})
        assert update.tensors["weight"].tolist() == [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]]
        assert update.align(Objective.from_module(layer)).zero_tensors() == []


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch: both kinds are not finished
def test_other_layouts_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"torch.sparse_csr on cpu for w; write tensor.to_dense\(\)"):
        Update(tensors={"w": torch.eye(2).to_sparse_csr()})
    for tensor in (
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    ):
        with pytest.raises(InputError, match=r"expected plain dense tensors.*tensor.dequantize\(\)"):
            Update(tensors={"w": tensor})


def test_tensors_made_in_inference_mode_can_be_attacked() -> None:
    with torch.inference_mode():
        made = torch.ones(2)
    kept = Update(tensors={"w": made}).tensors["w"]
    assert not kept.is_inference()
    point = torch.ones(2, requires_grad=True)
    (point * kept).sum().backward()
    assert point.grad is not None
    assert point.grad.tolist() == [1.0, 1.0]


def test_the_format_of_an_update_is_the_finest_whichever_comes_first() -> None:
    half, single = torch.ones(1, dtype=torch.float16), torch.ones(1)
    assert Update(tensors={"a": half, "b": single}).dtype == torch.float32
    assert Update(tensors={"a": single, "b": half}).dtype == torch.float32
    assert Update(tensors={"a": half, "b": half.bfloat16()}).dtype == torch.float16
    assert Update(tensors={"a": torch.ones(1, dtype=torch.int8), "b": half}).dtype == torch.float16
    assert Update(tensors={"a": torch.ones(1, dtype=torch.int8)}).dtype == torch.int8


@pytest.mark.parametrize(
    ("model", "value", "dtype"),
    [(torch.float32, 1e39, torch.float64), (torch.float16, 7e4, torch.float32), (torch.float16, 1e300, torch.float64)],
)
def test_numbers_beyond_the_format_of_the_model_are_refused(
    model: torch.dtype, value: float, dtype: torch.dtype
) -> None:
    known = Objective.from_module(nn.Linear(2, 1, bias=False).to(model))
    with pytest.raises(InputError, match=rf"that {model} holds.* larger ones in weight; undo the client's loss scale"):
        Update(tensors={"weight": torch.full((1, 2), value, dtype=dtype)}).align(known)
    tiny = torch.tensor([[5e-324, 1.0]], dtype=torch.float64)
    assert torch.equal(Update(tensors={"weight": tiny}).align(known).tensors["weight"], tiny)


def test_messages_and_notes_on_many_tensors_stay_short() -> None:
    known = Objective.from_module(nn.Linear(2, 1, bias=False))
    weight: dict[str, Tensor] = {"weight": torch.ones(1, 2)}
    extra = {f"extra{place}": torch.ones(1) for place in range(10_000)}
    with pytest.raises(InconsistentUpdateError, match=r"10000 unknown tensors\).*; and 9950 more\. Check") as caught:
        Update(tensors=weight | extra).align(known)
    assert len(str(caught.value)) < 5000
    with pytest.raises(InconsistentUpdateError, match=r"a list of 10000 tensors .* and 9950 more"):
        Update(tensors={str(place): torch.ones(1) for place in range(10_000)}).align(known)
    prefixes = ("", *("_orig_mod." * times for times in range(1, 9)))
    several = {f"{prefix}{'module.' * times}weight": torch.ones(1, 2) for times in range(1, 130) for prefix in prefixes}
    notes = Update(tensors=weight | several).align(known).alignment
    assert len(notes) == MOST_NOTES + 1
    assert notes[-1] == f"and {2 * len(several) - MOST_NOTES} more"
    twice = Update(tensors={"module.weight": torch.ones(1, 2)}).align(known).align(known)
    assert twice.alignment == ("module.weight read as weight",)

from __future__ import annotations

import pytest

from gradleak.results import InputError
from gradleak.risk import Consecutive, Partition, layer_groups

NAMES = ["0.weight", "0.bias", "block.1.weight", "block.1.bias", "block.2.weight"]


def test_by_tensor_and_by_layer() -> None:
    assert layer_groups(NAMES, "tensor") == {name: (name,) for name in NAMES}
    assert layer_groups(NAMES, Partition.LAYER) == {
        "0": ("0.weight", "0.bias"),
        "block.1": ("block.1.weight", "block.1.bias"),
        "block.2": ("block.2.weight",),
    }


def test_sets_of_consecutive_layers_overlap_and_have_one_fewer_than_layers() -> None:
    found = layer_groups(NAMES, Consecutive(count=2))
    assert list(found) == ["0 + block.1", "block.1 + block.2"]
    assert found["block.1 + block.2"] == ("block.1.weight", "block.1.bias", "block.2.weight")
    assert list(layer_groups(NAMES, Consecutive(count=9))) == ["0 + block.1 + block.2"]


def test_named_groups_take_tensors_layers_and_blocks_in_the_order_of_the_model() -> None:
    found = layer_groups(NAMES, {"all weights of the block": ["block.2", "block.1.weight"], "block": ["block"]})
    assert found["all weights of the block"] == ("block.1.weight", "block.2.weight")
    assert found["block"] == tuple(NAMES[2:])


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("layers", "by: expected one of tensor, layer"),
        ({"head": ["block1"]}, "group 'head' names 'block1', no shared tensor or layer; is it 'block.1'"),
        ({"head": []}, "expected groups such as"),
        ({"head": "0"}, "expected groups such as"),
        ({}, "expected groups such as"),
    ],
    ids=["word", "unknown", "empty", "text", "none"],
)
def test_refuses_other_groups(by: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        layer_groups(NAMES, by)  # type: ignore[arg-type]


def test_refuses_sets_of_no_layer() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Consecutive(count=0)

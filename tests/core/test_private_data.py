"""Search for copies of private data: found in every form that is promised, silent on what chance and habit bring."""

from __future__ import annotations

import ctypes
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradleak.core import Batch
from gradleak.core.object_walk import may_be_data
from gradleak.core.private_data import PrivateData


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(kind: str) -> Batch:
    inputs = torch.rand(12, 3, 8, 8, generator=drawn())
    if kind == "8 bits":
        inputs = (inputs * 255).round() / 255
    elif kind == "dark":
        inputs = (torch.relu(inputs - 0.7) * 850).round() / 255
    elif kind == "two levels":
        inputs = (inputs > 0.6).float()
    elif kind == "double":
        inputs = inputs.double()
    return Batch(inputs, torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]))


def written(save: Callable[..., Any], value: Any) -> io.BytesIO:
    """What `save` writes of a value, behind its header."""
    file = io.BytesIO()
    save(file, value)
    return file


SCALE, SHIFT = torch.tensor([0.2, 0.3, 0.1])[:, None, None], torch.tensor([0.4, 0.5, 0.6])[:, None, None]
COPIES: dict[str, Any] = {
    "batch": lambda x: x.clone(),
    "row": lambda x: x[3].clone(),
    "normalized": lambda x: (x - SHIFT) / SCALE,
    "channels last": lambda x: ((x - SHIFT) / SCALE).permute(0, 2, 3, 1).contiguous(),
    "permuted": lambda x: x[torch.randperm(12, generator=drawn(1))],
    "negative": lambda x: -x,
    "half": lambda x: ((x - SHIFT) / SCALE).half(),
    "list": lambda x: x[4].tolist(),
    "array": lambda x: np.asfortranarray(x.numpy()),
    "bytes": lambda x: x[1].numpy().tobytes(),
    "sparse": lambda x: x[2].flatten(1).to_sparse(),
    "complex": lambda x: torch.complex(x[2], torch.zeros_like(x[2])),
    "complex array": lambda x: x[2].numpy() + 1j,
    "array of objects": lambda x: np.array(x[2].flatten().tolist(), dtype=object),
    "field of a structured array": lambda x: np.rec.fromarrays([np.arange(192), x[2].flatten().numpy()], names="n, x"),
    "bytes of a tensor": lambda x: x[1].clone().view(torch.uint8),
    "array of C": lambda x: (ctypes.c_float * 192)(*x[1].flatten().tolist()),
    "column of rows": lambda x: [("name", n, value) for n, value in enumerate(x[4].flatten().tolist())],
}
RICH = {
    "crop": lambda x: x[2, 1, 1:5].clone(),
    "flipped": lambda x: x.flip(3),
    "shuffled pixels": lambda x: x.flatten(1)[:, torch.randperm(192, generator=drawn(2))],
    "by feature": lambda x: (x - x.mean(dim=0)) / x.std(dim=0),
    "transposed": lambda x: x.flatten(1).T.contiguous(),
    "bytes of levels": lambda x: (x * 255).round().to(torch.uint8),
    "bytes behind a header": lambda x: b"abc" + x[1].numpy().tobytes(),
    "file of numpy": lambda x: written(np.save, x[1].numpy()).getvalue(),
    "file of torch in memory": lambda x: written(lambda file, value: torch.save(value, file), x[1].clone()),
    "whole numbers": lambda x: ((x - SHIFT) / SCALE * 1000).round().to(torch.int32),
    "off the grid": lambda x: torch.cat([torch.zeros(5), x[3].flatten(), torch.ones(2)]),
    "set": lambda x: set(x[4, 0].flatten().tolist()),
    "scalars": lambda x: list(x[4, 0].flatten()),
    "tuple of arrays' numbers": lambda x: tuple(x[4, 0].flatten().numpy()),
}


@pytest.mark.parametrize("kind", ["real", "8 bits", "dark", "two levels", "double"])
@pytest.mark.parametrize("name", COPIES)
def test_copies_are_found(kind: str, name: str) -> None:
    batch = images(kind)
    assert PrivateData([batch]).among(COPIES[name](batch.inputs)) == "inputs"


@pytest.mark.parametrize("kind", ["real", "8 bits", "double"])
@pytest.mark.parametrize("name", RICH)
def test_copies_of_images_with_many_values_are_found_in_any_order(kind: str, name: str) -> None:
    batch = images(kind)
    assert PrivateData([batch]).among(RICH[name](batch.inputs)) == "inputs"


def test_quantized_copies_are_found() -> None:
    batch = images("real")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(batch.inputs, 1 / 255, 0, torch.quint8)
    assert PrivateData([batch]).among(quantized) == "inputs"


@pytest.mark.parametrize("kind", ["real", "8 bits", "dark", "two levels", "double"])
def test_what_models_hold_is_no_copy(kind: str) -> None:
    data = PrivateData([images(kind)])
    gaussian = torch.randn(64, 3, 8, 8, generator=drawn(3))
    others = [
        gaussian,
        gaussian.half(),
        torch.rand(100, 192, generator=drawn(4)),
        (torch.rand(100, 192, generator=drawn(4)) * 255).round().to(torch.uint8),
        torch.arange(192),
        torch.arange(192.0).reshape(3, 8, 8) / 191,
        torch.linspace(0, 1, 64),
        torch.zeros(12, 3, 8, 8),
        torch.ones(192),
        torch.eye(192),
        torch.eye(12),
        torch.ones(64, 64).tril(),
        (torch.rand(5000, generator=drawn(5)) > 0.5),
        torch.randint(0, 10, (5000,), generator=drawn(6)),
        list(range(10)),
        [0.485, 0.456, 0.406],
        "a text",
        7,
        None,
        b"",
        np.array(["a", "b"]),
        torch.tensor(3.0),
        torch.empty(0),
        torch.full((192,), float("nan")),
    ]
    assert [place for place, other in enumerate(others) if data.among(other) is not None] == []


def test_weights_may_depend_on_the_data_and_must_not_be_copies() -> None:
    batch = images("real")
    data = PrivateData([batch])
    assert data.among(0.3 * batch.inputs[0], exactly=True) is None
    assert data.among(0.3 * batch.inputs[0]) == "inputs"
    assert data.among(batch.inputs[0].clone(), exactly=True) == "inputs"


LABELS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
ONE_HOT = torch.nn.functional.one_hot(LABELS, 10)


@pytest.mark.parametrize(
    "copy",
    [
        LABELS.clone(),
        LABELS.float(),
        LABELS.to(torch.uint8),
        LABELS.numpy().astype(np.uint16),
        LABELS.tolist(),
        tuple(LABELS.numpy()),
        list(LABELS),
        {f"row {n}": int(label) for n, label in enumerate(LABELS)},
        [0, 0, *LABELS.tolist(), 7],
        ONE_HOT,
        ONE_HOT.bool(),
        ONE_HOT.float() * 0.8 + 0.02,
        ONE_HOT.T.contiguous(),
        ONE_HOT.tolist(),
        ONE_HOT[:, :10].flatten(),
        torch.nn.functional.one_hot(LABELS, 100),
        bytes(LABELS.tolist()),
        [(f"picture {n}.png", int(label)) for n, label in enumerate(LABELS)],
        torch.stack([torch.arange(8), LABELS], dim=1),
        np.array(LABELS.tolist(), dtype=object),
    ],
)
def test_labels_are_found_from_eight_on(copy: Any) -> None:
    inputs = torch.rand(8, 5, generator=drawn())
    assert PrivateData([Batch(inputs, LABELS)]).among(copy) == "labels"
    assert PrivateData([Batch(inputs, LABELS)], labels=False).among(copy) is None
    assert PrivateData([Batch(inputs, LABELS.float())]).among(copy) == "labels"
    assert PrivateData([Batch(inputs, ONE_HOT.float())]).among(copy) == "labels"
    assert PrivateData([Batch(inputs, torch.zeros(8), sensitive=LABELS)]).among(copy) == "sensitive variable"
    assert PrivateData([Batch(inputs[:7], LABELS[:7])]).among(copy) is None


@pytest.mark.parametrize("labels", [torch.zeros(9, dtype=torch.int64), torch.arange(9), torch.arange(18)[::2]])
def test_labels_without_a_secret_are_found_by_memory_alone(labels: Tensor) -> None:
    data = PrivateData([Batch(torch.rand(9, 5, generator=drawn()), labels)])
    for other in (torch.zeros(9), torch.arange(9), torch.eye(9), torch.arange(18)[::2].clone()):
        assert data.among(other) is None
    assert data.among(labels[3:5]) == "labels"
    assert data.among(labels.numpy()[-1:]) == "labels"


def test_binary_labels_are_no_part_of_a_long_mask() -> None:
    labels = torch.tensor([0, 1, 1, 0, 1, 0, 0, 0, 1, 1])
    data = PrivateData([Batch(torch.rand(10, 5, generator=drawn()), labels)])
    mask = torch.cat([torch.randint(0, 2, (4000,), generator=drawn(1)), labels])
    assert data.among(mask) is None
    assert data.among(torch.stack([1 - labels, labels], dim=1)[:, [0, 0, 1]]) is None
    assert data.among(labels.bool()) == "labels"


def test_regression_targets_are_data() -> None:
    targets = torch.rand(9, generator=drawn(1))
    data = PrivateData([Batch(torch.rand(9, 5, generator=drawn()), targets)])
    assert data.among(targets.tolist()) == "inputs"
    assert data.among(2 * targets + 1) == "inputs"


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_short_rows_are_found_exactly(size: int) -> None:
    rows = torch.rand(4, size, generator=drawn())
    data = PrivateData([Batch(rows, torch.zeros(4, dtype=torch.int64))])
    assert data.among(rows[2].tolist()) == "inputs"
    assert data.among(rows.numpy().copy()) == "inputs"
    assert data.among(torch.rand(1000, size, generator=drawn(1))) is None


def test_rows_of_few_bits_are_found_by_memory_alone() -> None:
    rows = torch.eye(4)
    data = PrivateData([Batch(rows, torch.zeros(4, dtype=torch.int64))])
    assert data.among(torch.eye(4)) is None
    assert data.among(rows[1]) == "inputs"


def test_memory_is_compared_entry_by_entry() -> None:
    table = torch.rand(20, 6, generator=drawn())
    data = PrivateData([Batch(table[::2, :4], torch.arange(10))])
    assert data.among(table[1::2]) is None
    assert data.among(table[:, 4:]) is None
    assert data.among(table[3:9, 3:]) == "inputs"
    assert data.among(table[:, :1].numpy()) == "inputs"
    assert data.among(table.untyped_storage()) == "inputs"


def test_batches_of_several_shapes_are_searched_for_together() -> None:
    first, second = images("real"), Batch(torch.rand(3, 20, generator=drawn(7)), torch.tensor([0, 1, 0]))
    data = PrivateData([first, second])
    assert data.among((second.inputs[1] - 3) / 7) == "inputs"
    assert data.among(first.inputs[2].flip(2)) == "inputs"
    assert data.among(torch.randn(60, 20, generator=drawn(8))) is None


def test_many_batches_take_little_memory_and_every_one_is_found() -> None:
    batches = [Batch(torch.rand(1, 1, 28, 28, generator=drawn(n)), torch.tensor([n % 10])) for n in range(700)]
    data = PrivateData(batches)
    for place in (0, 350, 699):
        assert data.among(batches[place].inputs.flatten().tolist()) == "inputs"
        assert data.among(2 * batches[place].inputs.clone() - 1) == "inputs"
    assert data.among(torch.rand(50, 784, generator=drawn(9_999))) is None


def test_what_may_carry_data() -> None:
    assert all(
        map(
            may_be_data,
            [
                torch.ones(1),
                np.ones(1),
                b"",
                torch.ones(1).untyped_storage(),
                [1] * 8,
                {1: 2.0, **dict.fromkeys("abcdefg", 1)},
            ],
        )
    )
    assert not any(map(may_be_data, [[1] * 7, ["a"] * 9, "text", 3, None, {"a": 1}]))

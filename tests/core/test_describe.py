from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from gradleak.core import Batch, Domain, Mode, Release, describe
from gradleak.defenses import Clip, GaussianNoise
from gradleak.protocols import FedSGD


class Color(Enum):
    RED = (1, 2)


@dataclass(frozen=True)
class Config:
    value: Any
    _hidden: int = 3
    derived: int = field(default=4, init=False)


SECRET = 0.73519264


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (float("inf"), "inf"),
        (float("nan"), None),
        (Mode.TRAIN, "train"),
        (Color.RED, "red"),
        (torch.float16, "float16"),
        (torch.device("cpu"), "cpu"),
        ((1, [2.5, "a"]), [1, [2.5, "a"]]),
        ({"b", "a"}, ["a", "b"]),
        (MappingProxyType({1: Mode.EVAL}), {"1": "eval"}),
        (torch.rand(2, 3, dtype=torch.float64), "float64[2, 3]"),
        (torch.tensor(SECRET), "float32[]"),
        (np.full((2, 2), SECRET), "float64[2, 2]"),
        (np.array(SECRET), "float64[]"),
        ([SECRET] * 784, "list[784]"),
        (describe, "describe"),
        (Config, "Config"),
        (Config(2), {"use": "Config", "value": 2}),
    ],
)
def test_forms(value: Any, expected: Any) -> None:
    described = describe(value)
    assert described == expected
    assert type(described) is type(expected)
    json.dumps(described, allow_nan=False)


def test_a_release_reads_like_its_constructor_calls() -> None:
    assert describe(Release(FedSGD(), [Clip(1.0), GaussianNoise(std=0.1)])) == {
        "use": "Release",
        "protocol": {"use": "FedSGD"},
        "defenses": [{"use": "Clip", "max_norm": 1.0}, {"use": "GaussianNoise", "std": 0.1}],
    }


@pytest.mark.parametrize(
    "holder",
    [
        torch.full((3,), SECRET),
        np.full(3, SECRET),
        Batch(torch.full((1, 4), SECRET), torch.tensor([SECRET]), Domain(shape=(4,)), torch.tensor([SECRET])),
        {"a": [torch.full((3,), SECRET)]},
        torch.nn.Parameter(torch.full((3,), SECRET)),
        object(),
    ],
)
def test_no_value_of_data_is_described(holder: Any) -> None:
    text = json.dumps(describe(Config(holder)), allow_nan=False)
    assert "0.735" not in text
    assert "735192" not in text

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, VerdictKind
from gradleak.results.score import jsonable


def make(**changes: Any) -> Score:
    settings: dict[str, Any] = {
        "name": "psnr",
        "value": 21.5,
        "unit": "dB",
        "leakier": Leakier.HIGHER,
        "evidence": Evidence.ATTACK,
    }
    return Score(**(settings | changes))


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.has_value is True])
def test_an_outcome_with_a_number_needs_one(outcome: Outcome) -> None:
    assert make(outcome=outcome).value == 21.5
    with pytest.raises(InputError, match=f"{outcome.label} needs a value"):
        make(outcome=outcome, value=None)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.has_value is False])
def test_an_outcome_without_a_number_refuses_even_zero(outcome: Outcome) -> None:
    assert make(outcome=outcome, value=None).value is None
    with pytest.raises(InputError, match="has no value, got 0"):
        make(outcome=outcome, value=0.0)


def test_not_identifiable_may_have_a_number_or_not() -> None:
    assert make(outcome=Outcome.NOT_IDENTIFIABLE, value=None).value is None
    assert make(outcome=Outcome.NOT_IDENTIFIABLE).value == 21.5


def test_nan_is_never_a_value() -> None:
    with pytest.raises(InputError, match="use outcome not_finite"):
        make(value=math.nan)
    with pytest.raises(InputError, match="low <= high"):
        make(interval=(0.0, math.nan))
    with pytest.raises(InputError, match="low <= high"):
        make(interval=(2.0, 1.0))


@pytest.mark.parametrize("number", [np.float32(1.5), np.float64(1.5), torch.tensor(1.5), np.array(1.5)])
def test_numbers_of_other_libraries_become_plain(number: Any) -> None:
    score = make(value=number, interval=(number, number), n=np.int64(3))
    assert type(score.value) is float
    assert score.value == 1.5
    assert score.interval == (1.5, 1.5)
    assert type(score.n) is int


@pytest.mark.parametrize("value", [1e-300, math.inf, -math.inf, 0.1, None])
def test_round_trip_through_json(value: float | None) -> None:
    outcome = Outcome.UNSUPPORTED if value is None else Outcome.PLATEAU
    score = make(value=value, outcome=outcome, interval=(-math.inf, 3.0), n=7, note="é", details={"rank": 3, "a": [1]})
    text = json.dumps(score.to_dict(), allow_nan=False)
    assert Score.from_dict(json.loads(text)) == score
    assert Score.from_dict(json.loads(text) | {"of a later version": 1}) == score


def test_to_dict_lists_the_fields_of_a_score_line() -> None:
    assert list(make().to_dict()) == [
        *("name", "value", "unit", "leakier", "evidence", "interval", "n", "outcome", "note", "details")
    ]


DAMAGES: list[dict[str, Any]] = [
    {"value": "many"}, {"outcome": "safe"}, {"outcome": None}, {"evidence": None}, {"interval": [1]}, {"unit": None},
    {"name": 3}, {"note": ["a"]}, {"details": None}, {"details": "x"}, {"n": float("inf")},
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damaged_line_is_refused(damage: Mapping[str, Any]) -> None:
    with pytest.raises(InputError, match="without a proper"):
        Score.from_dict(make().to_dict() | damage)
    incomplete = make().to_dict()
    del incomplete["unit"]
    with pytest.raises(InputError, match="unit"):
        Score.from_dict(incomplete)


def test_jsonable_takes_what_measures_produce() -> None:
    given_details = {
        "int": np.int64(3),
        "float": np.float32(0.5),
        "bool": np.bool_(True),
        "plain bool": True,
        "tensor": torch.tensor(2),
        "nan": float("nan"),
        "numpy nan": np.float32("nan"),
        "inf": torch.tensor(-math.inf),
        "tuple": (1, 2.5, None),
        "set": {"b", "a"},
        "outcome": Outcome.NO_SIGNAL,
        "kind": VerdictKind.LEAKS,
        "path": Path("pictures") / "a.png",
        3: {Evidence.EXACT: 1},
    }
    result = jsonable(given_details)
    assert result == {
        "int": 3,
        "float": 0.5,
        "bool": True,
        "plain bool": True,
        "tensor": 2,
        "nan": None,
        "numpy nan": None,
        "inf": "-inf",
        "tuple": [1, 2.5, None],
        "set": ["a", "b"],
        "outcome": "no_signal",
        "kind": "leaks",
        "path": "pictures/a.png",
        "3": {"exact": 1},
    }
    assert result["bool"] is True
    assert result["plain bool"] is True
    assert type(result["int"]) is int
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("data", [torch.rand(2), np.zeros(3), torch.rand(1, 1), object()])
def test_jsonable_lets_no_data_into_a_record(data: Any) -> None:
    with pytest.raises(InputError, match="do not enter a record"):
        jsonable({"x": [data]})


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_like)
def test_jsonable_is_strict_json_and_idempotent(value: Any) -> None:
    once = jsonable(value)
    assert json.loads(json.dumps(once, allow_nan=False)) == once
    assert jsonable(once) == once

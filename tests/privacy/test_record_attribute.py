"""Where an attribute stands in a record, and which records are valid: against what the table encodes."""

from __future__ import annotations

import pytest
import torch
from tests.privacy.setting import COLUMNS, FEATURES, table

from gradleak.data import Table
from gradleak.privacy import RecordAttribute, RecordConstraints
from gradleak.results import InputError


@pytest.mark.parametrize("encoding", ["one_hot", "codes"])
@pytest.mark.parametrize("name", ["sex", "color"])
def test_a_replaced_value_is_what_the_table_would_encode(name: str, encoding: str) -> None:
    rows = [(45, "green", "f", 40, "no"), (60, "red", "m", 10, "yes")]
    people = Table.from_rows(rows, columns=COLUMNS)
    attribute = RecordAttribute.of(people, name, without=["paid"], encoding=encoding)
    inputs, _ = people.inputs(without=["paid"], encoding=encoding)
    place = 1 if name == "color" else 2
    for value, text in enumerate(attribute.values):
        changed = [(*row[:place], text, *row[place + 1 :]) for row in rows]
        expected, _ = Table.from_rows(changed, columns=COLUMNS).inputs(without=["paid"], encoding=encoding)
        assert torch.equal(attribute.with_value(inputs, value), expected)
    assert [attribute.values[attribute.value_of(row)] for row in inputs] == [row[place] for row in rows]


def test_columns_that_are_left_out_move_the_entries() -> None:
    assert RecordAttribute.of(table(), "sex", without=["paid"]).places == (4, 5)
    assert RecordAttribute.of(table(), "sex", without=["paid", "color"]).places == (1, 2)


@pytest.mark.parametrize(
    ("name", "message"), [("age", "got a number"), ("paid", "got a label"), ("height", "expected one of its columns")]
)
def test_what_is_no_category_among_the_inputs_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RecordAttribute.of(table(), name, without=["paid"])


def test_codes_must_tell_values_apart() -> None:
    with pytest.raises(InputError, match="code of its own"):
        RecordAttribute(name="sex", values=("f", "m"), places=(0,), codes=torch.zeros(2, 1))


@pytest.mark.parametrize("encoding", ["one_hot", "codes"])
def test_real_rows_are_valid_and_random_numbers_become_so(encoding: str) -> None:
    people = table()
    inputs, _ = people.inputs(without=["paid"], encoding=encoding)
    rules = RecordConstraints.of(people, without=["paid"], encoding=encoding, rows=inputs)
    assert rules.holds(inputs)
    wild = 3 * torch.randn(50, inputs.shape[1], generator=torch.Generator().manual_seed(0))
    assert not rules.holds(wild)
    tamed = rules.nearest(wild)
    assert rules.holds(tamed)
    assert bool((tamed >= inputs.amin(dim=0)).all())
    assert bool((tamed <= inputs.amax(dim=0)).all())
    if encoding == "one_hot":
        assert torch.equal(tamed[:, 1:4].sum(dim=1), torch.ones(50))
        assert torch.equal(tamed[:, 1:4].argmax(dim=1), wild[:, 1:4].argmax(dim=1))
    else:
        assert set(tamed[:, 1].unique().tolist()) <= {0.0, 0.5, 1.0}


def test_numbers_are_kept_within_their_ranges_and_groups_are_left_alone() -> None:
    rules = RecordConstraints.of(table(), without=["paid"])
    wild = 3 * torch.randn(20, FEATURES, generator=torch.Generator().manual_seed(1))
    kept = rules.within(wild)
    assert torch.equal(kept[:, 1:6], wild[:, 1:6])
    assert torch.equal(kept[:, [0, 6]], wild[:, [0, 6]].clamp(0, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"high": -torch.ones(4)}, "low <= high"),
        ({"groups": ((1, 2), (2, 3))}, "one group"),
        ({"groups": ((3, 4),)}, "from 0 to 3"),
    ],
    ids=str,
)
def test_constraints_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"low": torch.zeros(4), "high": torch.ones(4)}
    with pytest.raises(InputError, match=message):
        RecordConstraints(**(given | changes))  # type: ignore[arg-type]

"""Tables of one's own: what becomes of a cell, and what is refused in one line that says where."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.core import DomainKind
from gradleak.data import Column, ColumnKind, Population, Table, raw_domain
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

COLUMNS = (
    Column(name="age", low=10.0, high=90.0),
    Column(name="paid", kind="amount", high=1000.0),
    Column(name="town", kind="category", values=("Ulm", "Ahlen", "?")),
    Column(name="eyes", kind="one_hot", members=("blue", "brown")),
    Column(name="sex", kind="category", values=("f", "m")),
    Column(name="owner", kind="label"),
    Column(name="class", kind="label", values=("no", "yes")),
)
TEXT = """blue, brown, age, paid, town, sex, owner, class, note
1,0,50,0,Ulm,f,zoe,yes,"a, b"
0,1,90,1000,?,m,abe,no,

0,1,10,99,Ahlen,f,zoe,yes,x
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(TEXT)
    return path


def changed(tmp_path: Path, old: str, new: str) -> Path:
    assert old in TEXT
    path = tmp_path / "other.csv"
    path.write_text(TEXT.replace(old, new, 1))
    return path


def test_inputs_are_those_written_out_by_hand(file: Path) -> None:
    table = Table.read(file, columns=COLUMNS)
    people = table.population(target="class", sensitive="sex", keep_sensitive=True, users="owner")
    log = math.log(100) / math.log(1001)
    expected = [
        # age, paid, Ulm, Ahlen, ?, blue, brown, f, m
        [0.5, 0.0, 1, 0, 0, 1, 0, 1, 0],
        [1.0, 1.0, 0, 0, 1, 0, 1, 0, 1],
        [0.0, log, 0, 1, 0, 0, 1, 1, 0],
    ]
    torch.testing.assert_close(people.inputs, torch.tensor(expected))
    assert people.targets.tolist() == [1, 0, 1]
    assert people.sensitive.tolist() == [0, 1, 0]
    assert tuple(people.values) == ("f", "m")
    assert people.users is not None
    assert people.users.tolist() == [1, 0, 1]
    assert table.column("owner").values == ("abe", "zoe")
    assert people.domain is not None
    assert (people.domain.shape, people.domain.kind) == ((9,), DomainKind.TABULAR)


def test_a_property_is_no_input_and_an_attribute_is_one(file: Path) -> None:
    table = Table.read(file, columns=COLUMNS)
    inside = table.population(target="class", sensitive="eyes", keep_sensitive=True)
    outside = table.population(target="class", sensitive="eyes", keep_sensitive=False)
    assert torch.equal(outside.inputs, inside.inputs[:, [0, 1, 2, 3, 4, 7, 8]])
    assert torch.equal(inside.sensitive, inside.inputs[:, 5:7].argmax(dim=1))
    assert tuple(outside.values) == ("blue", "brown")
    _, names = table.inputs(without=["eyes", "town", "class"])
    assert names == ("age", "paid", "sex=f", "sex=m")


def test_what_is_known_of_every_row_is_encoded_like_inputs(file: Path) -> None:
    table = Table.read(file, columns=COLUMNS)
    people = table.population(target="class", sensitive="sex", keep_sensitive=False, side=["age", "class"])
    assert people.side is not None
    assert people.side.tolist() == [[0.5, 0, 1], [1, 1, 0], [0, 0, 1]]
    with pytest.raises(InputError, match="no column that holds the sensitive variable sex"):
        table.population(target="class", sensitive="sex", keep_sensitive=False, side=["sex"])


def test_a_number_is_cut_into_bins_as_numpy_does_and_goes_out_with_them() -> None:
    ages = np.random.default_rng(0).integers(0, 100, 300)
    rows = [(age, "b" if age % 2 else "a", age) for age in ages]
    columns = [Column(name="age", high=99.0), Column(name="c", kind="category", values=("a", "b")), Column(name="copy")]
    table = Table.from_rows(rows, columns=columns).cut("age", edges=(30, 60))
    assert table.cells["age bin"].tolist() == np.digitize(ages, [30, 60], right=True).tolist()
    assert table.column("age bin").values == ("up to 30", "above 30, up to 60", "above 60")
    with pytest.raises(InputError, match="column copy: expected its range"):
        table.population(target="c", sensitive="age bin", keep_sensitive=True)
    with pytest.raises(InputError, match="at least one column for the inputs"):
        table.population(target="c", sensitive="age bin", keep_sensitive=False, without=["copy"])
    inside = table.population(target="c", sensitive="age bin", keep_sensitive=True, without=["copy"])
    torch.testing.assert_close(inside.inputs[:, 0], torch.tensor(ages / 99, dtype=torch.float32))
    with pytest.raises(InputError, match="among the inputs with keep_sensitive=True"):
        table.population(target="c", sensitive="age bin", keep_sensitive=True, without=["age"])


def test_regression_targets_are_numbers_in_a_column_of_their_own(file: Path) -> None:
    table = Table.read(file, columns=COLUMNS)
    people = table.population(target="age", sensitive="sex", keep_sensitive=False, regression=True)
    assert people.targets.tolist() == [[0.5], [1.0], [0.0]]
    raw = Table.read(file, columns=[Column(name="paid"), *COLUMNS[2:]])
    assert raw.population(target="paid", sensitive="sex", keep_sensitive=False, regression=True).targets.tolist() == [
        [0.0],
        [1000.0],
        [99.0],
    ]
    with pytest.raises(InputError, match="expected classes with regression=False, got a number"):
        table.population(target="age", sensitive="sex", keep_sensitive=False)
    with pytest.raises(InputError, match="cut it first"):
        table.population(target="class", sensitive="age", keep_sensitive=False)


def test_groups_of_values_and_their_source(file: Path) -> None:
    table = Table.read(file, columns=COLUMNS)
    grouped = table.regroup("town", groups={"known": ["Ahlen", "Ulm"], "unknown": ["?"]}, into="known town")
    people = grouped.population(target="class", sensitive="known town", keep_sensitive=False)
    assert people.sensitive.tolist() == [0, 1, 0]
    assert people.inputs.shape == (3, 6)
    with pytest.raises(InputError, match="each value of town in one group"):
        table.regroup("town", groups={"known": ["Ahlen", "Ulm"]}, into="x")
    with pytest.raises(InputError, match="target that is not the sensitive variable"):
        grouped.population(target="town", sensitive="known town", keep_sensitive=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("50,0,Ulm", "50,0,Bonn", r"other\.csv, line 2, column town: expected one of Ulm, Ahlen, \?; got 'Bonn'"),
        ("0,1,90", "0,1,nan", r"line 3, column age: expected a finite number, got 'nan'"),
        ("0,1,90", "0,1,old", r"line 3, column age: expected a finite number, got 'old'"),
        ("0,1,10", "0,1,9", r"line 5, column age: expected 10 to 90, got 9; state the range"),
        ("0,1,10", "1,1,10", r"line 5, column eyes: expected one 1 and zeros in blue, brown, got 1, 1"),
        ("yes,x", "yes", r"line 5: expected 9 fields, got 8"),
        ("90,1000", "?,1000", r"line 3, column age: 1 cells are unknown \('\?'\); .*drop_missing=True"),
        ("paid, town", "spent, town", r"expected the columns paid, each once; the header has blue, brown, age, spent"),
        ('"a, b"', '"a, b', r"not a text file of rows"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table.read(changed(tmp_path, old, new), columns=COLUMNS)


def test_rows_with_unknown_cells_are_dropped_only_on_request_and_counted(tmp_path: Path) -> None:
    file = changed(tmp_path, "90,1000", "?,1000")
    table = Table.read(file, columns=COLUMNS, drop_missing=True)
    assert (table.size, table.dropped) == (2, 1)
    # "?" among the values of a category is a value, and its row stays.
    assert Table.read(file, columns=COLUMNS[2:], drop_missing=True).dropped == 0


def test_other_delimiters_no_header_and_comments(tmp_path: Path) -> None:
    columns = [Column(name="x", high=4.0), Column(name="y", kind="label", values=("a", "b"))]
    (tmp_path / "spaces").write_text("1   a\n4 b \n")
    assert Table.read(tmp_path / "spaces", columns=columns, header=False, delimiter=" ").cells["x"].tolist() == [1, 4]
    (tmp_path / "named").write_text("# made by hand\nb;9;4\n")
    table = Table.read(
        tmp_path / "named", columns=columns, header=["y", "z", "x"], delimiter=";", comment="#", name="mine"
    )
    assert (table.name, table.cells["y"].tolist(), table.cells["x"].tolist()) == ("mine", [1], [4.0])
    with pytest.raises(InputError, match="no such file"):
        Table.read(tmp_path / "none", columns=columns)


def test_rows_in_memory_are_read_like_text() -> None:
    rows = [(3, 1.5, True), (0, 2, False)]
    columns = [
        Column(name="code", kind=ColumnKind.CATEGORY, values=("0", "3")),
        Column(name="v", high=2.0),
        Column(name="f", kind="label", values=("False", "True")),
    ]
    table = Table.from_rows(rows, columns=columns)
    inputs, names = table.inputs()
    assert inputs.tolist() == [[0.0, 1.0, 0.75], [1.0, 0.0, 1.0]]
    assert names == ("code=0", "code=3", "v")
    with pytest.raises(InputError, match="table, row 1, column v: expected a finite number, got 'inf'"):
        Table.from_rows([rows[0], (0, math.inf, True)], columns=columns)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "words"}, "expected a kind of number, amount, category, one_hot, label, got 'words'"),
        ({"kind": "category"}, "state them from the codebook"),
        ({"kind": "category", "values": ("a", "a")}, "expected different values"),
        ({"kind": "category", "values": "ab"}, "expected several values, got the string 'ab'"),
        ({"high": 0.0}, "expected finite low < high"),
        ({"high": math.inf}, "expected finite low < high"),
        ({"values": ("a", "b")}, "values belong to a category"),
        ({"kind": "one_hot"}, "members belong to a one-hot group"),
        ({"kind": "one_hot", "members": ("a", "b"), "values": ("x", "y", "z")}, "as many values, got 2 and 3"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Column(name="x", **settings)


def test_a_table_with_cells_that_do_not_fit_is_refused() -> None:
    column = Column(name="x", kind="label", values=("a", "b"))
    with pytest.raises(InputError, match="codes from 0 to 1, got 0 to 2"):
        Table(name="t", columns=(column,), cells={"x": np.array([0, 2])})
    with pytest.raises(InputError, match="got NaN or infinity"):
        Table(name="t", columns=(Column(name="x"),), cells={"x": np.array([0.0, np.nan])})
    with pytest.raises(InputError, match="one of its columns x; got 'y'"):
        Table(name="t", columns=(column,), cells={"x": np.array([0, 1])}).column("y")


def test_codes_are_places_in_the_alphabetical_list_of_the_stated_values() -> None:
    columns = [
        Column(name="age", high=100.0),
        Column(name="ward", kind="category", values=("west", "east", "north")),
        Column(name="sex", kind="one_hot", members=("male", "female")),
        Column(name="outcome", kind="label", values=("ill", "well")),
    ]
    rows = [(50, "west", 0, 1, "ill"), (20, "north", 1, 0, "well"), (30, "west", 1, 0, "ill")]
    table = Table.from_rows(rows, columns=columns, header=("age", "ward", "male", "female", "outcome"), name="three")
    given = {"target": "outcome", "sensitive": "sex"}
    inside = table.population(**given, keep_sensitive=True, side=["ward"], encoding="codes")
    # east 0, north 1/2, west 1; female 0, male 1. Nothing depends on which values the rows have.
    torch.testing.assert_close(inside.inputs, torch.tensor([[0.5, 1, 0], [0.2, 0.5, 1], [0.3, 1, 1]]))
    assert inside.side is not None
    assert inside.side.tolist() == [[1.0], [0.5], [1.0]]
    assert inside.sensitive.tolist() == [1, 0, 0]
    assert table.inputs(encoding="codes")[1] == ("age", "ward", "sex")
    assert table.population(**given, keep_sensitive=False, encoding="codes").inputs.shape == (3, 2)
    plain = table.population(**given, keep_sensitive=True)
    assert (plain.name, inside.name) == ("three: sex", "three: sex, codes")
    with pytest.raises(InputError, match="one_hot, codes, got 'ordinal'"):
        table.population(**given, keep_sensitive=True, encoding="ordinal")


def test_the_domain_of_rows_in_their_own_units_has_the_ranges_of_their_columns() -> None:
    columns = [
        Column(name="age", low=16.0, high=90.0),
        Column(name="gain", kind="amount", high=99999.0),
        Column(name="ward", kind="category", values=("west", "east", "north")),
        Column(name="outcome", kind="label", values=("ill", "well")),
    ]
    domain = raw_domain(columns)
    assert (domain.shape, domain.kind) == ((5,), "tabular")
    assert domain.low == (16.0, 0.0, 0.0, 0.0, 0.0)
    assert domain.high == (90.0, 99999.0, 1.0, 1.0, 1.0)
    assert raw_domain(columns, "codes").high == (90.0, 99999.0, 1.0)
    assert domain.columns == (1, 1, 3)
    assert raw_domain(columns, "codes").columns == (1, 1, 1)
    with pytest.raises(InputError, match=r"column dose: expected its range \(low, high\), got none"):
        raw_domain([*columns, Column(name="dose")])
    with pytest.raises(InputError, match="positive sizes"):
        raw_domain(columns[-1:])


@pytest.mark.parametrize("name", ["inputs", "targets", "side"])
def test_a_population_with_a_number_that_is_none_is_refused_with_its_row(name: str) -> None:
    parts = {"inputs": torch.zeros(6, 2, 3), "targets": torch.zeros(6, 1), "side": torch.zeros(6, 2)}
    parts[name][4].fill_(float("nan"))
    parts[name][5].reshape(-1)[0] = float("inf")
    count = parts[name][4].numel() + 1
    with pytest.raises(InputError, match=rf"Population\.{name}: .* got {count} .* in 2 of 6 rows, the first in row 4"):
        Population(name="odd", sensitive=torch.arange(6) % 2, values=("a", "b"), **parts)

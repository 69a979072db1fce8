"""Splits share no row, hold what was asked for, and refuse what overlaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.games.setting import population

from gradleak.data import Population, Split, without_rows_of
from gradleak.results import InputError

ROWS = population()


def drawn(seed: int = 0, **changes: object) -> Split:
    given = {"private_rows": 300, "public_rows": 201, "test_rows": 100} | changes
    return Split.draw(ROWS, generator=torch.Generator().manual_seed(seed), **given)  # type: ignore[arg-type]


def part(rows: Population, places: torch.Tensor) -> Population:
    return Population(
        name="part", inputs=rows.inputs[places], targets=rows.targets[places], sensitive=rows.sensitive[places],
        values=rows.values,
    )  # fmt: skip


def test_a_drawn_split_shares_no_row_and_is_balanced() -> None:
    split = drawn()
    together = torch.cat([split.private, split.test, split.public])
    assert [len(split.private), len(split.test), len(split.public)] == [300, 100, 201]
    assert len(together.unique()) == 601
    assert sorted(ROWS.sensitive[split.public].bincount().tolist()) == [100, 101]
    # The prior comes from all rows that are neither private nor test, not from the balanced ones.
    rest = torch.tensor(sorted(set(range(ROWS.size)) - set(split.private.tolist()) - set(split.test.tolist())))
    assert torch.equal(split.known_values(), ROWS.sensitive[rest])


def test_a_split_depends_on_the_seed_alone() -> None:
    assert torch.equal(drawn(3).public, drawn(3).public)
    assert not torch.equal(drawn(3).private, drawn(4).private)


def test_an_unbalanced_draw_keeps_the_shares_of_the_population() -> None:
    share = float(ROWS.sensitive[drawn(balanced=False).public].double().mean())
    assert abs(share - float(ROWS.sensitive.double().mean())) < 0.1


def test_too_few_rows_are_said_with_counts() -> None:
    with pytest.raises(InputError, match=r"at least 901 rows \(600 private, 100 test, 201 public\), got 900"):
        drawn(private_rows=600)
    with pytest.raises(InputError, match=r"expected 250 public rows with value 0 \(of 500, balanced\), got \d+"):
        drawn(public_rows=500)


def test_a_place_in_two_sets_is_refused_with_counts() -> None:
    with pytest.raises(InputError, match="7 rows in private and public"):
        Split.given(ROWS, private=torch.arange(100), public=torch.arange(93, 200))
    with pytest.raises(InputError, match="2 rows in private and test"):
        Split.given(ROWS, private=torch.arange(100), test=torch.arange(98, 120), public=torch.arange(200, 300))
    with pytest.raises(InputError, match="every row once, got 1 again"):
        Split.given(ROWS, private=torch.tensor([1, 1]), public=torch.arange(2, 9))


def test_equal_content_at_other_places_is_refused_with_counts() -> None:
    # U54: the shadow data hold private rows, in another file and another order.
    copies = part(ROWS, torch.arange(40, 160).flip(0))
    with pytest.raises(InputError, match=r"(\d+) public rows equal to private ones"):
        drawn(public=copies, public_rows=50)
    fresh = population(seed=1)
    assert drawn(public=fresh).equal_rows == 0
    assert drawn(public=copies, public_rows=50, coincidences=True).equal_rows > 0
    # Within the population equal rows may be other people, and only their number is told.
    doubled = part(ROWS, torch.arange(900) // 2)
    drawn_from = Split.draw(
        doubled,
        private_rows=300,
        public_rows=100,
        test_rows=300,
        public=fresh,
        generator=torch.Generator().manual_seed(0),
    )
    assert drawn_from.equal_rows == 0
    assert (
        Split.draw(
            doubled, private_rows=300, public_rows=100, test_rows=300, generator=torch.Generator().manual_seed(0)
        ).equal_rows
        > 50
    )
    twice = replace(ROWS, inputs=ROWS.inputs.clone())
    twice.inputs[5], twice.targets[5], twice.sensitive[5] = twice.inputs[300], twice.targets[300], twice.sensitive[300]
    with pytest.raises(InputError, match="1 public rows equal to private ones"):
        Split.given(twice, private=torch.arange(100), public=torch.arange(200, 400))


def test_rows_of_a_population_are_taken_out() -> None:
    public = population(seed=1)
    mixed = Population(
        name="mixed",
        inputs=torch.cat([ROWS.inputs[:10], public.inputs]),
        targets=torch.cat([ROWS.targets[:10], public.targets]),
        sensitive=torch.cat([ROWS.sensitive[:10], public.sensitive]),
        values=ROWS.values,
    )
    assert torch.equal(without_rows_of(mixed, ROWS), torch.arange(10, 910))


def test_users_are_split_whole() -> None:
    rows = population(users=6)
    split = Split.of_users(rows, private=[0, 2], public=[1, 5], test=[3])
    assert rows.users is not None
    assert set(rows.users[split.private].tolist()) == {0, 2}
    assert len(split.private) + len(split.public) + len(split.test) == int((rows.users != 4).sum())
    with pytest.raises(InputError, match="every user in one set, got 1 in two, such as 2"):
        Split.of_users(rows, private=[0, 2], public=[2, 5])

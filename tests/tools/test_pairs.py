from __future__ import annotations

from itertools import combinations, product

from tests.pairs import each_value, pairwise


def test_every_pair_of_values_meets_and_the_product_is_not_needed() -> None:
    values = (range(10), range(4), range(3), range(2))
    rows = pairwise(*values)
    assert rows == pairwise(*values)
    assert len(rows) < 50
    for one, other in combinations(range(4), 2):
        assert {(row[one], row[other]) for row in rows} == set(product(values[one], values[other]))


def test_every_value_comes_up_in_as_many_rows_as_the_longest_setting_has() -> None:
    rows = each_value(range(5), range(3), range(2))
    assert len(rows) == 5
    assert [len({row[place] for row in rows}) for place in range(3)] == [5, 3, 2]

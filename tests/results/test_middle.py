from __future__ import annotations

import math
import statistics

import pytest

from gradleak.results.score import median


def test_the_median_of_two_lies_between_them() -> None:
    assert median([0.1, 0.4]) == 0.25
    assert median([30.0, 10.0]) == 20.0
    values = [0.3, 7.0, 0.01, 2.5, 2.6, 9.0]
    for count in range(1, len(values) + 1):
        assert median(values[:count]) == pytest.approx(statistics.median(values[:count]))
    assert median([1e308, 1.6e308]) == pytest.approx(1.3e308)
    assert median([]) is None


def test_one_perfect_copy_of_two_makes_no_perfect_middle() -> None:
    assert median([math.inf, 20.0]) == 20.0
    assert median([-math.inf, 20.0]) == 20.0
    assert median([math.inf, 20.0, 10.0, math.inf]) == 20.0
    assert median([math.inf, math.inf, 20.0]) == math.inf

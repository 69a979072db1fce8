from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from gradleak.results import InputError, check_count, check_not_negative, check_positive, check_share

WORDS = ["1", None, True, math.nan, math.inf, -math.inf, -1, np.bool_(True), 1j, [1]]


@pytest.mark.parametrize("value", [*WORDS, 0, 0.0])
def test_positive(value: object) -> None:
    with pytest.raises(InputError, match="std: expected a finite positive number, got "):
        check_positive("std", value)


@pytest.mark.parametrize("value", [*WORDS, 0, 1, 1.0, 2])
def test_share(value: object) -> None:
    with pytest.raises(InputError, match="tolerance: expected a number between 0 and 1, got "):
        check_share("tolerance", value)


@pytest.mark.parametrize("value", WORDS)
def test_not_negative(value: object) -> None:
    with pytest.raises(InputError, match="epsilon: expected a finite number of at least 0, got "):
        check_not_negative("epsilon", value)


@pytest.mark.parametrize("value", [*WORDS, 1, 2.0])
def test_count(value: object) -> None:
    with pytest.raises(InputError, match="samples: expected at least 2, got "):
        check_count("samples", value, least=2)


def test_numbers_of_python_and_numpy_pass() -> None:
    for number in (0.5, Fraction(1, 2), np.float32(0.5), np.float64(0.5)):
        check_positive("a", number)
        check_share("a", number)
        check_not_negative("a", number)
    for count in (3, np.int64(3)):
        check_count("a", count, least=3)
    check_not_negative("a", 0)

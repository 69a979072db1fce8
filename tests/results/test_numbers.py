from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from gradleak.results import (
    InputError,
    check_count,
    check_finite,
    check_not_negative,
    check_positive,
    check_seed,
    check_share,
)

WORDS = ["1", None, True, math.nan, math.inf, -math.inf, -1, np.bool_(True), 1j, [1]]
TOO_LARGE = 10**400


@pytest.mark.parametrize("value", [*WORDS, 0, 0.0, TOO_LARGE])
def test_positive(value: object) -> None:
    with pytest.raises(InputError, match="std: expected a finite positive number, got "):
        check_positive("std", value)


@pytest.mark.parametrize("value", [*WORDS, 0, 1, 1.0, 2, TOO_LARGE])
def test_share(value: object) -> None:
    with pytest.raises(InputError, match="tolerance: expected a number between 0 and 1, got "):
        check_share("tolerance", value)


@pytest.mark.parametrize("value", [*WORDS, TOO_LARGE])
def test_not_negative(value: object) -> None:
    with pytest.raises(InputError, match="epsilon: expected a finite number of at least 0, got "):
        check_not_negative("epsilon", value)


@pytest.mark.parametrize("value", [*WORDS, 1, 2.0])
def test_count(value: object) -> None:
    with pytest.raises(InputError, match="samples: expected a whole number of at least 2, got "):
        check_count("samples", value, least=2)


@pytest.mark.parametrize("value", [*[word for word in WORDS if word != -1], TOO_LARGE])
def test_finite(value: object) -> None:
    with pytest.raises(InputError, match="mean: expected a finite number, got "):
        check_finite("mean", value)
    check_finite("mean", -1)


@pytest.mark.parametrize("value", [*[word for word in WORDS if word != -1], 1.0, 2**64, -(2**63) - 1])
def test_seed(value: object) -> None:
    with pytest.raises(InputError, match="seed: expected a whole number of at most 64 bits, got "):
        check_seed("seed", value)


def test_a_seed_that_passes_is_one_that_torch_takes() -> None:
    for seed in (0, -1, -(2**63), 2**64 - 1, np.int64(3)):
        check_seed("seed", seed)
        torch.Generator().manual_seed(int(seed))


def test_numbers_of_python_and_numpy_pass() -> None:
    for number in (0.5, Fraction(1, 2), np.float32(0.5), np.float64(0.5)):
        check_positive("a", number)
        check_share("a", number)
        check_not_negative("a", number)
    for count in (3, np.int64(3)):
        check_count("a", count, least=3)
    check_not_negative("a", 0)

from __future__ import annotations

import hashlib

import pytest
import torch

from gradleak.core import derive_generator, derive_seed

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def test_the_seed_is_a_function_of_run_seed_and_names_alone() -> None:
    by_hand = int.from_bytes(hashlib.sha256(b"3\x1frelease\x1fexample 1").digest()[:8], "big") >> 1
    assert derive_seed(3, "release", "example 1") == by_hand
    assert 0 <= by_hand < 2**63


def test_names_are_told_apart() -> None:
    seeds = {
        derive_seed(*args)
        for args in [(0,), (1,), (0, ""), (0, "a"), (0, "a", "b"), (0, "ab"), (0, "b", "a"), (1, "a"), (-1, "a")]
    }
    assert len(seeds) == 9


def test_generators_are_fresh_and_repeatable() -> None:
    first, second = derive_generator(7, "x"), derive_generator(7, "x")
    assert torch.equal(torch.rand(5, generator=first), torch.rand(5, generator=second))
    assert not torch.equal(torch.rand(5, generator=first), torch.rand(5, generator=derive_generator(7, "y")))

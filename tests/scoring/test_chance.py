"""How near blind guesses come by luck: limits that hold their level, against independent calculations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from gradleak.core import Batch, Domain, DomainKind
from gradleak.results import Evidence, InputError
from gradleak.scoring import CHANCE_ENTRIES, chance_pixel_rmse


def rows(examples: int, entries: int, *, binary: bool = False) -> Batch:
    domain = Domain(shape=(entries,), low=0.0, high=1.0, kind=DomainKind.TABULAR)
    inputs = torch.rand((examples, entries), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs = inputs.round() if binary else inputs
    return Batch(inputs, torch.zeros(examples, dtype=torch.long), domain)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("examples", "entries"), [(16, 2), (8, 6), (3, 32)])
def test_other_blind_guessers_fall_below_in_about_a_twentieth_of_draws(examples: int, entries: int) -> None:
    truth = rows(examples, entries)
    score = chance_pixel_rmse(truth, generator=seeded())
    assert score is not None
    assert score.evidence is Evidence.ESTIMATE
    limits = np.array(score.details["limits"])
    assert score.value == limits[0]
    assert list(limits) == sorted(limits)
    draw, below = np.random.default_rng(7), 0
    for _ in range(1000):
        squared = ((draw.random((examples, 1, entries)) - truth.inputs.numpy()[None]) ** 2).mean(axis=-1)
        errors = np.sqrt(np.sort(squared[linear_sum_assignment(squared)]))
        below += bool((errors < limits).any())
    # 20 to 80 are three standard deviations of this count and of the limits around 50.
    assert 20 <= below <= 85


def test_one_number_has_the_limit_that_a_calculation_gives() -> None:
    domain = Domain(shape=(1,), low=0.0, high=1.0, kind=DomainKind.TABULAR)
    truth = Batch(torch.tensor([[0.5]], dtype=torch.float64), torch.zeros(1, dtype=torch.long), domain)
    score = chance_pixel_rmse(truth, generator=seeded(), draws=20000)
    assert score is not None
    # |u - 0.5| < c has the chance 2c for a uniform guess.
    assert score.value == pytest.approx(0.025, rel=0.1)


def test_rows_of_few_bits_are_hit_exactly() -> None:
    score = chance_pixel_rmse(rows(16, 6, binary=True), generator=seeded())
    assert score is not None
    exact = sum(limit == 0 for limit in score.details["limits"])
    # Each of 16 guesses of 6 bits; a few hits are luck, all 16 are not.
    assert 4 <= exact < 16


def test_public_rows_are_guesses_too() -> None:
    public = rows(400, 8)
    known = chance_pixel_rmse(
        Batch(public.inputs[:4], public.targets[:4], public.domain), public=public, generator=seeded()
    )
    blind = chance_pixel_rmse(Batch(public.inputs[:4], public.targets[:4], public.domain), generator=seeded())
    assert known is not None
    assert blind is not None
    assert known.details["guesses"] == ["uniform", "ends", "public"]
    # The four are among the 400, and a guesser of 4 rows draws one of them in about 4 % of cases.
    assert known.value is not None
    assert blind.value is not None
    assert known.value < blind.value
    with pytest.raises(InputError, match="public data: expected examples of shape"):
        chance_pixel_rmse(rows(4, 8), public=rows(4, 7), generator=seeded())


def test_many_entries_leave_nothing_to_luck() -> None:
    assert chance_pixel_rmse(rows(4, CHANCE_ENTRIES + 1), generator=seeded()) is None
    score = chance_pixel_rmse(rows(64, CHANCE_ENTRIES), generator=seeded())
    assert score is not None
    assert score.value is not None
    assert score.value > 0.15
    # The bound that the limit of entries rests on: V_d (0.1 √d)^d.
    d = CHANCE_ENTRIES
    assert (0.1 * math.sqrt(d * math.pi)) ** d / math.gamma(d / 2 + 1) < 1e-13


def test_normalization_and_the_order_of_examples_do_not_matter() -> None:
    plain = rows(5, 3)
    domain = Domain(shape=(3,), low=0.0, high=1.0, mean=(0.4,), std=(0.2,), kind=DomainKind.TABULAR)
    shifted = Batch(domain.from_pixels(plain.inputs).flip(0), plain.targets, domain)
    one, other = (chance_pixel_rmse(batch, generator=seeded()) for batch in (plain, shifted))
    assert one is not None
    assert other is not None
    assert one.details["limits"] == pytest.approx(other.details["limits"], rel=0.3)


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(InputError, match="draws: expected at least 100, got 99"):
        chance_pixel_rmse(rows(4, 3), generator=seeded(), draws=99)

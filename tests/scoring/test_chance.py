"""How near blind guesses come by luck: limits that hold their level, against independent calculations."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from gradleak.core import Batch, Domain, DomainKind
from gradleak.results import Evidence, InputError, Thresholds
from gradleak.scoring import CHANCE_ENTRIES, beyond_luck, blind_baseline, chance_pixel_rmse


def rows(examples: int, entries: int, *, binary: bool = False) -> Batch:
    domain = Domain(shape=(entries,), low=0.0, high=1.0, kind=DomainKind.TABULAR)
    inputs = torch.rand((examples, entries), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs = inputs.round() if binary else inputs
    return Batch(inputs, torch.zeros(examples, dtype=torch.long), domain)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def uniform(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return draw.random(shape)


def clamped(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return np.clip(draw.normal(0.5, 1.0, shape), 0.0, 1.0)


def sparse(draw: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return (draw.random(shape) < 1 / 8).astype(float)


def mixed_columns() -> Batch:
    free = rows(32, 5)
    inputs = torch.cat([free.inputs[:, :4].round(), 0.3 + 0.4 * free.inputs[:, 4:]], dim=1)
    return Batch(inputs, free.targets, free.domain)


def one_hot() -> Batch:
    free = rows(16, 8)
    kinds = torch.randint(8, (16,), generator=torch.Generator().manual_seed(2))
    return Batch(torch.nn.functional.one_hot(kinds, 8).double(), free.targets, free.domain)


@pytest.mark.parametrize(
    ("truth", "guess"),
    [
        (rows(16, 2), uniform),
        (rows(8, 6), uniform),
        (rows(3, 32), uniform),
        (mixed_columns(), clamped),
        (mixed_columns(), uniform),
        (one_hot(), sparse),
        (one_hot(), clamped),
    ],
    ids=["16 by 2", "8 by 6", "3 by 32", "bits, clamped", "bits, uniform", "one-hot, sparse", "one-hot, clamped"],
)
def test_other_blind_guessers_fall_below_in_about_a_hundredth_of_draws(
    truth: Batch, guess: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
) -> None:
    examples, entries = truth.inputs.shape
    score = chance_pixel_rmse(truth, generator=seeded())
    assert score is not None
    assert score.evidence is Evidence.ESTIMATE
    limits = np.array(score.details["limits"])
    assert score.value == limits[0]
    assert list(limits) == sorted(limits)
    draw, below = np.random.default_rng(7), 0
    for _ in range(500):
        squared = ((guess(draw, (examples, entries))[:, None] - truth.inputs.numpy()[None]) ** 2).mean(axis=-1)
        errors = [error for error in np.sqrt(np.sort(squared[linear_sum_assignment(squared)])) if error <= 0.1]
        below += beyond_luck(errors, list(limits)) > 0
    # At the level of 1 % up to 5 expected, and 17 would be five standard deviations more.
    assert below <= 17


def test_one_number_has_the_limit_that_a_calculation_gives() -> None:
    domain = Domain(shape=(1,), low=0.0, high=1.0, kind=DomainKind.TABULAR)
    truth = Batch(torch.tensor([[0.5]], dtype=torch.float64), torch.zeros(1, dtype=torch.long), domain)
    score = chance_pixel_rmse(truth, generator=seeded(), draws=5000)
    assert score is not None
    # |u - 0.5| < c has the chance 2c for a uniform guess, and guesses at the ends do not come near.
    assert score.value == pytest.approx(0.005, rel=0.2)


def test_rows_of_few_bits_are_hit_exactly() -> None:
    score = chance_pixel_rmse(rows(16, 6, binary=True), generator=seeded())
    assert score is not None
    limits = score.details["limits"]
    # Each of 16 guesses of 6 bits: a few hits are luck, all 16 are not.
    assert 4 <= sum(limit == 0 for limit in limits) < 16
    assert beyond_luck([0.0] * 4, limits) == 0
    assert beyond_luck([0.0] * 16, limits) > 4


@pytest.mark.parametrize("truth", [rows(1, 2), rows(16, 2), rows(64, 6), mixed_columns(), one_hot()])
def test_what_is_rebuilt_to_many_digits_is_no_luck(truth: Batch) -> None:
    score = chance_pixel_rmse(truth, generator=seeded())
    assert score is not None
    assert beyond_luck([1e-6] * truth.size, score.details["limits"]) > 0


def test_equal_rows_are_not_guessed_by_their_own_spread() -> None:
    one = rows(1, 4)
    score = chance_pixel_rmse(Batch(one.inputs.repeat(16, 1), one.targets.repeat(16), one.domain), generator=seeded())
    assert score is not None
    assert score.value is not None
    assert score.value > 1e-3


def test_public_rows_are_guesses_too() -> None:
    public = rows(400, 8)
    known = chance_pixel_rmse(
        Batch(public.inputs[:4], public.targets[:4], public.domain), public=public, generator=seeded()
    )
    blind = chance_pixel_rmse(Batch(public.inputs[:4], public.targets[:4], public.domain), generator=seeded())
    assert known is not None
    assert blind is not None
    assert known.details["guesses"] == ["uniform", "ends", "mixed", "spread", "public"]
    # The four are among the 400, and a guesser of 4 rows draws one of them in about 4 % of cases.
    assert known.value == 0.0
    assert blind.value is not None
    assert blind.value > 0.02
    with pytest.raises(InputError, match="public data: expected examples of shape"):
        chance_pixel_rmse(rows(4, 8), public=rows(4, 7), generator=seeded())


def test_many_entries_leave_nothing_to_luck_but_what_is_public() -> None:
    many = rows(4, CHANCE_ENTRIES + 1)
    assert chance_pixel_rmse(many, generator=seeded()) is None
    assert chance_pixel_rmse(many, generator=seeded(), within=0.3) is not None
    assert chance_pixel_rmse(rows(4, 257), generator=seeded(), within=0.3) is None
    public = torch.cat([many.inputs + 0.01 * rows(4, CHANCE_ENTRIES + 1).inputs] * 5).clamp(max=1.0)
    known = chance_pixel_rmse(many, public=public, generator=seeded())
    assert known is not None
    assert known.details["guesses"] == ["public"]
    assert known.value is not None
    assert known.value < 0.01
    score = chance_pixel_rmse(rows(64, CHANCE_ENTRIES), generator=seeded())
    assert score is not None
    assert score.value is not None
    assert score.value > 0.15
    # The bound that the limit of entries rests on: V_d (0.1 √d)^d.
    d = CHANCE_ENTRIES
    assert (0.1 * math.sqrt(d * math.pi)) ** d / math.gamma(d / 2 + 1) < 1e-13


def test_an_error_has_to_be_below_half_of_the_way_to_the_nearest_public_row() -> None:
    # Fifty public rows on a line; the two private ones lie 0.04 and 0.1 beside their nearest.
    domain = Domain(shape=(40,), low=0.0, high=1.0, kind=DomainKind.TABULAR)
    public = torch.linspace(0.0, 1.0, 50, dtype=torch.float64)[:, None].repeat(1, 40)
    moved = torch.zeros(2, 40, dtype=torch.float64)
    moved[0, ::2], moved[0, 1::2], moved[1, ::2], moved[1, 1::2] = 0.04, -0.04, 0.1, -0.1
    truth = Batch(public[[20, 30]] + moved, torch.zeros(2, dtype=torch.long), domain)
    half, quarter = (chance_pixel_rmse(truth, public=public, generator=seeded(), share=share) for share in (0.5, 0.25))
    assert half is not None
    assert quarter is not None
    assert half.details["limits"] == pytest.approx([0.02, 0.05])
    assert quarter.details["limits"] == pytest.approx([0.01, 0.025])


def test_another_row_of_the_population_is_no_leak_where_public_rows_are_known() -> None:
    # Rows that differ by a twentieth of the range: without public rows every second one comes near enough.
    generator = torch.Generator().manual_seed(1)
    means = torch.linspace(0.1, 0.9, 8, dtype=torch.float64)
    domain = Domain(shape=(8,), low=0.0, high=1.0, kind=DomainKind.TABULAR)
    thresholds, taken = Thresholds(), {True: 0, False: 0}
    for _ in range(15):
        drawn = (means + 0.05 * torch.randn(102, 8, generator=generator, dtype=torch.float64)).clamp(0.0, 1.0)
        truth = Batch(drawn[:1], torch.zeros(1, dtype=torch.long), domain)
        errors = [float((drawn[1] - drawn[0]).square().mean().sqrt())]
        for public in (drawn[2:], None):
            blind = blind_baseline(truth, public=public)
            baselines = next(score for score in blind if score.name == "pixel_rmse").details["per_example"]
            luck = chance_pixel_rmse(truth, public=public, generator=generator, draws=200)
            assert luck is not None
            taken[public is not None] += thresholds.leaks(errors, baselines, luck.details["limits"])
    assert taken[True] == 0
    assert taken[False] > 7


def test_normalization_and_the_order_of_examples_do_not_matter() -> None:
    plain = rows(5, 3)
    domain = Domain(shape=(3,), low=0.0, high=1.0, mean=(0.4,), std=(0.2,), kind=DomainKind.TABULAR)
    shifted = Batch(domain.from_pixels(plain.inputs).flip(0), plain.targets, domain)
    one, other = (chance_pixel_rmse(batch, generator=seeded()) for batch in (plain, shifted))
    assert one is not None
    assert other is not None
    assert one.details["limits"] == pytest.approx(other.details["limits"], rel=0.3)


def test_many_examples_have_their_nearest_guesses() -> None:
    score = chance_pixel_rmse(rows(128, 6), generator=seeded())
    assert score is not None
    assert score.n == 300
    limits = score.details["limits"]
    assert len(limits) == 128
    assert 0.0 < limits[0] < limits[20] < 0.2


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(InputError, match="draws: expected a whole number of at least 200, got 199"):
        chance_pixel_rmse(rows(4, 3), generator=seeded(), draws=199)

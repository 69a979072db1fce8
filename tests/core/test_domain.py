from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from gradleak.core import Domain, DomainKind, describe
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def color() -> Domain:
    return Domain.image(channels=3, height=4, width=5, **IMAGENET)


def test_pixels_follow_the_declared_normalization_channel_by_channel() -> None:
    pixels = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    inputs = color().from_pixels(pixels)
    for channel in range(3):
        by_hand = (pixels[:, channel] - IMAGENET["mean"][channel]) / IMAGENET["std"][channel]
        torch.testing.assert_close(inputs[:, channel], by_hand, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(color().to_pixels(inputs), pixels, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    "domain",
    [
        Domain(shape=(6,), low=-3.0, high=5.0, kind=DomainKind.TABULAR),
        Domain(shape=(6,), mean=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), std=(0.1, 1.0, 10.0, 2.0, 3.0, 4.0), high=9.0),
        Domain(shape=(1, 6), low=0.0, high=255.0, mean=(33.3,), std=(78.6,)),
        Domain(shape=(2, 3), kind=DomainKind.SIGNAL, std=(0.5,)),
        Domain(shape=(3,), low=(16.0, 0.0, -2.0), high=(90.0, 1.0, 5.0), kind=DomainKind.TABULAR),
        Domain(shape=(3,), low=-1.0, high=(90.0, 1.0, 5.0), mean=(40.0, 0.0, 1.0), std=(12.0, 1.0, 0.1)),
        Domain(shape=(2, 2, 3), low=(0.0, -5.0), high=(255.0, 5.0), std=(2.0,)),
        Domain(shape=(2, 7), low=(0.0, -5.0), high=9.0, kind=DomainKind.SIGNAL),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_bounds_and_scale_agree(domain: Domain, dtype: torch.dtype) -> None:
    pixels = torch.rand(4, *domain.shape, dtype=dtype)
    inputs = domain.from_pixels(pixels)
    assert inputs.dtype == dtype
    assert inputs.shape == pixels.shape
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(domain.to_pixels(inputs), pixels, rtol=tolerance, atol=tolerance)
    low, high = domain.bounds(pixels)
    assert low.shape == high.shape == domain.shape
    assert bool((low < high).all())
    torch.testing.assert_close(
        domain.to_pixels(low[None]), torch.zeros(1, *domain.shape, dtype=dtype), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        domain.to_pixels(high[None]), torch.ones(1, *domain.shape, dtype=dtype), atol=1e-6, rtol=0
    )
    # pixel_scale is the derivative of to_pixels.
    slope = torch.func.jvp(domain.to_pixels, (inputs,), (torch.ones_like(inputs),))[1][0]
    torch.testing.assert_close(domain.pixel_scale(inputs), slope)
    assert domain.size == math.prod(domain.shape)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": ()}, "expected positive sizes"),
        ({"shape": (3, 0)}, "expected positive sizes"),
        ({"shape": (3,), "low": 1.0}, "low < high"),
        ({"shape": (3,), "high": math.inf}, "finite low < high"),
        ({"shape": (3,), "low": math.nan}, "finite low < high"),
        ({"shape": (3, 2, 2), "mean": (0.5, 0.5)}, r"Domain.mean: expected 1 or 3 numbers .* got 2"),
        ({"shape": (1, 2, 2), "std": (0.2, 0.2, 0.2)}, r"Domain.std: expected 1 or 1 numbers .* got 3"),
        ({"shape": (3,), "mean": 0.5}, r"expected a tuple of numbers, got 0.5; write \(0.5,\)"),
        ({"shape": (3,), "std": (0.0,)}, "expected positive numbers"),
        ({"shape": (3,), "std": (-0.2,)}, "expected positive numbers"),
        ({"shape": (3,), "mean": (math.nan,)}, "finite"),
        (
            {"shape": (3,), "low": (0.0, 0.0)},
            r"Domain.low: expected 1 or 3 numbers \(one a channel or feature .* got 2",
        ),
        ({"shape": (2,), "low": (0.0, 3.0), "high": (1.0, 3.0)}, r"got low=3.0, high=3.0 in channel or feature 1"),
        ({"shape": (2,), "high": (1.0, -1.0)}, r"got low=0.0, high=-1.0 in channel or feature 1"),
        ({"shape": (2,), "high": (1.0, math.inf)}, "finite low < high"),
        ({"shape": (2,), "high": (1.0, "2")}, "finite low < high"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Domain(**fields)


PEOPLE = Domain(shape=(3,), low=(16.0, 0.0, 0.0), high=(90.0, 1.0, 1.0), kind=DomainKind.TABULAR)


def test_every_feature_is_scaled_by_its_own_range() -> None:
    rows = torch.tensor([[53.0, 0.0, 1.0], [90.0, 1.0, 0.0]])
    assert PEOPLE.to_pixels(rows).tolist() == [[0.5, 0.0, 1.0], [1.0, 1.0, 0.0]]
    assert torch.equal(PEOPLE.from_pixels(PEOPLE.to_pixels(rows)), rows)
    low, high = PEOPLE.bounds(rows)
    assert (low.tolist(), high.tolist()) == ([16.0, 0.0, 0.0], [90.0, 1.0, 1.0])
    torch.testing.assert_close(PEOPLE.pixel_scale(rows), torch.tensor([1 / 74, 1.0, 1.0]))
    assert PEOPLE.range_text == "ranges by feature, from 0 to 90"
    assert Domain(shape=(2, 1, 1), high=(1.0, 255.0)).range_text == "ranges by channel, from 0 to 255"
    assert Domain(shape=(3,)).range_text == "0 to 1"


def test_one_pair_said_feature_by_feature_is_the_same_domain_to_the_bit() -> None:
    listed, single = Domain(shape=(3,), low=[-1.0] * 3, high=(7.0,) * 3), Domain(shape=(3,), low=-1.0, high=7.0)
    assert listed == single
    assert hash(listed) == hash(single)
    assert describe(listed) == describe(single) == describe(Domain(shape=(3,), low=(-1.0,), high=(7.0,)))
    rows = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(listed.to_pixels(rows), (rows * torch.ones(1) + torch.zeros(1) - -1.0) / 8.0)


def test_long_ranges_are_told_apart_in_a_record_without_being_listed() -> None:
    wide = [Domain(shape=(100,), high=(*[1.0] * 99, end), mean=[0.1] * 99 + [end]) for end in (2.0, 3.0, 2.0)]
    first, second, third = (describe(domain) for domain in wide)
    assert first == third != second
    assert first["high"].startswith("list[100], checksum ")
    assert first["mean"] != second["mean"]
    assert describe(PEOPLE)["low"] == [16.0, 0.0, 0.0]


def test_columns_in_units_of_their_own_get_ranges_of_their_own() -> None:
    rows = torch.tensor([[38.0, 1.0, -0.5, 52_000.0, -20.0], [61.0, 0.0, 0.2, 9.0, -8.0]])
    guessed = Domain.guess(rows)
    assert guessed.low == (0.0, 0.0, -1.0, 0.0, -100.0)
    assert guessed.high == (100.0, 1.0, 1.0, 100_000.0, 0.0)
    pixels = guessed.to_pixels(rows)
    assert bool(((pixels >= 0) & (pixels <= 1)).all())
    standardized = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    assert isinstance(Domain.guess(standardized).low, float)


def test_columns_that_share_a_range_far_too_wide_for_them_are_counted() -> None:
    generator = torch.Generator().manual_seed(0)
    ages = 20 + 60 * torch.rand(16, 1, generator=generator)
    bits = torch.eye(2)[torch.randint(0, 2, (16,), generator=generator)]
    rows = torch.cat([ages, bits], dim=1)
    shared = Domain(shape=(3,), high=90.0, kind=DomainKind.TABULAR)
    said = "2 of 3 columns reach no further than 5% of the declared range 0 to 90 that all columns share"
    assert shared.range_note([rows]).startswith(said)
    assert "state low and high by column" in shared.range_note([rows[:8], rows[8:]])
    assert shared.range_note([rows[:7]]) == ""  # too few to tell
    assert PEOPLE.range_note([rows]) == ""
    assert shared.range_note([]) == ""
    standardized = torch.randn(30, 14, generator=generator)
    assert Domain(shape=(14,), low=-4.0, high=4.0, kind=DomainKind.TABULAR).range_note([standardized]) == ""
    assert Domain(shape=(3,), kind=DomainKind.TABULAR).range_note([torch.cat([ages / 90, bits], dim=1)]) == ""


def test_lists_from_a_plan_file_are_taken() -> None:
    domain = Domain(shape=[1, 2, 2], mean=[0.5], std=[0.5])  # type: ignore[arg-type]
    assert domain == Domain(shape=(1, 2, 2), mean=(0.5,), std=(0.5,))
    assert hash(domain)


def test_check_names_both_shapes() -> None:
    color().check(torch.zeros(7, 3, 4, 5))
    with pytest.raises(InputError, match=r"expected \(b, 3, 4, 5\) from the domain, got \(2, 1, 4, 5\)"):
        color().check(torch.zeros(2, 1, 4, 5))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2, 0.9, (0.0, 1.0)),
        (-0.2, 0.9, (-1.0, 1.0)),
        (0.0, 0.0, (0.0, 1.0)),
        (-0.42, 2.83, (-0.5, 3.0)),
        (-2.1179, 2.64, (-3.0, 3.0)),
        (5.2, 91.3, (0.0, 100.0)),
        (-830.0, -20.0, (-900.0, 0.0)),
        (0.0, 2e-5 + 3, (0.0, 4.0)),
    ],
)
def test_a_guess_covers_the_data_and_shows_no_value_of_them(
    low: float, high: float, expected: tuple[float, float]
) -> None:
    guess = Domain.guess(torch.tensor([[[low, high, (low + high) / 2]]]))
    assert (guess.low, guess.high) == expected
    assert guess.shape == (1, 3)
    assert guess.mean is None
    assert guess.std is None


def test_a_guess_reads_the_kind_from_the_axes() -> None:
    assert Domain.guess(torch.rand(2, 3, 4, 4)).kind is DomainKind.IMAGE
    assert Domain.guess(torch.rand(2, 1, 9)).kind is DomainKind.SIGNAL
    assert Domain.guess(torch.rand(2, 9)).kind is DomainKind.TABULAR
    assert Domain.guess(torch.rand(2, 9)).guessed
    assert not Domain(shape=(9,)).guessed
    assert replace(Domain.guess(torch.rand(2, 9)), high=2.0).guessed  # a changed copy is no statement
    assert not replace(Domain(shape=(9,)), high=2.0).guessed
    assert Domain.guess(torch.rand(2, 9)) == Domain(shape=(9,), kind="tabular")
    assert "guessed" not in describe(Domain.guess(torch.rand(2, 9)))  # the knowledge card says it aloud
    eight_bit = Domain.guess(torch.tensor([[[[3.0, 241.0]]]]))
    assert (eight_bit.low, eight_bit.high) == (0.0, 255.0)


def gray(low: float, high: float, **more: Any) -> Domain:
    return Domain(shape=(1, 2, 2), low=low, high=high, **more)


def images(low: float, high: float) -> torch.Tensor:
    return torch.linspace(low, high, 12).reshape(3, 1, 2, 2)


@pytest.mark.parametrize(
    ("declared", "held", "expected"),
    [
        ((0, 255), (0, 1), ("lie in 0 to 1, 1/255 of the declared range 0 to 255", "255 times", "48 dB")),
        ((-1, 1), (0, 1), ("lie in 0 to 1, half of the declared range -1 to 1", "2 times", "6 dB")),
        ((-1, 1), (0.02, 0.98), ("lie in 0 to 1, half of the", "if images range over 0 to 1", "2 times")),
        ((0, 65535), (0, 255), ("lie in 0 to 255, 1/257 of the declared range 0 to 65535", "257 times", "48 dB")),
        ((-1, 1), (-0.5, 0.5), ("lie in -0.5 to 0.5, half of the", "2 times", "6 dB")),
        (
            (0, 1),
            (0.0123, 0.387),
            ("lie in 0.01 to 0.39, 38% of the", "if images range over no more than that", "2.6 times"),
        ),
    ],
)
def test_images_that_use_little_of_their_range_are_named(
    declared: tuple[float, float], held: tuple[float, float], expected: tuple[str, ...]
) -> None:
    note = gray(*declared).range_note([images(*held)])
    assert all(part in note for part in expected), note


@pytest.mark.parametrize(
    ("declared", "held"),
    [
        ((0, 1), (0, 1)),
        ((0, 1), (0, 0.6)),
        ((0, 1), (0.3, 1)),
        ((-1, 1), (-0.6, 0.6)),
        ((0, 255), (3, 200)),
        ((0, 1), (0.2, 0.2)),
    ],
)
def test_images_that_use_their_range_or_are_constant_are_not(
    declared: tuple[float, float], held: tuple[float, float]
) -> None:
    assert gray(*declared).range_note([images(*held)]) == ""


def test_all_images_count_together_and_normalization_is_undone() -> None:
    dark, bright = images(0.0, 0.3), images(0.5, 1.0)
    assert gray(0, 1).range_note([dark])
    assert gray(0, 1).range_note([bright])
    assert gray(0, 1).range_note([dark, bright]) == ""
    normalized = gray(0, 255, mean=(0.4,), std=(0.2,))
    assert "1/255" in normalized.range_note([normalized.from_pixels(images(0.0, 1.0) / 255.0)])
    plain = gray(0, 1, mean=(0.4,), std=(0.2,))
    assert plain.range_note([plain.from_pixels(images(0.0, 1.0))]) == ""


def test_nothing_is_said_of_a_range_without_images() -> None:
    assert gray(0, 255).range_note([]) == ""
    assert gray(0, 255).range_note([images(0.0, math.nan)]) == ""
    assert Domain(shape=(4,), high=255.0, kind=DomainKind.TABULAR).range_note([torch.rand(2, 4)]) == ""
    guessed = replace(Domain.guess(torch.rand(1, 1, 2, 2)), high=255.0)
    assert "of the guessed range" in guessed.range_note([images(0.0, 1.0)])


@pytest.mark.parametrize("inputs", [torch.full((1, 3), math.nan), torch.tensor([[math.inf, 0.0]]), torch.zeros(0, 3)])
def test_there_is_no_guess_without_finite_values(inputs: torch.Tensor) -> None:
    with pytest.raises(InputError, match="expected finite values"):
        Domain.guess(inputs)

from __future__ import annotations

import math

import pytest

from gradleak.reporting.numerals import (
    Quantity,
    as_number,
    beside_blind,
    count,
    decimal,
    duration,
    percent,
    quantity,
)
from gradleak.results import Evidence, Leakier, Outcome, Score


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (0.012345, "0.0123"),
        (0.00316227, "0.00316"),
        (1e-4, "10⁻⁴"),
        (3.98e-13, "3.98 × 10⁻¹³"),  # noqa: RUF001
        (12345.6, "12,346"),
        (1.5e9, "1.5 × 10⁹"),  # noqa: RUF001
        (-0.25, "−0.25"),  # noqa: RUF001
        (math.inf, "∞"),
        (None, "–"),  # noqa: RUF001
        (0.9999, "1"),
        (0.00099999, "0.001"),
    ],
)
def test_decimals(value: float | None, text: str) -> None:
    assert decimal(value).replace("\N{NO-BREAK SPACE}", " ") == text


def test_shares_counts_and_times() -> None:
    assert percent(0.0123).replace("\N{NO-BREAK SPACE}", " ") == "1.2 %"
    shown = [percent(value).replace("\N{NO-BREAK SPACE}", " ") for value in (1.0, 0.9963, 0.99999, 0.994)]
    assert shown == ["100 %", "99.6 %", "above 99.9 %", "99 %"]
    assert percent(1e-6).startswith("below")
    assert count(12345.0) == "12,345"
    assert (duration(0.42), duration(185), duration(7300)) == ("0.4 s", "3 min 5 s", "2 h 1 min")
    assert percent(None) == count(None) == duration(None)


@pytest.mark.parametrize(("unit", "value"), [("dB", -0.0), ("dB", -0.04), ("share", -0.0), ("release", -0.0)])
def test_there_is_no_minus_zero(unit: str, value: float) -> None:
    score = Score(
        name="psnr", value=value, unit=unit, leakier=Leakier.HIGHER, evidence=Evidence.ATTACK, interval=(-0.0, 0.0)
    )
    assert quantity(score).text.split("\N{NO-BREAK SPACE}")[0] in ("0", "0.0")
    assert not quantity(score).raw.startswith("-") or value < 0
    assert "-0" not in str(score).replace("-0.04", "")
    assert count(-0.4) == "0"


@pytest.mark.parametrize("value", [None, True, "12", "NaN", float("nan"), [], {}])
def test_what_is_no_number(value: object) -> None:
    assert as_number(value) is None


def test_infinities_of_records_are_numbers() -> None:
    assert as_number("inf") == math.inf
    assert as_number("-inf") == -math.inf


def test_a_score_without_value_shows_its_outcome() -> None:
    score = Score(
        name="ssim",
        value=None,
        unit="ssim",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ATTACK,
        outcome=Outcome.UNSUPPORTED,
        note="too small",
    )
    shown = quantity(score)
    assert (shown.value, shown.raw, shown.text, shown.note) == (None, "", "unsupported", "too small")


@pytest.mark.parametrize(
    ("value", "blind", "shown"),
    [(0.3, 0.31, "0.3"), (14.2, 0.394, "above a blind guess"), (0.9, None, "0.9"), (1.5, None, "above the range")],
)
def test_a_prediction_above_blind_is_said_in_words(value: float, blind: float | None, shown: str) -> None:
    made = beside_blind(Quantity(value=value, text=decimal(value)), Quantity(value=blind))
    assert made.text == shown
    assert made.value == value

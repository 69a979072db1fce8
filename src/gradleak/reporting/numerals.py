"""Numbers as people read them; the exact value travels along."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from gradleak.results import Outcome, Score

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Keeps a number and its unit, or its power of ten, on one line.
NBSP = "\N{NO-BREAK SPACE}"
MISSING = "–"  # noqa: RUF001 - an en dash is what a reader expects in an empty cell


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number ready for print.

    Attributes:
        value: the exact value, or None.
        text: how it is printed.
        evidence: evidence kind of the score it comes from, or "".
        outcome: how the computation ended, or None if no score stands behind it.
        note: a sentence for the reader, or "".
    """

    value: float | None = None
    text: str = MISSING
    evidence: str = ""
    outcome: Outcome | None = None
    note: str = ""

    @property
    def raw(self) -> str:
        """The exact value as text, "" for None."""
        return "" if self.value is None else repr(self.value)


def as_number(value: Any) -> float | None:
    """A float, or None for what is no number; records hold infinities as the strings "inf" and "-inf"."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return None if math.isnan(value) else float(value)
    if value in ("inf", "-inf"):
        return float(value)
    return None


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits: "0.0123", "1.23 × 10⁻⁷", "∞", or a dash for None."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"  # noqa: RUF001 - the minus sign
    if value == 0:
        return "0"
    sign = "−" if value < 0 else ""  # noqa: RUF001 - the minus sign
    mantissa, exponent = f"{abs(value):.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 < power < 5:
        places = max(digits - 1 - power, 0)
        shown = f"{abs(value):,.{places}f}"
        return sign + (shown.rstrip("0").rstrip(".") if "." in shown else shown)
    factor = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    tail = power_of_ten(power)
    return f"{sign}{tail}" if factor == "1" else f"{sign}{factor}{NBSP}×{NBSP}{tail}"  # noqa: RUF001 - multiplication sign


def power_of_ten(exponent: int) -> str:
    """A power of ten in print: "10⁻⁷".

    Args:
        exponent: any, also where the power is no number of this machine.
    """
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def count(value: float | None) -> str:
    """A count with separators of thousands: "12,345", or a dash for None."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:z,.0f}"


def duration(seconds: float | None) -> str:
    """A time in words: "0.4 s", "3 min 5 s", or a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def percent(value: float | None) -> str:
    """A share as a percentage with two significant digits, and more where it would look like all; a dash for None."""
    if value is None or not math.isfinite(value):
        return MISSING
    scaled = 100 * value
    if scaled and abs(scaled) < 0.01:
        return f"below 0.01{NBSP}%"
    if 99.5 <= scaled < 100:
        return f"{'above 99.9' if scaled >= 99.95 else format(scaled, '.1f')}{NBSP}%"
    return f"{decimal(scaled, 2) if abs(scaled) < 10 else format(scaled, 'z.0f')}{NBSP}%"


def quantity(score: Score | None) -> Quantity:
    """A score ready for print; decibels with one decimal place, shares as percentages."""
    if score is None:
        return Quantity()
    if score.value is None:
        text = score.outcome.label.replace("_", " ")
    elif score.unit == "dB":
        text = f"{format(score.value, 'z.1f') if math.isfinite(score.value) else decimal(score.value)}{NBSP}dB"
    elif score.unit == "share":
        text = percent(score.value)
    else:
        text = decimal(score.value)
    return Quantity(value=score.value, text=text, evidence=score.evidence.value, outcome=score.outcome, note=score.note)


def or_dash(found: Quantity) -> Quantity:
    """The number; a dash where there is none, beside a column that says how the computation ended.

    Args:
        found: of a score.
    """
    return Quantity() if found.value is None else found


def between(score: Score | None) -> str:
    """The interval of a score in print, "" without one.

    One that was clipped to 0 would look certain: it is printed as it was before.
    """
    if score is None or score.value is None or score.interval is None:
        return ""
    low, high = score.interval
    given = score.details.get("unclipped_interval") if low == high == 0.0 else None
    ends = [as_number(end) for end in given] if isinstance(given, list | tuple) else []
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        low, high = ends[0], ends[1]
    return f"{decimal(low)} to{NBSP}{decimal(high)}{', not clipped at 0' if low < 0.0 and ends else ''}"


def beside_blind(found: Quantity, blind: Quantity) -> Quantity:
    """A predicted error, in words where it is above what a blind guess gives or above the range of the data.

    A first-order prediction has no ceiling, while no attacker has to do worse than guess: the number itself tells nothing more.
    """
    limit = min(1.0, 1.0 if blind.value is None else blind.value)
    if found.value is None or found.value <= limit:
        return found
    return replace(found, text=f"above {'the range' if blind.value is None else 'a blind guess'}")

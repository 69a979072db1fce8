"""One number with all that is needed to read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from gradleak.results.errors import InputError
from gradleak.results.outcome import Outcome

# Levels of lists and tables in a record; deeper ones no reader takes.
DEEPEST = 90


class Evidence(StrEnum):
    """Relation of a number to the quantity that its name states."""

    EXACT = "exact"
    UPPER_BOUND = "upper_bound"
    LOWER_BOUND = "lower_bound"
    ESTIMATE = "estimate"
    ATTACK = "attack"


class Leakier(StrEnum):
    """Direction in which more leaks: a higher or a lower value; neither for what is no measure of leakage."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


@dataclass(frozen=True, kw_only=True)
class Score:
    """A named number with unit, direction, evidence kind, interval, sample size and outcome.

    `value` is None exactly when the outcome yields no number; it is never 0 or NaN in place of "could not".

    Attributes:
        name: what was measured, in lower snake case.
        value: the number, or None.
        unit: for instance "input", "pixel_rmse", "dB".
        leakier: whether higher or lower values mean that more leaks, or neither.
        evidence: how the number relates to what the name states.
        interval: (low, high) of a confidence interval, or None.
        n: the number of independent items behind the value.
        outcome: how the computation ended.
        note: one sentence that a reader needs, or "".
        details: further numbers or words (residual, matvecs, null dimension, route ...).
        about: what tells it from other scores of that name in one finding (a round, a statistic, an estimator).

    Raises:
        InputError: if value and outcome contradict each other, or the value or an end of the interval is NaN.
    """

    name: str
    value: float | None
    unit: str
    leakier: Leakier
    evidence: Evidence
    interval: tuple[float, float] | None = None
    n: int = 1
    outcome: Outcome = Outcome.CONVERGED
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, str | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a value that contradicts the outcome; numbers become plain Python numbers."""
        if self.value is not None:
            object.__setattr__(self, "value", float(self.value))
        if self.interval is not None:
            low, high = (float(end) for end in self.interval)
            if not low <= high:
                raise InputError(
                    f"score {self.name}: expected an interval (low, high) with low <= high, got {low, high}"
                )
            object.__setattr__(self, "interval", (low, high))
        object.__setattr__(self, "n", int(self.n))
        if self.outcome.has_value is True and self.value is None:
            raise InputError(f"score {self.name}: outcome {self.outcome.label} needs a value, got None")
        if self.outcome.has_value is False and self.value is not None:
            raise InputError(f"score {self.name}: outcome {self.outcome.label} has no value, got {self.value}")
        if self.value is not None and math.isnan(self.value):
            raise InputError(f"score {self.name}: NaN is not a value; use outcome not_finite with value None")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; infinities become the strings "inf" and "-inf"."""
        found = {entry.name: jsonable(getattr(self, entry.name)) for entry in fields(self)}
        return found if self.about else {key: value for key, value in found.items() if key != "about"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Score:
        """The score that `to_dict` wrote (unknown keys are ignored, so that newer records can be read).

        Raises:
            InputError: if a field is missing or has a value that no score has.
        """
        try:
            return cls._from_dict(data)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InputError(
                f"score: expected what Score.to_dict wrote, got a line without a proper {error}"
            ) from error

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Score:
        value = data["value"]
        interval = data.get("interval")
        note, details, about = data.get("note", ""), data.get("details", {}), data.get("about", {})
        for key, given in {
            "name": data["name"],
            "unit": data["unit"],
            "outcome": data["outcome"],
            "note": note,
        }.items():
            if not isinstance(given, str):
                raise TypeError(f"{key}: {given!r} is not text")
        if not isinstance(details, Mapping):
            raise TypeError(f"details: {details!r} is not a table")
        if not isinstance(about, Mapping) or not all(type(value) in (str, int) for value in about.values()):
            raise TypeError("about: expected a table of texts and whole numbers")
        return cls(
            name=data["name"],
            value=None if value is None else float(value),
            unit=data["unit"],
            leakier=Leakier(data["leakier"]),
            evidence=Evidence(data["evidence"]),
            interval=None if interval is None else (float(interval[0]), float(interval[1])),
            n=int(data.get("n", 1)),
            outcome=Outcome.from_label(data["outcome"]),
            note=note,
            details=details,
            about=about,
        )


def jsonable(value: Any, *, depth: int = 0) -> Any:
    """`value` as what JSON can hold: infinities as "inf", NaN as None, tuples and sets as lists, members as labels.

    Numbers of other libraries (numpy, and zero-dimensional arrays and tensors) become plain ones. Larger arrays are
    refused: private tensors never enter a record.

    Args:
        value: anything.
        depth: how many lists and tables it lies in.

    Raises:
        InputError: for an object that has no such form, or lists and tables that lie too deep in each other.
    """
    if depth > DEEPEST:
        raise InputError(f"record: expected lists and tables at most {DEEPEST} deep in each other, got deeper ones")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isnan(number):
            return None
        if math.isinf(number):
            return "inf" if number > 0 else "-inf"
        return number
    if isinstance(value, Mapping):
        return {str(jsonable(key, depth=depth + 1)): jsonable(item, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item, depth=depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(item, depth=depth + 1) for item in value), key=str)
    if hasattr(value, "item") and tuple(getattr(value, "shape", (0,))) == ():
        return jsonable(value.item(), depth=depth)
    raise InputError(
        f"record: expected numbers, words, lists and dicts, got {type(value).__name__}; "
        "arrays do not enter a record, write the numbers that a reader needs"
    )

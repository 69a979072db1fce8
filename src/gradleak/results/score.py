"""One number with all that is needed to read it, the median of several, and how a computation ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from gradleak.results.errors import InputError


class Outcome(Enum):
    """End of a computation; every member carries an explanation and a remedy.

    `has_value` says whether a number accompanies the outcome: True always, False never, None where the note says
    which part is determined. Members compare by identity and are written to a record by their lower-case name.
    """

    CONVERGED = (
        "The computation met its own stopping criterion.",
        "Nothing to do.",
        True,
    )
    BUDGET_SPENT = (
        "The iteration budget ended before the stopping criterion was met; the best value so far is kept.",
        "Raise the number of iterations, or read the value as an estimate with the residual given beside it.",
        True,
    )
    PLATEAU = (
        "The loss stopped improving before the stopping criterion was met; the best value so far is kept.",
        "Try more starts or another attack: a plateau is no evidence of safety.",
        True,
    )
    NOT_IDENTIFIABLE = (
        "The data determine the answer only in part (a null space, or several answers that fit equally well).",
        "Read the note for what is determined; more knowledge or another release is needed for the rest.",
        None,
    )
    NOT_INFORMATIVE = (
        "The measure says nothing about this release (for instance a map whose derivative is zero everywhere).",
        "Use an attack or another measure; this is not evidence of safety.",
        False,
    )
    NO_SIGNAL = (
        "There is nothing to match: the update, or the part of it that is needed, is zero or does not stand out of the noise.",
        "Read the note for which of them it is. Where it is zero, check that the model was not already converged and that the "
        "right tensors were shared; where noise hides it, a stronger attack may still find it.",
        False,
    )
    NOT_FINITE = (
        "NaN or infinite values appeared.",
        "Check the update for non-finite entries, lower the step size, or use float64.",
        False,
    )
    NOT_RESOLVABLE = (
        "The data are too few to tell what was asked for (a rate of 0.1 % from 200 samples, two classes from one).",
        "Play more trials, or ask for a rate that they resolve; this is not evidence of safety.",
        False,
    )
    SATURATED = (
        "Saturated, not resolvable: the value is about as large as so many trials can certify at all, so that it says how "
        "many they were; the truth may lie far above.",
        "Run more trials; until then read the value as a lower bound that was not allowed to be larger.",
        True,
    )
    CONSTANT = (
        "The model gives one answer whatever its input is, so that it is of no use.",
        "Give a defense no credit for what such a model hides; look for a layer that erases its input, or train with less "
        "noise.",
        None,
    )
    UNSUPPORTED = (
        "This combination of model, release and measure or attack is not supported.",
        "See the note for the reason and for what to use instead.",
        False,
    )
    INCONSISTENT = (
        "The update is not what the stated model, protocol and defenses produce.",
        "See the likely causes in the note: mode, normalization, loss, reduction, order of tensors, scale.",
        False,
    )
    CONTROL_FAILED = (
        "A control of the audit failed, so its results cannot be read.",
        "Inspect the controls: a planted leak must be found, and pure noise must give nothing.",
        False,
    )
    FAILED = (
        "The computation raised an unexpected error; the traceback is kept in the record.",
        "Read the traceback; if the fault is in gradleak, report it.",
        False,
    )

    def __init__(self, explanation: str, remedy: str, has_value: bool | None) -> None:
        """Attach the explanation, the remedy and whether a value may accompany the outcome."""
        self.explanation = explanation
        self.remedy = remedy
        self.has_value = has_value

    def __repr__(self) -> str:
        """The name alone; explanation and remedy are long."""
        return f"<{type(self).__name__}.{self.name}>"

    @property
    def label(self) -> str:
        """The lower-case name that is written to records."""
        return self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> Outcome:
        """The member with this label.

        Raises:
            KeyError: if there is no such outcome.
        """
        return cls[label.upper()]


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
            # Plus zero, so that there is no minus zero.
            object.__setattr__(self, "value", float(self.value) + 0.0)
        if self.interval is not None:
            low, high = (float(end) + 0.0 for end in self.interval)
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

    def __repr__(self) -> str:
        """One line: name, value, unit, interval, evidence, outcome. `to_dict` has everything."""
        return f"Score({self})"

    def __str__(self) -> str:
        """The same without the class: "pixel_rmse = 0.0123 pixel_rmse (attack)"."""
        value = "no value" if self.value is None else f"{self.value:.6g}"
        interval = "" if self.interval is None else f" in [{self.interval[0]:.4g}, {self.interval[1]:.4g}]"
        ended = "" if self.outcome is Outcome.CONVERGED else f", {self.outcome.label}"
        return f"{self.name} = {value} {self.unit}{interval} ({self.evidence.value}{ended})"

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


def median(values: Sequence[float]) -> float | None:
    """The median: of two middle values their mean, or the finite one where the other is infinite; None for no values.

    A perfect copy has an infinite PSNR. Half of the way to infinity is infinity, so that one perfect copy of two would
    make the middle perfect, too.

    Examples:
        >>> median([0.1, 0.4, 0.2]), median([0.1, 0.4]), median([20.0, math.inf]), median([])
        (0.2, 0.25, 20.0, None)
    """
    if not values:
        return None
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    if math.isinf(low) or math.isinf(high):
        return low if math.isfinite(low) else high
    return low + (high - low) / 2

"""The controls of a run: what had to be found, and what must not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.reporting import words
from gradleak.reporting.numerals import Quantity, as_number, decimal, quantity
from gradleak.reporting.reading import Line, Reading, mapping
from gradleak.results import Evidence, Score

_FOUND = {True: "nothing beyond chance", False: "something beyond chance", None: "no number"}


@dataclass(frozen=True, kw_only=True)
class ControlView:
    """A control.

    Attributes:
        title: its name in words.
        demand: what had to happen.
        passed: whether it did; None if it did not run.
        meaning: what a failure means.
        pixel_rmse: what the attack reached; of a game its AUROC, of an audit of epsilon the bound.
        baseline: the blind baseline beside it.
        note: a sentence for the reader.
        measure: what was reached, in words; "" for the error of a reconstruction.
        words: what came of a control without a number, "" where there is one.
    """

    title: str
    demand: str
    passed: bool | None
    meaning: str
    pixel_rmse: Quantity
    baseline: Quantity
    note: str
    measure: str = ""
    words: str = ""


def controls(reading: Reading) -> list[ControlView]:
    """One view for every control, in file order.

    Args:
        reading: the sorted lines.
    """
    return [_view(reading, line) for line in reading.of_kind("control")]


def _view(reading: Reading, line: Line) -> ControlView:
    name, passed = str(line.get("item")), line.get("passed")
    owner, measure, error = _reached(reading, line)
    kind = "/".join([owner, *name.split("/")[1:2]])
    title, demand, meaning = words.CONTROLS.get(kind, (name, "", "The results of this run cannot be read."))
    for key in ("attack", "game_name", "audit_name", "adversary"):
        title = f"{title}, {line[key]}" if line.get(key) else title
    if owner == "layers":
        title = f"{title}, {line.get('control_of') or line['layers_name']}"
    baseline = as_number(error.details.get("baseline_pixel_rmse")) if error else None
    for place in (line, mapping(line.get("details"))):
        if baseline is None:
            baseline = as_number(place.get("baseline_pixel_rmse"))
    return ControlView(
        title=title,
        demand=demand,
        passed=passed if isinstance(passed, bool) else None,
        meaning=words.CONTROL_NOT_RUN if passed is None else meaning,
        pixel_rmse=quantity(error),
        baseline=Quantity(value=baseline, text=decimal(baseline), evidence="exact" if baseline else ""),
        note=str(line.get("note") or ""),
        measure=measure,
        words=_FOUND[passed if isinstance(passed, bool) else None] if owner == "layers" else "",
    )


def _reached(reading: Reading, line: Line) -> tuple[str, str, Score | None]:
    """Whose control it is, what it measures in words, and the number."""
    if line.get("game_name"):
        return "game", "AUROC", reading.score(line, "auroc")
    if line.get("layers_name"):
        return "layers", "", None
    if line.get("audit_name"):
        bounds: Sequence[Score] = [
            score for score in reading.scores.get(str(line.get("item")), ()) if score.evidence is Evidence.LOWER_BOUND
        ]
        # What was planted has to be found by all of them, and nothing by none: the one that is nearest to a failure.
        known = [score for score in bounds if score.value is not None]
        planted = str(line.get("item")).startswith("control/positive")
        pick = min if planted else max
        chosen = pick(known, key=lambda score: score.value or 0.0, default=next(iter(bounds), None))
        return "audit", "epsilon of at least", chosen
    return "control", "", reading.score(line, "pixel_rmse")


__all__ = ["ControlView", "controls"]

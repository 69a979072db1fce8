"""What the adversary who knows the defenses reached, beside the one who does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradleak.reporting.numerals import Quantity
from gradleak.reporting.report import Attempt, Report
from gradleak.results import Outcome

_NOT_RUN = Quantity(text="not run")


@dataclass(frozen=True, kw_only=True)
class AdversaryView:
    """One attack on one defended release, by both adversaries.

    Attributes:
        scenario: its scenario.
        example: its example or batch.
        attack: name of the attack.
        static: what the adversary reached who does not know the defenses, or why nothing.
        adaptive: what the one reached who knows them, or why nothing.
        baseline: what the blind adversary reaches.
        notes: why one of them was refused.
    """

    scenario: str
    example: Any
    attack: str
    static: Quantity
    adaptive: Quantity
    baseline: Quantity
    notes: Sequence[str]


def adversaries(report: Report) -> list[AdversaryView]:
    """One view for every attack on a defended release, in the order of the attempts: worst first.

    Args:
        report: whose attempts are sorted.
    """
    found: dict[tuple[str, str, str], dict[str, Attempt]] = {}
    for attempt in report.attempts:
        if attempt.adversary:
            place = (attempt.scenario, str(attempt.example), attempt.attack)
            found.setdefault(place, {})[attempt.adversary] = attempt
    return [_view(by) for by in found.values()]


def notes(views: Sequence[AdversaryView]) -> list[tuple[str, str]]:
    """Pairs of scenario and reason, each once.

    Args:
        views: of a report.
    """
    return list(dict.fromkeys((view.scenario, note) for view in views for note in view.notes))


def _view(by: dict[str, Attempt]) -> AdversaryView:
    one = next(iter(by.values()))
    refused = [attempt for attempt in by.values() if attempt.outcome is Outcome.UNSUPPORTED]
    known = [attempt.baseline for attempt in by.values() if attempt.baseline.value is not None]
    return AdversaryView(
        scenario=one.scenario,
        example=one.example,
        attack=one.attack,
        static=_reached(by.get("static")),
        adaptive=_reached(by.get("adaptive")),
        baseline=known[0] if known else Quantity(),
        notes=[f"{attempt.label}: {attempt.note}" for attempt in refused],
    )


def _reached(attempt: Attempt | None) -> Quantity:
    if attempt is None:
        return _NOT_RUN
    if attempt.pixel_rmse.value is not None or attempt.outcome is None:
        return attempt.pixel_rmse
    text = "refused" if attempt.outcome is Outcome.UNSUPPORTED else attempt.outcome.label.replace("_", " ")
    return replace(attempt.pixel_rmse, text=text, outcome=attempt.outcome, note=attempt.note)


__all__ = ["AdversaryView", "adversaries", "notes"]

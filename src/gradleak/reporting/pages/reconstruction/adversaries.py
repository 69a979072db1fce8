"""What the adversary who knows the defenses reached, beside the one who does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradleak.reporting.blocks import Block, Column, Section, Style, Table, Text, Words, as_is
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.pages.reconstruction.attempts import ROWS, AttemptView
from gradleak.reporting.pages.reconstruction.texts import ADVERSARIES
from gradleak.reporting.words import sentence
from gradleak.results import Evidence, Outcome


def adversary_section(views: Sequence[AttemptView], context: Context) -> Section | None:
    """One row for every attack on a defended release, the worst first; None where no release is defended.

    Args:
        views: of all attacks, the worst first.
        context: the rest of the record.
    """
    found: dict[tuple[str, str, str], dict[str, AttemptView]] = {}
    for view in views:
        if view.finding.adversary:
            place = (view.scenario, view.place, view.finding.attack)
            found.setdefault(place, {})[view.finding.adversary] = view
    if not found:
        return None
    error = sentence(context.error)
    columns = [
        Column(label="Scenario"),
        Column(label="Example"),
        Column(label="Attack"),
        Column(label=f"{error}, static", numeric=True, evidence=Evidence.ATTACK),
        Column(label=f"{error}, adaptive", numeric=True, evidence=Evidence.ATTACK),
        Column(label="Blind baseline", numeric=True, evidence=Evidence.EXACT),
    ]
    rows = [_row(place, by) for place, by in found.items()]
    notes = dict.fromkeys(
        f"{view.scenario}: {view.label}: {as_is(view.note)}"
        for by in found.values()
        for view in by.values()
        if view.finding.outcome is Outcome.UNSUPPORTED
    )
    blocks: list[Block] = [Text(parts=[ADVERSARIES])]
    blocks.append(
        Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks on defended releases", single=True)
    )
    blocks += [Text(parts=list(notes), style=Style.FINE)] if notes else []
    return Section(anchor="adversaries", title="Static and adaptive, side by side", label="Adversaries", blocks=blocks)


def _row(place: tuple[str, str, str], by: Mapping[str, AttemptView]) -> list[Words]:
    scenario, example, attack = place
    blind = next((view.baseline for view in by.values() if view.baseline.value is not None), Quantity())
    return [scenario, example, as_is(attack), _reached(by.get("static")), _reached(by.get("adaptive")), blind]


def _reached(view: AttemptView | None) -> Quantity:
    if view is None:
        return Quantity(text="not run")
    outcome = view.finding.outcome
    if view.scored or outcome is None:
        return view.error
    text = "refused" if outcome is Outcome.UNSUPPORTED else outcome.label.replace("_", " ")
    return replace(view.error, text=text, outcome=outcome, note=view.note)


__all__ = ["adversary_section"]

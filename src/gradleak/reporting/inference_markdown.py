"""The section on inference in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradleak.reporting import inference_view
from gradleak.reporting.inference_view import InferenceView, defense_rows, merged, noted, warnings
from gradleak.reporting.markdown_parts import escape, number, table
from gradleak.reporting.numerals import MISSING, count, decimal, percent


def inference_section(views: Sequence[InferenceView]) -> Iterable[str]:
    """The lines of the section on inference; none without a game.

    Args:
        views: every game and adversary.
    """
    if not views:
        return
    yield "## Inference"
    yield ""
    yield inference_view.TEXT
    yield ""
    for warning in warnings(views):
        yield f"> {escape(warning)}"
        yield ""
    views = merged(views)
    header = (
        "Scenario and game", "Adversary", "More than chance", "AUROC", "TPR at low FPR", "Success rate", "Best blind guess",
        "Advantage", "Trials, seeds",
    )  # fmt: skip
    yield from table(
        header,
        [
            (
                escape(view.label),
                escape(view.adversary),
                view.verdict,
                _with_interval(view, "auroc") + (f" ± {view.spread} over seeds" if view.spread else ""),
                _with_interval(view, "tpr")
                + (f" at {percent(rate)} FPR" if (rate := view.false_positive_rate) else ""),
                _with_interval(view, "success"),
                view.blind,
                _with_interval(view, "advantage"),
                f"{count(view.trials)}, {view.seeds}",
            )
            for view in views
        ],
    )
    yield from (f"- {escape(label)}: {escape(note)}" for label, note in noted(views))
    yield ""
    yield from _defenses(views)
    yield from _rounds([view for view in views if len(view.rounds) > 1])
    yield from _bounds([view for view in views if view.informed])


def _rounds(views: Sequence[InferenceView]) -> Iterable[str]:
    if not views:
        return
    yield "Advantage from each round alone:"
    yield ""
    numbers = sorted({point.number for view in views for point in view.rounds})
    rows = []
    for view in views:
        found = {point.number: decimal(point.advantage) for point in view.rounds}
        rows.append((escape(view.label), escape(view.adversary), *(found.get(place, MISSING) for place in numbers)))
    yield from table(("Scenario and game", "Adversary", *(f"Round {place + 1}" for place in numbers)), rows)


def _bounds(views: Sequence[InferenceView]) -> Iterable[str]:
    if not views:
        return
    yield inference_view.FANO
    yield ""
    header = ("Scenario and game", "Adversary", "Information, nats", "Advantage it allows", "Information shown, nats",
              "Advantage by it", "Advantage reached")  # fmt: skip
    parts = ("information", "fano_bound", "estimate", "fano_estimate", "advantage")
    yield from table(
        header,
        [(escape(v.label), escape(v.adversary), *(number(getattr(v, part)) for part in parts)) for v in views],
    )


def _defenses(views: Sequence[InferenceView]) -> Iterable[str]:
    rows = defense_rows(views)
    if not rows:
        return
    yield "What a defense buys against an adversary who knows it:"
    yield ""
    header = ("Scenario and game", "Defenses", "AUROC, static", "Advantage, static", "AUROC, adaptive", "Advantage, adaptive",
              "Worth of the model")  # fmt: skip
    cells = []
    for row in rows:
        known = row.adaptive or row.static
        sides: list[str] = []
        for view in (row.static, row.adaptive):
            sides += (
                [MISSING, "not played"] if view is None else [number(view.auroc), _with_interval(view, "advantage")]
            )
        worth = f"{decimal(known.utility)} {known.metric}" if known and known.utility is not None else MISSING
        cells.append((escape(row.label), escape(row.defenses), *sides, worth))
    yield from table(header, cells)


def _with_interval(view: InferenceView, field: str) -> str:
    interval = view.intervals[field]
    return number(getattr(view, field)) + (f" ({interval})" if interval else "")


__all__ = ["inference_section"]

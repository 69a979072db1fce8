"""The section on measured privacy loss in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradleak.reporting import privacy_view, words
from gradleak.reporting.markdown_parts import escape, number, table
from gradleak.reporting.numerals import MISSING, Quantity, count, decimal
from gradleak.reporting.privacy_view import PrivacyView, broken, noted, shown_theory


def privacy_section(views: Sequence[PrivacyView]) -> Iterable[str]:
    """The lines of the section on measured privacy loss; none without an audit.

    Args:
        views: every audit and scenario.
    """
    if not views:
        return
    yield "## Empirical privacy loss"
    yield ""
    yield privacy_view.TEXT
    yield ""
    yield privacy_view.TERMS
    yield ""
    header = (
        "Scenario and audit", "What came of it", "Epsilon, at least", "By", "At most certifiable", "Claimed", "δ",
        "Exact, these hypotheses", "Trials a hypothesis",
    )  # fmt: skip
    yield from table(
        header,
        [
            (
                escape(view.label),
                f"**{escape(view.state)}**" if view.loud else escape(view.state),
                number(view.epsilon),
                escape(f"{words.statistic(view.best.statistic)}, {view.best.estimator}" if view.best else MISSING),
                decimal(view.best.largest if view.best else None),
                number(view.claim),
                decimal(view.delta),
                number(view.exact),
                count(view.trials),
            )
            for view in views
        ],
    )
    yield from (f"- {escape(label)}: {escape(note)}" for label, note in noted(views))
    yield ""
    yield from _theory(views)
    yield from _measured(views)


def privacy_lines(views: Sequence[PrivacyView]) -> Iterable[str]:
    """What stands at the top of a report: every broken claim, and the largest lower bound.

    Args:
        views: every audit and scenario.
    """
    for sentence in broken(views):
        yield f"> **THE CLAIM IS BROKEN.** {escape(sentence)}"
        yield ""
    worst = max((view for view in views if view.best), key=lambda view: view.epsilon.value or 0.0, default=None)
    if worst is None or worst.best is None:
        return
    yield f"- Largest lower bound on epsilon: {number(worst.epsilon)} ({escape(worst.label)})"
    yield f"- Claimed there: {number(worst.claim)}; exact for these two hypotheses: {number(worst.exact)}"
    if worst.best.largest is not None:
        yield f"- So many trials can certify at most: {decimal(worst.best.largest)}"
    yield ""


def _theory(views: Sequence[PrivacyView]) -> Iterable[str]:
    names = shown_theory(views)
    if not names:
        return
    yield privacy_view.KNOWN
    yield ""
    header = ("Scenario and audit", *(privacy_view.THEORY[name] for name in names))
    yield from table(
        header,
        [(escape(view.label), *(number(view.theory.get(name, Quantity())) for name in names)) for view in views],
    )


def _measured(views: Sequence[PrivacyView]) -> Iterable[str]:
    rows = [
        (
            escape(view.label),
            escape(words.statistic(found.statistic)),
            escape(found.estimator),
            number(found.epsilon),
            found.interval or MISSING,
            decimal(found.largest),
            escape(found.direction) or MISSING,
            escape(found.selection) or MISSING,
        )
        for view in views
        for found in view.measured
    ]
    if not rows:
        return
    yield "Every epsilon from the trials, bounds and estimates apart:"
    yield ""
    header = (
        "Scenario and audit",
        "Statistic",
        "Estimator",
        "Epsilon",
        "Interval",
        "At most certifiable",
        "Direction",
        "Threshold",
    )
    yield from table(header, rows)


__all__ = ["privacy_lines", "privacy_section"]

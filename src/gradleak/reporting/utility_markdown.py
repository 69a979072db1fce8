"""The section of the Markdown report on what the trained models are worth."""

from __future__ import annotations

from collections.abc import Iterable

from gradleak.reporting.markdown_parts import escape, number, table
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.report import Report
from gradleak.reporting.utility_view import TEXT, UtilityView, utilities, warnings


def utility_section(report: Report) -> Iterable[str]:
    """The lines of the section, none where no utility was measured.

    Args:
        report: what to show.
    """
    views = utilities(report.reading)
    if not views:
        return
    yield "## Utility beside privacy"
    yield ""
    yield TEXT
    yield ""
    for warning in warnings(views):
        yield f"> {escape(warning)}"
        yield ""
    reached = {view.name: view.worst.pixel_rmse if view.worst else Quantity() for view in report.scenarios}
    header = (
        "Scenario", "Test metric", "Value", "95 % interval", "Rows, seeds", "Blind answer", "Credit", "Learning rate",
        "RMSE reached", "Attacked", "Trained through", "Epsilon", "Kept share", "Cosine to the true update",
        "Layers replaced",
    )  # fmt: skip
    yield from table(header, [_row(view, reached.get(view.scenario, Quantity())) for view in views])
    noted = [(view.scenario, note) for view in views for note in (view.note, view.epsilon_note) if note]
    yield from (f"- {escape(scenario)}: {escape(note)}" for scenario, note in noted)
    yield ""


def _row(view: UtilityView, reached: Quantity) -> tuple[str, ...]:
    return (
        escape(view.scenario),
        escape(view.metric),
        number(view.value),
        view.interval,
        f"{view.rows}, {view.seeds}",
        view.blind,
        view.standing,
        view.learning_rate,
        number(reached),
        escape(view.attacked),
        escape(view.trained),
        number(view.epsilon) + (f" ({escape(view.epsilon_terms)})" if view.epsilon_terms else ""),
        view.kept_share,
        view.cosine,
        escape("; ".join(view.replaced) or "none"),
    )


__all__ = ["utility_section"]

"""The section on where a release leaks in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradleak.reporting import layers_words
from gradleak.reporting.layers_view import AdviceView, LayerCell, LayerColumn, LayerMap, leading_maps
from gradleak.reporting.layers_words import ABOUT, CHANCE, VISIBLE, called, few
from gradleak.reporting.markdown_parts import escape, number, table
from gradleak.reporting.numerals import MISSING, count, decimal, percent
from gradleak.reporting.words import sentence

# Before the number of the leakiest layer of a measure, and of those that may be it.
_MARKS = {"leakiest": "▲ ", "reaches": "≈ "}
_KEY = (
    "▲ leaks most by this measure; ≈ cannot be told from it; ° not beyond chance. Numbers "
    "of different measures are not to be compared, and a word in place of a number is no evidence of safety."
)


def layers_section(maps: Sequence[LayerMap]) -> Iterable[str]:
    """The lines of the section on where it leaks; none without a map.

    Args:
        maps: one for every setting and grouping.
    """
    if not maps:
        return
    yield "## Where it leaks"
    yield ""
    yield layers_words.TEXT
    yield ""
    for one in maps:
        yield f"### {escape(one.title or 'Layers')}"
        yield ""
        yield from _map(one)
        for advice in one.advice:
            yield from _advice(advice)
        yield from (line for column in one.columns for line in _scores(one, column))
    if any(one.advice for one in maps):
        yield layers_words.ADVICE
        yield ""
        yield f"> **No guarantee.** {layers_words.NOT_SAID}"
        yield ""
    meanings = layers_words.meanings(column.measure for one in maps for column in one.columns)
    yield from (f"- {escape(sentence(name))}: {meaning}." for name, meaning in meanings.items())
    if meanings:
        yield ""


def layer_lines(maps: Sequence[LayerMap]) -> Iterable[str]:
    """What stands at the top of a report: the leakiest layer for each thing that can leak, and what to protect first.

    Args:
        maps: one for every setting and grouping.
    """
    shown = leading_maps(maps)
    for one in shown:
        for about, column in one.leading:
            first = column.leakiest
            assert first is not None
            what = f"Leaks most {ABOUT[about]}" if about else "Leaks most"
            span = f", {first.interval}" if first.interval else ""
            rivals = f"; not told from {few([cell.layer for cell in column.rivals])}" if column.rivals else ""
            chance = f"; {CHANCE}" if first.chance else ""
            told = f"{first.unit} by {column.label}{span}{chance}{rivals}; {one.title}"
            yield f"- {what}: {escape(called(first.layer))}, {number(first.score)} ({escape(told)})"
        for advice in one.advice[:1]:
            if advice.chosen:
                share = f" ({percent(advice.share)} of all parameters)" if advice.share is not None else ""
                passed = f"; {escape(advice.passed)}" if advice.passed else ""
                names = escape(few([row.layer for row in advice.chosen]))
                yield f"- To protect first, within the budget: {names}{share}{passed}; no guarantee"
    if shown:
        yield ""


def _map(one: LayerMap) -> Iterable[str]:
    if not one.columns:
        return
    if not one.valued:
        yield layers_words.NO_VALUE
        yield ""
    heads = [escape(f"{column.label}{f', {column.unit}' if column.unit else ''}") for column in one.columns]
    yield from table(
        (one.noun, *heads),
        [(escape(layer), *(_cell(column, layer) for column in one.columns)) for layer in one.layers],
    )
    yield f"{one.order}. {_KEY}"
    yield ""


def _cell(column: LayerColumn, layer: str) -> str:
    cell = column.cells.get(layer)
    if cell is None:
        return escape(column.lost.text if column.lost is not None else "not in the record")
    effect = f" (effect {decimal(cell.effect)})" if cell.effect is not None else ""
    mark = "° " if cell.chance else _MARKS.get(cell.standing, "")
    return mark + escape(cell.score.text + effect)


def _advice(advice: AdviceView) -> Iterable[str]:
    chosen = [escape(called(row.layer)) for row in advice.chosen]
    yield "#### Which layers to protect first"
    yield ""
    budget = f"within a budget of {percent(advice.budget)} of all parameters"
    if chosen:
        share = f" ({percent(advice.share)} of them)" if advice.share is not None else ""
        yield f"**{', '.join(chosen)}**{share}, {budget}, by {escape('; '.join(advice.profiles))}."
        if advice.passed:
            yield f"{escape(sentence(advice.passed))}."
    else:
        yield f"No layer is advised {budget}."
    yield ""
    header = ("Rank", "Layer", "Within the budget", "Parameters", "Of all", "Why")
    yield from table(
        header,
        [
            (
                count(row.rank),
                escape(row.layer),
                "**protect**" if row.chosen else "not chosen",
                count(row.entries),
                percent(row.share),
                escape(sentence(row.why)),
            )
            for row in advice.rows
        ],
    )
    if advice.note:
        yield f"Before acting: {escape(advice.note)}."
        yield ""


def _scores(one: LayerMap, column: LayerColumn) -> Iterable[str]:
    about = f", {escape(column.topic)}" if column.topic else ""
    parts = [column.direction, column.settings, *column.notes]
    yield f"**{escape(column.label)}**{about}: {escape('. '.join(sentence(part) for part in parts if part))}."
    yield ""
    if column.control is False:
        yield f"**{layers_words.FAILED}**"
        yield ""
    if not column.cells:
        rows = "sets" if one.grouping == VISIBLE else "layers"
        yield f"All {rows}: {number(column.lost) if column.lost is not None else MISSING}"
        yield ""
        return
    header = (
        "Rank", one.noun, one.placed, "Score", "Interval", "n", "May be the leakiest", "Shuffled, chance or blind",
        "Outcome",
    )  # fmt: skip
    yield from table(header, [_row(one, cell) for cell in column.ranked])


def _row(one: LayerMap, cell: LayerCell) -> tuple[str, ...]:
    effect = f" (effect {decimal(cell.effect)})" if cell.effect is not None else ""
    shuffled = [f"shuffled: {cell.null.text}"] if cell.null is not None else []
    outcome = cell.score.outcome.label.replace("_", " ") if cell.score.outcome else MISSING
    return (
        count(cell.place),
        escape(cell.layer),
        str(one.place(cell.layer)),
        f"{number(cell.score)}{escape(effect)}",
        escape(cell.interval or MISSING),
        count(cell.n),
        cell.may_lead or MISSING,
        escape("; ".join([*shuffled, cell.beside]).strip("; ") or MISSING),
        escape(outcome + (f": {cell.score.note}" if cell.score.note else "")),
    )

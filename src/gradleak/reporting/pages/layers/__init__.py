"""The page on where a release leaks: a heat map of layers by measures, every score, and which layers to protect first."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Block,
    Column,
    Figure,
    Fold,
    Inline,
    Level,
    Note,
    Section,
    Small,
    Style,
    Table,
    Tag,
    Text,
    Tile,
    Tiles,
    Words,
    as_is,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, between, count, decimal, percent
from gradleak.reporting.pages.layers.view import (
    LayerColumn,
    LayerMap,
    chosen,
    chosen_share,
    layer_maps,
    leading_maps,
    left_told,
    passed_over,
)
from gradleak.reporting.pages.layers.wording import (
    ABOUT,
    ADVICE,
    CHANCE,
    FAILED,
    KEY,
    KNOWN,
    LEAKS,
    NO_VALUE,
    NOT_SAID,
    SCALE,
    TEXT,
    called,
    few,
    meanings,
    measure_name,
    plain_why,
    right,
)
from gradleak.reporting.words import sentence
from gradleak.results.findings.layers import VISIBLE, Advice, LayersFinding

_NO_SAY = "so without a say in what to protect where a release carries some"

# More columns than this are too narrow to be read; the others stand in a figure of their own.
MOST_COLUMNS = 6
# Before the number of the leakiest layer of a measure, and of those that may be it.
_MARKS = {"leakiest": "▲ ", "reaches": "≈ "}
_AHEAD = "ahead of it, but too large for the budget: "


def page(findings: Sequence[LayersFinding], context: Context) -> Section | None:
    """The section on where it leaks, None where no measure of layers stands in the record.

    Args:
        findings: of this kind.
        context: the rest of the record.
    """
    maps = layer_maps(findings)
    if not maps:
        return None
    return Section(
        anchor="layers",
        title="Where it leaks",
        evidence=_evidence(maps),
        reading=[Text(parts=[LEAKS])],
        blocks=[Text(parts=[TEXT, KNOWN]), Text(parts=[SCALE], style=Style.FINE)],
        sections=[
            *(_map(one, number, maps) for number, one in enumerate(maps, 1)),
            *_advised(maps),
            *_meanings(maps),
        ],
    )


def _evidence(maps: Sequence[LayerMap]) -> list[Block]:
    """The leakiest layer for each thing that can leak, and what to protect first."""
    tiles = [Tiles(tiles=[*_leading(one), *_counted(one, maps)]) for one in leading_maps(maps)]
    return [Text(parts=["Layers that leak most"], style=Style.HEADING), *tiles] if tiles else []


def _leading(one: LayerMap) -> list[Tile]:
    tiles = []
    for about, column in one.leading:
        first = column.leakiest
        assert first is not None
        told = [f"{column.unit} by {column.label}", between(column.scores[first])]
        told += [right(column.scores[first]), CHANCE if column.chance(first) else ""]
        told += [f"{few(column.rivals)} may leak as much" if column.rivals else ""]
        told += [f"as if there were {assumed}, {_NO_SAY}" if (assumed := column.finding.assumed_noise) else ""]
        tiles.append(
            Tile(
                label=f"Leaks most {ABOUT[about]}" if about in ABOUT else f"Leaks most, {as_is(column.label)}",
                value=as_is(called(first)),
                sub=[column.number(first), as_is("; ".join(part for part in (*told, one.title) if part))],
                evidence=column.scores[first].evidence,
            )
        )
    return tiles


def _counted(one: LayerMap, maps: Sequence[LayerMap]) -> list[Tile]:
    names = [layer.name for layer in chosen(one.advice)] if one.advice is not None else []
    told = []
    if one.advice is not None and names:
        told = [_share(one.advice), _passed(one.advice), left_told(one, maps), "no guarantee"]
    if not names:
        told = ["no advice stands in the record" if one.advice is None else "no layer is advised"]
    return [
        Tile(
            label="To protect first, within the budget",
            value=as_is(few(names)) or MISSING,
            sub=as_is("; ".join(part for part in (*told, one.title) if part)),
        ),
        *([_without(one)] if one.without else []),
    ]


def _without(one: LayerMap) -> Tile:
    return Tile(
        label="Without a value",
        value=f"{one.without} of {len(one.layers) * len(one.columns)}",
        sub=as_is(f"numbers of {one.title} could not be computed; no evidence of safety"),
    )


def _share(advice: Advice) -> str:
    share = chosen_share(advice)
    return "" if share is None else f"{percent(share)} of all parameters"


def _passed(advice: Advice) -> str:
    names = passed_over(advice)
    return f"{_AHEAD}{few(names)}" if names else ""


def _map(one: LayerMap, number: int, maps: Sequence[LayerMap]) -> Section:
    """One scenario, audit and grouping: figures, numbers, advice, and every score in a fold."""
    blocks: list[Block] = [Text(parts=[f"{one.order}."], style=Style.FINE)]
    for start in range(0, len(one.columns) if one.layers else 0, MOST_COLUMNS):
        blocks.append(_figure(one, one.columns[start : start + MOST_COLUMNS], prefix=f"layers-{number}-{start}"))
    if not one.valued:
        blocks.append(Text(parts=[NO_VALUE]))
    blocks += [_numbers(one), Text(parts=[KEY], style=Style.FINE)]
    if one.advice is not None:
        blocks += _advice(one.advice, one.columns, left_told(one, maps))
    measures = f"{len(one.columns)} {'measure' if len(one.columns) == 1 else 'measures'}"
    rows = f"{len(one.layers)} {'row' if len(one.layers) == 1 else 'rows'}"
    title = f"Every score of {rows} by {measures}, the leakiest first"
    scores = [block for column in one.columns for block in _scores(one, column)]
    blocks.append(Fold(title=title, blocks=scores, printed=True))
    return Section(anchor=f"layers-{number}", title=as_is(one.title), label=None, blocks=blocks)


def _figure(one: LayerMap, columns: Sequence[LayerColumn], *, prefix: str) -> Figure:
    def draw() -> str:
        from gradleak.reporting.pages.layers.plots import heat_map

        return heat_map(one, columns, prefix=prefix)

    return Figure(draw=draw, alt=one.described(columns))


def _numbers(one: LayerMap) -> Table:
    """Layers by measures, a number in each cell."""
    heads = [
        Column(
            label=as_is(column.head),
            evidence=column.evidence,
            numeric=True,
        )
        for column in one.columns
    ]
    sees = one.tensors if one.grouping == VISIBLE else {}
    rows: list[list[Words]] = [
        [
            [as_is(layer), *([Small(as_is(f"sees {few(sees[layer])}"))] if layer in sees else [])],
            *(_cell(column, layer) for column in one.columns),
        ]
        for layer in one.layers
    ]
    return Table(columns=[Column(label=one.noun), *heads], rows=rows)


def _cell(column: LayerColumn, layer: str) -> Words:
    if layer not in column.scores:
        return as_is(column.lost.text) if column.lost is not None else "not in the record"
    mark = "° " if column.chance(layer) else _MARKS.get(column.standing(layer), "")
    return [mark, *_score(column, layer)]


def _score(column: LayerColumn, layer: str) -> list[Inline]:
    effect: list[Inline] = [Small(f"effect {decimal(column.effects[layer])}")] if layer in column.effects else []
    return [column.number(layer), *effect]


def _advice(advice: Advice, columns: Sequence[LayerColumn], left: str) -> list[Block]:
    budget = f"within a budget of {percent(advice.budget)} of all parameters"
    names = [called(layer.name) for layer in chosen(advice)]
    told = f"No layer is advised {budget}."
    if names:
        share = chosen_share(advice)
        held = "" if share is None else f" ({percent(share)} of them)"
        by = f", by {as_is('; '.join(map(measure_name, advice.profiles)))}" if advice.profiles else ""
        passed = f" {as_is(sentence(_passed(advice)))}." if _passed(advice) else ""
        still = f" {as_is(sentence(left))}." if left else ""
        told = f"**{as_is(', '.join(names))}**{held}, {budget}{by}.{passed}{still}"
    measures = [*advice.profiles, *advice.silent, *(column.finding.measure for column in columns)]
    rows: list[list[Words]] = [
        [
            count(layer.rank),
            as_is(layer.name),
            Tag("protect", tone="good") if layer.chosen else "not chosen",
            count(layer.entries),
            percent(layer.share),
            as_is(sentence(plain_why(layer.why, measures))),
        ]
        for layer in advice.layers
    ]
    table = Table(
        columns=[
            Column(label="Rank", numeric=True),
            Column(label="Layer", heading=True),
            Column(label="Within the budget"),
            Column(label="Parameters", numeric=True),
            Column(label="Of all", numeric=True),
            Column(label="Why", why=True),
        ],
        rows=rows,
    )
    note = plain_why(advice.note, measures)
    before = [Text(parts=[f"**Before acting:** {as_is(note)}."], style=Style.FINE)] if note else []
    return [Text(parts=["Which layers to protect first"], style=Style.HEADING), Text(parts=[told]), table, *before]


def _scores(one: LayerMap, column: LayerColumn) -> list[Block]:
    about = [f", {part}" for part in (column.topic, column.unit and f"in {column.unit}") if part]
    caption = f"**{as_is(column.label)}**{as_is(''.join(about))}; {column.direction}"
    notes = [column.settings, column.shared_note, "" if column.lost is None else column.lost.note]
    told = " ".join(f"{sentence(part)}." for part in notes if part)
    broken = [Note(title="Control failed.", text=FAILED, level=Level.WARN)] if column.broken else []
    if column.lost is not None:
        sets = "sets" if one.grouping == VISIBLE else "layers"
        return [Text(parts=[f"{caption}. All {sets}: {as_is(column.lost.text)}. {as_is(told)}"])]
    rows: list[list[Words]] = [
        [
            count(column.rank(layer)),
            as_is(layer),
            count(one.layers.index(layer) + 1),
            _score(column, layer),
            between(column.scores[layer]) or MISSING,
            count(column.scores[layer].n),
            column.may_lead(layer) or MISSING,
            as_is(column.compared(layer)) or MISSING,
            [
                words.outcome(column.scores[layer].outcome),
                *([Small(as_is(note))] if (note := column.note(layer)) else []),
            ],
        ]
        for layer in column.ranked
    ]
    table = Table(
        columns=[
            Column(label="Rank", numeric=True),
            Column(label=one.noun, heading=True),
            Column(label=f"Place in the {one.source}", numeric=True),
            Column(label="Score", evidence=column.evidence, numeric=True),
            Column(label="Interval"),
            Column(label="n", numeric=True),
            Column(label="May be the leakiest"),
            Column(label="Shuffled, chance or blind"),
            Column(label="Outcome"),
        ],
        rows=rows,
        caption=caption,
        dense=True,
    )
    return [*broken, table, *([Text(parts=[as_is(told)], style=Style.FINE)] if told else [])]


def _advised(maps: Sequence[LayerMap]) -> list[Section]:
    """Section on how to read the advice."""
    if all(one.advice is None for one in maps):
        return []
    blocks: list[Block] = [Text(parts=[ADVICE]), Note(title="No guarantee.", text=NOT_SAID)]
    return [Section(anchor="layers-advice", title="How layers are chosen", label=None, blocks=blocks)]


def _meanings(maps: Sequence[LayerMap]) -> list[Section]:
    told = meanings(column.finding.measure for one in maps for column in one.columns)
    if not told:
        return []
    terms: list[Words] = [[sentence(name), f"{sentence(meaning)}."] for name, meaning in told.items()]
    title = "What a number of each measure says"
    return [Section(anchor="layers-measures", title=title, label=None, blocks=[Text(parts=terms, style=Style.TERMS)])]

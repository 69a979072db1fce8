"""Heat maps of where a release leaks: layers in the order of the model by measures, each number printed in its cell."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from gradleak.reporting.drawing import HATCH, HEAT, INK, ON_HEAT, PAPER, STYLE, as_svg, new_figure
from gradleak.reporting.numerals import decimal
from gradleak.reporting.pages.layers.view import LayerColumn, LayerMap
from gradleak.reporting.pages.layers.wording import CONTROL_FAILED
from gradleak.results import Leakier, Outcome

# Letters of a line of a name beside the rows, and lines of one.
_NAME_WIDTH, _NAME_LINES = 30, 4
_WIDTH, _ROW, _LINE, _GAP = 7.4, 0.36, 0.15, 0.035
# Between faint and strong: text upon a cell of more than this is light on dark, or dark on light at night.
_STRONG = 0.64
_LEAST, _MOST, _STEPS = 0.04, 0.96, 12
_HATCHED, _DOTTED = 0.6, (0, (1, 1.2))


@dataclass(frozen=True)
class _Row:
    """One layer: its name on several lines, and where the row stands, in inches from the top."""

    name: str
    lines: Sequence[str]
    top: float
    height: float


def heat_map(one: LayerMap, columns: Sequence[LayerColumn], *, prefix: str) -> str:
    """The figure of some measures of one map, as SVG.

    Args:
        one: of a scenario, audit and grouping.
        columns: at least one of its measures.
        prefix: of all ids, one of its own on a page.
    """
    names = _names(one.layers)
    left = 0.2 + 0.074 * max((len(line) for lines in names.values() for line in lines), default=0)
    width = min((_WIDTH - left) / len(columns), 1.75)
    heads = [_head(column, width) for column in columns]
    # Names end and what is said of them begins on one level.
    level = 0.08 + _LINE * max(len(name) for name, _ in heads)
    top = level + 0.06 + _LINE * max(len(small) for _, small in heads)
    twice = any(_beside(column, name) for column in columns for name in column.levels)
    rows, at = [], top
    for name, lines in names.items():
        height = max(_ROW + (0.05 if twice else 0.0), 0.1 + _LINE * len(lines))
        rows.append(_Row(name, lines, at, height))
        at += height
    key = at + 0.2
    with matplotlib.rc_context({**STYLE, "hatch.linewidth": 0.6}):
        figure, axes = new_figure(_WIDTH, key + 0.28)
        figure.set_layout_engine("none")
        axes.set_position((0.0, 0.0, 1.0, 1.0))
        axes.set_xlim(0.0, _WIDTH)
        axes.set_ylim(key + 0.28, 0.0)
        axes.set_axis_off()
        for place, (column, head) in enumerate(zip(columns, heads, strict=True)):
            middle = left + (place + 0.5) * width
            for line, text in enumerate(reversed(head[0])):
                _text(axes, middle, level - _LINE * (line + 0.5), text, size=9, weight="bold")
            for line, text in enumerate(head[1]):
                _text(axes, middle, level + _LINE * (line + 0.5), text, size=8)
            for row in rows:
                _cell(axes, left + place * width, row, width, column)
        for row in rows:
            for line, text in enumerate(row.lines):
                middle = row.top + row.height / 2 + _LINE * (line - (len(row.lines) - 1) / 2)
                _text(axes, left - 0.1, middle, text, size=9, align="right")
        _key(axes, key)
        return as_svg(
            figure,
            prefix=prefix,
            title=html.escape(f"Where it leaks, {one.title}"),
            description=html.escape(one.described(columns)),
        )


def _names(names: Sequence[str]) -> dict[str, list[str]]:
    """Every name in full on lines of its own; one that is far too long keeps both ends and its number in the model."""
    found = {}
    for place, name in enumerate(names, 1):
        lines = _wrapped(name, _NAME_WIDTH)
        if len(lines) > 1 and " + " in name:
            # Sets of layers have a line for each of them.
            lines = [line for part in name.replace(" + ", " +\0").split("\0") for line in _wrapped(part, _NAME_WIDTH)]
        if len(lines) > _NAME_LINES:
            lines = _wrapped(f"no. {place}: {name[:40]} … {name[-40:]}", _NAME_WIDTH)
        found[name] = lines
    return found


def _wrapped(text: str, width: int) -> list[str]:
    """Lines that break behind a dot, an underscore or a space where they can; what cannot be printed is shown as such."""
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    lines, line = [], ""
    for part in _parts(plain):
        for piece in textwrap.wrap(part, width, drop_whitespace=False) or [part]:
            if line and len(line) + len(piece.rstrip()) > width:
                lines.append(line.strip())
                line = ""
            line += piece
    return [*lines, line.strip()] if line.strip() or not lines else lines


def _parts(text: str) -> list[str]:
    parts = [""]
    for letter in text:
        parts[-1] += letter
        if letter in "._ ":
            parts.append("")
    return [part for part in parts if part]


def _head(column: LayerColumn, width: float) -> tuple[list[str], list[str]]:
    """The lines above a column: the measure, and what it is about, its unit and direction."""
    letters = max(int(width / 0.078), 8)
    small = [column.topic, column.unit]
    if column.by_effect or column.leakier is not Leakier.HIGHER:
        small.append(column.direction)
    if column.broken:
        small.append(CONTROL_FAILED)
    lines = [line for text in small if text for line in _wrapped(text, int(1.1 * letters))]
    return _wrapped(column.label, letters), lines


def _cell(axes: Axes, x: float, row: _Row, width: float, column: LayerColumn) -> None:
    left, top = x + _GAP, row.top + _GAP
    size = (width - 2 * _GAP, row.height - 2 * _GAP)
    middle, center = x + width / 2, row.top + row.height / 2
    share = column.color(row.name)
    if share is None:
        shape = Rectangle(
            (left, top), *size, facecolor="none", edgecolor=HATCH, hatch="////", linewidth=0.6, alpha=_HATCHED
        )
        axes.add_patch(shape)
        _upon(axes, middle, center, _reason(column, row.name), size)
        return
    axes.add_patch(
        Rectangle((left, top), *size, facecolor=HEAT, linewidth=0.0, alpha=_LEAST + (_MOST - _LEAST) * share)
    )
    standing = "" if column.chance(row.name) else column.standing(row.name)
    frame = {"leakiest": ("solid", 1.8), "reaches": (_DOTTED, 1.3)}.get(standing)
    if frame is not None:
        style, line = frame
        around = (left - 0.01, top - 0.01), size[0] + 0.02, size[1] + 0.02
        axes.add_patch(Rectangle(*around, fill=False, edgecolor=INK, linewidth=line, linestyle=style))
    color = ON_HEAT if share > _STRONG else INK
    beside = _beside(column, row.name)
    weight = "bold" if standing == "leakiest" else "normal"
    number = column.number(row.name).text
    _text(axes, middle, center - (0.055 if beside else 0.0), number, size=9, color=color, weight=weight)
    if beside:
        _text(axes, middle, center + 0.085, beside, size=7, color=color)


def _beside(column: LayerColumn, layer: str) -> str:
    """Below a number: the effect size, or how it ended where it did not end well."""
    if layer in column.effects:
        return f"effect {decimal(column.effects[layer])}"
    outcome = column.scores[layer].outcome
    return "" if outcome is Outcome.CONVERGED else outcome.label.replace("_", " ")


def _reason(column: LayerColumn, layer: str) -> str:
    if layer in column.scores:
        return column.number(layer).text
    return column.lost.text if column.lost is not None else "not in the record"


def _upon(axes: Axes, x: float, y: float, text: str, size: tuple[float, float]) -> None:
    """Words upon hatching, on a ground of their own."""
    lines = _wrapped(text, max(int(size[0] / 0.066), 8))[:2]
    for place, line in enumerate(lines):
        reach = 0.066 * len(line) + 0.06
        at = y + 0.125 * (place - (len(lines) - 1) / 2)
        axes.add_patch(Rectangle((x - reach / 2, at - 0.065), reach, 0.13, facecolor=PAPER, linewidth=0.0))
        _text(axes, x, at, line, size=7.5)


def _key(axes: Axes, top: float) -> None:
    """Key of colors, frames and hatching."""
    _text(axes, 0.1, top + 0.08, "none", size=8, align="left")
    for place in range(_STEPS):
        alpha = _LEAST + (_MOST - _LEAST) * (place + 0.5) / _STEPS
        axes.add_patch(Rectangle((0.45 + 0.085 * place, top), 0.085, 0.16, facecolor=HEAT, linewidth=0.0, alpha=alpha))
    _text(axes, 0.52 + 0.085 * _STEPS, top + 0.08, "the leakiest by this measure", size=8, align="left")
    looks: Sequence[tuple[float, str, Mapping[str, Any]]] = (
        (3.4, "leaks most", {"linewidth": 1.8}),
        (4.48, "may be the leakiest too", {"linewidth": 1.3, "linestyle": _DOTTED}),
        (6.33, "no value", {"hatch": "////", "linewidth": 0.6, "alpha": _HATCHED}),
    )
    for x, text, look in looks:
        color = HATCH if "hatch" in look else INK
        axes.add_patch(Rectangle((x, top), 0.22, 0.16, fill=False, edgecolor=color, **look))
        _text(axes, x + 0.29, top + 0.08, text, size=8, align="left")


def _text(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float,
    align: str = "center",
    color: str = INK,
    weight: str = "normal",
) -> None:
    # A name of the record is no formula.
    axes.text(
        x,
        y,
        text,
        fontsize=size,
        ha=align,
        va="center",
        color=color,
        fontweight=weight,
        parse_math=False,
        clip_on=False,
    )

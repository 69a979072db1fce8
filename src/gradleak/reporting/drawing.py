"""Figures as inline SVG that takes its colors from the page, so that it reads in light and in dark."""

from __future__ import annotations

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter

from gradleak.reporting.numerals import decimal

# Drawn in placeholder colors, each then replaced by what the page defines. The fallbacks are the
# colors of Okabe and Ito, which color-blind readers can tell apart.
INK = "#010203"
FAINT = "#040506"
# Of heat maps: the color of the largest value, text upon it, hatching, and what stands behind the words on it.
HEAT = "#070707"
ON_HEAT = "#080808"
HATCH = "#090909"
PAPER = "#0a0a0a"
SERIES = ("#010101", "#020202", "#030303", "#040404", "#050505", "#060606")
_PAGE_COLORS: Mapping[str, str] = {
    INK: "currentColor",
    FAINT: "var(--rule, #8886)",
    HEAT: "var(--heat, #063760)",
    ON_HEAT: "var(--on-heat, #ffffff)",
    PAPER: "var(--paper, #ffffff)",
    HATCH: "var(--soft, #59636e)",
    SERIES[0]: "var(--series-1, #0072b2)",
    SERIES[1]: "var(--series-2, #56b4e9)",
    SERIES[2]: "var(--series-3, #e69f00)",
    SERIES[3]: "var(--series-4, #d55e00)",
    SERIES[4]: "var(--series-5, #009e73)",
    SERIES[5]: "var(--series-6, #cc79a7)",
}
MARKERS = ("o", "s", "D", "v", "^", "P")
DASHES: Sequence[Any] = ("solid", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 3)), (0, (8, 2)))
# Of the line that others are held against: chance, the blind guess.
BESIDE: Any = (0, (2, 3))

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradleak",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
}


class Look(NamedTuple):
    """Look of a series: color, marker and dashes."""

    color: str
    dash: Any
    marker: str


def look(place: int) -> Look:
    """The look of the series at a place; where colors come again, dashes differ."""
    dash = DASHES[(place // len(SERIES)) % len(DASHES)]
    return Look(SERIES[place % len(SERIES)], dash, MARKERS[place % len(MARKERS)])


class TickLabels(Formatter):
    """Labels of ticks, each with so many digits that it is off by at most a twentieth of the way to the next tick."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """A label for each of them."""
        ordered = sorted({float(value) for value in values})
        gaps = [high - low for low, high in itertools.pairwise(ordered)]
        # A tick has a gap on either side; the smaller one decides.
        near = {value: min(gaps[max(place - 1, 0) : place + 1], default=0.0) for place, value in enumerate(ordered)}
        return [_tick(float(value), near[float(value)]) for value in values]

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label of one tick alone."""
        return decimal(x)


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, both without a background of their own."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0.0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0.0)
    return figure, axes


def drawn(
    paint: Callable[[Sequence[Axes]], None],
    *,
    prefix: str,
    title: str,
    description: str,
    size: tuple[float, float],
    panels: int = 1,
    columns: int = 2,
    shared: bool = False,
) -> str:
    """Drawing on so many panels, as an SVG element for a page.

    Args:
        paint: draws on the axes of all panels.
        prefix: of all ids, one of its own on a page.
        title: its name, HTML.
        description: what it shows, for those who do not see it, HTML.
        size: width and height in inches.
        panels: how many there are.
        columns: how many stand side by side, at most.
        shared: whether the panels share their vertical axis.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0.0)
        columns = min(panels, columns)
        grid = figure.subplots(math.ceil(panels / columns), columns, sharey=shared, squeeze=False)
        every = [axes for row in grid for axes in row]
        for spare in every[panels:]:
            figure.delaxes(spare)
        for axes in every[:panels]:
            axes.patch.set_alpha(0.0)
        paint(every[:panels])
        finish(figure, *every[:panels])
        return as_svg(figure, prefix=prefix, title=title, description=description)


def finish(figure: Figure, *every: Axes) -> None:
    """Grid, plain numbers on the axes, and one legend above, of what is labeled in the first of them."""
    for axes in every:
        axes.grid(True, which="major", color=FAINT, linewidth=0.6)
        axes.minorticks_off()
        # Plain text instead of formulas, so that labels take the font of the page.
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(TickLabels())
    handles, labels = every[0].get_legend_handles_labels()
    if handles:
        # Fonts of the page may be wider than the one that the layout was made with.
        columns = 2 if max(map(len, labels)) > 14 else 3
        legend = figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=2.6)
        for text in legend.get_texts():
            # Names come from a record: a dollar sign in one is no formula.
            text.set_parse_math(False)


def as_svg(figure: Figure, *, prefix: str, title: str, description: str) -> str:
    """The figure as an SVG element for a page: deterministic, without date, in the colors and font of the page.

    Args:
        figure: the figure.
        prefix: of all its ids, one of its own on a page.
        title: its name, HTML.
        description: what it shows, for those who do not see it, HTML.
    """
    buffer = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with warnings.catch_warnings():
        # Letters that the layout font lacks are text of the page, which has other fonts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=metadata, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for color, replacement in _PAGE_COLORS.items():
        text = text.replace(color, replacement)
    text = re.sub(r"(<text [^>]*style=\")([^\"]*)\"", _inherit_font, text)
    # Ids are unique within a figure only.
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-").replace('xlink:href="#', f'href="#{prefix}-')
    # Pictures are within the file.
    text = text.replace('xlink:href="data:', 'href="data:')
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"', "", text)
    text = re.sub(r"\s*<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    head = (
        f'<svg role="img" aria-labelledby="{prefix}-title {prefix}-description">'
        f'<title id="{prefix}-title">{title}</title><desc id="{prefix}-description">{description}</desc>'
    )
    size = re.search(r'viewBox="[^"]*"', text)
    if size:
        head = head.replace("<svg ", f"<svg {size[0]} ", 1)
    return re.sub(r"<svg[^>]*>", lambda _: head, text, count=1)


def _tick(value: float, gap: float) -> str:
    if gap <= 0.0:
        return decimal(value)
    # Round-off of a tick at 0.
    if abs(value) < 1e-9 * gap:
        return "0"
    digits, power = 2, math.floor(math.log10(abs(value)))
    # Half a unit of the last digit.
    while digits < 15 and 0.5 * 10.0 ** (power - digits + 1) > gap / 20:
        digits += 1
    return decimal(value, digits)


def _inherit_font(match: re.Match[str]) -> str:
    style = re.sub(r"font:\s*([\d.]+px)[^;]*", r"font-size: \1; font-family: inherit", match[2])
    style = re.sub(r"font-family:\s*[^;]*", "font-family: inherit", style)
    if "fill" not in style:
        style += "; fill: currentColor"
    return f'{match[1]}{style}"'

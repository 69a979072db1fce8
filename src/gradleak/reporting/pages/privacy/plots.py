"""Plots of measured privacy loss: both hypotheses as histograms, and the measured epsilon against theory."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes

from gradleak.reporting.drawing import FAINT, INK, MARKERS, SERIES, STYLE, as_svg, finish, new_figure
from gradleak.reporting.pages.privacy.view import Measured, PrivacyView, statistic
from gradleak.results.findings.privacy import Histogram

_LEAST = 1e-2
# Letters of a line above a panel: longer ones run into the panel beside it.
_TITLE_WIDTH = 42


def histogram_plot(pairs: Sequence[tuple[PrivacyView, Histogram]], alt: str) -> str:
    """Histograms of both hypotheses, a panel an audit and scenario, as SVG."""
    columns = min(len(pairs), 2)
    rows = math.ceil(len(pairs) / columns)
    with matplotlib.rc_context(STYLE):
        figure, first = new_figure(7.4, 0.6 + 2.5 * rows)
        figure.delaxes(first)
        grid = [axes for row in figure.subplots(rows, columns, squeeze=False) for axes in row]
        for spare in grid[len(pairs) :]:
            figure.delaxes(spare)
        for axes, (view, histogram) in zip(grid, pairs, strict=False):
            axes.patch.set_alpha(0.0)
            _draw(axes, histogram)
            # A name of the record is no formula.
            axes.set_title(textwrap.fill(view.label, _TITLE_WIDTH), fontsize=9, parse_math=False)
            axes.set_xlabel(statistic(histogram.statistic), parse_math=False)
            axes.set_ylabel("share of trials")
        finish(figure, *grid[: len(pairs)])
        return as_svg(
            figure,
            prefix="hypotheses",
            title="Both hypotheses",
            description=alt,
        )


def epsilon_plot(shown: Sequence[PrivacyView], alt: str) -> str:
    """The measured epsilon against the exact one of the same two hypotheses, as SVG.

    Logarithmic axes; a bound of 0 stands at the lower edge. Filled markers are lower bounds, open ones estimates, and a
    dotted mark above a marker is the largest value that so many trials can certify.
    """
    points = [(view, found) for view in shown for found in view.measured if found.epsilon.value is not None]
    series = list(dict.fromkeys(_series(found) for _, found in points))
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 4.6)
        exact = [view.exact.value or 0.0 for view in shown]
        values = [found.epsilon.value or 0.0 for _, found in points]
        least = max(_LEAST, min([*exact, *(value for value in values if value > 0)]) / 2)
        most = 1.7 * max([*exact, *(value for value in values if math.isfinite(value))])
        axes.plot([least, most], [least, most], color=INK, linewidth=1.0, linestyle=(0, (2, 3)))
        for place, name in enumerate(series):
            color, marker = SERIES[place % len(SERIES)], MARKERS[place % len(MARKERS)]
            axes.plot([], [], marker, color=color, markersize=6, label=name)
            # Beside each other, to the right: never above the diagonal by being moved.
            shift = 1.05**place
            for view, found in points:
                if _series(found) == name:
                    _point(axes, shift * (view.exact.value or 0.0), found, (least, most), (color, marker))
        for direction in ("x", "y"):
            getattr(axes, f"set_{direction}scale")("log")
            getattr(axes, f"set_{direction}lim")(least, most)
        axes.set_xlabel("exact epsilon of the two hypotheses")
        axes.set_ylabel("measured epsilon")
        finish(figure, axes)
        return as_svg(
            figure,
            prefix="epsilon",
            title="Measured epsilon against the exact one",
            description=alt,
        )


def _draw(axes: Axes, histogram: Histogram) -> None:
    edges = [float(edge or 0.0) for edge in histogram.edges]
    for place, (given, label) in enumerate(
        ((histogram.null, "null hypothesis"), (histogram.alternative, "alternative"))
    ):
        counts = [count or 0.0 for count in given]
        total = sum(counts) or 1.0
        shares = [count / total for count in counts]
        axes.stairs(shares, edges, fill=True, color=SERIES[3 * place], alpha=0.25)
        axes.stairs(shares, edges, color=SERIES[3 * place], linewidth=1.4, label=label)
    axes.set_ylim(bottom=0.0)


def _point(axes: Axes, x: float, found: Measured, limits: tuple[float, float], look: tuple[str, str]) -> None:
    color, marker = look
    least, most = limits
    low, high = (min(max(end, least), most) for end in found.span or (found.epsilon.value or 0.0,) * 2)
    axes.plot([x, x], [low, high], color=color, linewidth=1.0, alpha=0.6)
    value = min(max(found.epsilon.value or 0.0, least), most)
    axes.plot(x, value, marker, color=color, markersize=6, fillstyle="full" if found.bound else "none", clip_on=False)
    if found.largest is not None and least < found.largest < most:
        axes.plot(x, found.largest, "_", color=color, markersize=9, alpha=0.7)
        axes.plot([x, x], [high, found.largest], color=FAINT, linewidth=1.0, linestyle=(0, (1, 2)))


def _series(found: Measured) -> str:
    return f"{found.estimator}, {statistic(found.statistic)}" if found.statistic else found.estimator

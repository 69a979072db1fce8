"""Plots of measured privacy loss: both hypotheses as histograms, and the measured epsilon against theory."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes

from gradleak.reporting import words
from gradleak.reporting.drawing import FAINT, INK, MARKERS, SERIES, STYLE, as_svg, finish, new_figure
from gradleak.reporting.privacy_view import Histogram, Measured, PrivacyView

# More panels than this are too small to be read.
MOST_PANELS = 6
_LEAST = 1e-2
# Letters of a line above a panel: longer ones run into the panel beside it.
_TITLE_WIDTH = 42


def histogram_plot(views: Sequence[PrivacyView]) -> str:
    """Histograms of both hypotheses, a panel an audit and scenario, as SVG; "" where the record holds none.

    Of each the statistic with the largest lower bound is drawn, else its first.

    Args:
        views: audits and scenarios; of more than six with a histogram six are drawn, broken claims first.
    """
    first_loud = sorted(views, key=lambda view: not view.loud)
    pairs = [(view, chosen) for view in first_loud if (chosen := _chosen(view)) is not None][:MOST_PANELS]
    if not pairs:
        return ""
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
            axes.set_xlabel(words.statistic(histogram.statistic), parse_math=False)
            axes.set_ylabel("share of trials")
        finish(figure, *grid[: len(pairs)])
        return as_svg(
            figure,
            prefix="hypotheses",
            title="Both hypotheses",
            description="Histograms of the test statistic over all trials under the null hypothesis and under the alternative, "
            "one panel an audit and scenario; the table holds what follows from them.",
        )


def epsilon_plot(views: Sequence[PrivacyView]) -> str:
    """The measured epsilon against the exact one of the same two hypotheses, as SVG; "" with fewer than two of them.

    Logarithmic axes; a bound of 0 stands at the lower edge. Filled markers are lower bounds, open ones estimates, and a
    dotted mark above a marker is the largest value that so many trials can certify.

    Args:
        views: audits and scenarios.
    """
    shown = [view for view in views if 0 < (view.exact.value or 0.0) < math.inf and view.measured]
    points = [(view, found) for view in shown for found in view.measured if found.epsilon.value is not None]
    if len({view.exact.value for view in shown}) < 2 or not points:
        return ""
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
            description="Measured epsilon of each audit and scenario against the exact epsilon of its hypotheses, both "
            "logarithmic, with intervals; the dashed diagonal is where they agree. The table holds the numbers.",
        )


def privacy_plots(views: Sequence[PrivacyView]) -> Mapping[str, str]:
    """All plots of the section by caption, in its order; those without data are left out.

    Args:
        views: audits and scenarios.
    """
    many = sum(bool(view.histograms) for view in views)
    drawn = f" ({MOST_PANELS} of {many} pairs are drawn, broken claims first)" if many > MOST_PANELS else ""
    plots = {
        f"Both hypotheses, by the statistic that tells them apart best{drawn}": histogram_plot(views),
        "Measured epsilon against theory": epsilon_plot(views),
    }
    return {caption: svg for caption, svg in plots.items() if svg}


def _draw(axes: Axes, histogram: Histogram) -> None:
    for place, (counts, label) in enumerate(
        ((histogram.null, "null hypothesis"), (histogram.alternative, "alternative"))
    ):
        total = sum(counts) or 1.0
        shares = [count / total for count in counts]
        axes.stairs(shares, histogram.edges, fill=True, color=SERIES[3 * place], alpha=0.25)
        axes.stairs(shares, histogram.edges, color=SERIES[3 * place], linewidth=1.4, label=label)
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


def _chosen(view: PrivacyView) -> Histogram | None:
    named = {histogram.statistic: histogram for histogram in view.histograms}
    best = view.best
    return named.get(best.statistic if best else "") or next(iter(view.histograms), None)


def _series(found: Measured) -> str:
    return f"{found.estimator}, {words.statistic(found.statistic)}" if found.statistic else found.estimator


__all__ = ["MOST_PANELS", "epsilon_plot", "histogram_plot", "privacy_plots"]

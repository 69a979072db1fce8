"""Figures of the study of per-attribute privacy: both hypotheses as histograms, and epsilon over bound and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ticker import FuncFormatter

from gradleak.privacy import Histogram
from gradleak.reporting.drawing import DASHES, MARKERS, SERIES, STYLE, as_svg, finish, new_figure
from gradleak.reporting.numerals import decimal
from gradleak.reporting.pages.utility.curve import standalone

# Theory, which is drawn as lines; what was measured is drawn as points.
_LINES = ("exact, this record", "classical total / N")


def histograms(panels: Mapping[str, Histogram]) -> str:
    """Shares of trials by the statistic under both hypotheses, a panel a record, as the text of an SVG file.

    Args:
        panels: by title.
    """
    with matplotlib.rc_context(STYLE):
        figure, first = new_figure(7.4, 3.0)
        figure.delaxes(first)
        grid = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
        for axes, (title, histogram) in zip(grid, panels.items(), strict=True):
            axes.patch.set_alpha(0.0)
            edges = np.array(histogram.edges)
            for place, (counts, label) in enumerate(((histogram.null, "H0"), (histogram.alternative, "H1"))):
                shares = np.array(counts) / sum(counts)
                axes.stairs(shares, edges, fill=True, color=SERIES[3 * place], alpha=0.25)
                axes.stairs(shares, edges, color=SERIES[3 * place], label=label)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel(histogram.statistic.replace("_", " "))
            axes.set_ylabel("share of trials")
        finish(figure, *grid)
        for axes in grid:
            # Distances lie close together, so that two digits would give neighboring ticks one label.
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: decimal(value, 4)))
        svg = as_svg(
            figure,
            prefix="audit",
            title="Both hypotheses",
            description="Histograms of the statistic under H0 and under H1.",
        )
        return standalone(svg)


def measured_against_theory(panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Epsilon by several names over a quantity, on a logarithmic axis, as the text of an SVG file.

    Args:
        panels: by the name of the quantity, points: "x", and by name a value with its interval or None.
    """
    with matplotlib.rc_context(STYLE):
        figure, first = new_figure(7.4, 3.8)
        figure.delaxes(first)
        grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (title, points) in zip(grid, panels.items(), strict=True):
            axes.patch.set_alpha(0.0)
            names = [name for name in (points[0] if points else {}) if name != "x"]
            for place, name in enumerate(names):
                known = sorted(
                    (point["x"], *point[name]) for point in points if point[name][0] is not None and point[name][0] > 0
                )
                color = SERIES[place % len(SERIES)]
                style: dict[str, Any] = (
                    {"linestyle": DASHES[place % len(DASHES)]} if name in _LINES else {"linestyle": ""}
                )
                marker = "" if name in _LINES else MARKERS[place % len(MARKERS)]
                axes.plot(
                    [x for x, *_ in known],
                    [value for _, value, _ in known],
                    color=color,
                    marker=marker,
                    label=name,
                    **style,
                )
                for x, value, interval in known:
                    if interval is not None:
                        low, high = max(interval[0], value / 100), min(interval[1], value * 100)
                        axes.plot([x, x], [low, high], color=color, alpha=0.5, linewidth=1.0)
            axes.set_yscale("log")
            axes.set_xlabel(title)
            axes.set_ylabel("epsilon")
        finish(figure, *grid)
        svg = as_svg(
            figure,
            prefix="measured",
            title="Measured epsilon and theory",
            description="Epsilon by trials as points with intervals, theory as lines.",
        )
        return standalone(svg)


__all__ = ["histograms", "measured_against_theory"]

"""The figures of the page on the privacy loss, each in a section of its own; those without data are left out."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradleak.reporting.blocks import Figure, Section, plot
from gradleak.reporting.pages.privacy.view import PrivacyView, estimator, is_bound, largest, statistic
from gradleak.results import Score
from gradleak.results.findings.privacy import STATISTIC, Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More panels than this are too small to be read.
MOST_PANELS = 6
# Letters of a line above a panel: longer ones run into the panel beside it.
_TITLE_WIDTH = 42
_LEAST = 1e-2
HISTOGRAMS = (
    "How often each value of the statistic came up under both hypotheses: the null hypothesis (an audited record as it is; a "
    "batch without the example, or with another in its place) and the alternative (the record with another value; the batch with "
    "the example). What does not overlap tells them apart."
)
MEASURED = (
    "What was measured (markers, with intervals) against the exact epsilon of the two hypotheses: bounds lie below the diagonal, "
    "except for few in a hundred by chance. The dash above a marker is the largest value that so many trials can certify: a "
    "bound that stands there is saturated, not exact."
)
_HISTOGRAMS = (
    "Histograms of the test statistic over all trials under the null hypothesis and under the alternative, one panel an audit "
    "and scenario; the table holds what follows from them."
)
_MEASURED = (
    "Measured epsilon of each audit and scenario against the exact epsilon of its hypotheses, both logarithmic, with intervals; "
    "the dashed diagonal is where they agree. The table holds the numbers."
)


def figures(views: Sequence[PrivacyView]) -> list[Section]:
    """Both hypotheses as histograms, and the measured epsilon against theory."""
    return [*_histograms(views), *_measured(views)]


def _section(name: str, title: str, figure: Figure) -> Section:
    return Section(anchor=f"privacy-{name}", title=title, label=None, blocks=[figure])


def _histograms(views: Sequence[PrivacyView]) -> list[Section]:
    """Histograms of the statistic with the largest lower bound, else of the first; six at most, broken claims first."""
    first_loud = sorted(views, key=lambda view: not view.loud)
    pairs = [(view, chosen) for view in first_loud if (chosen := _chosen(view)) is not None]
    shown = pairs[:MOST_PANELS]

    def paint(every: Sequence[Axes]) -> None:
        for axes, (view, histogram) in zip(every, shown, strict=True):
            _draw(axes, histogram)
            # A name of the record is no formula.
            axes.set_title(textwrap.fill(view.label, _TITLE_WIDTH), fontsize=9, parse_math=False)
            axes.set_xlabel(statistic(histogram), parse_math=False)
            axes.set_ylabel("share of trials")

    many = f" ({MOST_PANELS} of {len(pairs)} pairs are drawn, broken claims first)" if len(pairs) > MOST_PANELS else ""
    title = f"Both hypotheses, by the statistic that tells them apart best{many}"
    figure = plot(
        paint,
        prefix="hypotheses",
        title="Both hypotheses",
        alt=_HISTOGRAMS,
        caption=HISTOGRAMS,
        size=(7.4, 0.6 + 2.5 * math.ceil(len(shown) / 2)),
        panels=len(shown),
    )
    return [_section("hypotheses", title, figure)] if pairs else []


def _chosen(view: PrivacyView) -> Histogram | None:
    named = {histogram.statistic: histogram for histogram in view.histograms}
    best = str(view.best.about.get(STATISTIC)) if view.best else ""
    return named.get(best) or next(iter(view.histograms), None)


def _draw(axes: Axes, histogram: Histogram) -> None:
    from gradleak.reporting.drawing import SERIES

    edges = [float(edge or 0.0) for edge in histogram.edges]
    series = ((histogram.null, "null hypothesis", SERIES[0]), (histogram.alternative, "alternative", SERIES[3]))
    for given, label, color in series:
        counts = [count or 0.0 for count in given]
        shares = [count / (sum(counts) or 1.0) for count in counts]
        axes.stairs(shares, edges, fill=True, color=color, alpha=0.25)
        axes.stairs(shares, edges, color=color, linewidth=1.4, label=label)
    axes.set_ylim(bottom=0.0)


def _measured(views: Sequence[PrivacyView]) -> list[Section]:
    """Measured values against exact ones, where at least two are known and something was measured."""
    shown = [view for view in views if 0 < (view.exact.value or 0.0) < math.inf and view.measured]
    points = [(view.exact.value or 0.0, score) for view in shown for score in view.measured if score.value is not None]
    exact = {view.exact.value or 0.0 for view in shown}

    def paint(every: Sequence[Axes]) -> None:
        from gradleak.reporting.drawing import BESIDE, INK, look

        (axes,) = every
        values = [score.value or 0.0 for _, score in points]
        least = max(_LEAST, min([*exact, *(value for value in values if value > 0)]) / 2)
        most = 1.7 * max([*exact, *(value for value in values if math.isfinite(value))])
        axes.plot([least, most], [least, most], color=INK, linewidth=1.0, linestyle=BESIDE)
        for place, name in enumerate(dict.fromkeys(_series(score) for _, score in points)):
            color, _, marker = look(place)
            axes.plot([], [], marker, color=color, markersize=6, label=name)
            for x, score in points:
                if _series(score) == name:
                    # Beside each other, to the right: never above the diagonal by being moved.
                    _point(axes, 1.05**place * x, score, (least, most), (color, marker))
        axes.set_xscale("log")
        axes.set_xlim(least, most)
        axes.set_yscale("log")
        axes.set_ylim(least, most)
        axes.set_xlabel("exact epsilon of the two hypotheses")
        axes.set_ylabel("measured epsilon")

    title = "Measured epsilon against the exact one"
    figure = plot(paint, prefix="epsilon", title=title, alt=_MEASURED, caption=MEASURED, size=(7.4, 4.6))
    return [_section("measured", "Measured epsilon against theory", figure)] if len(exact) > 1 and points else []


def _point(axes: Axes, x: float, score: Score, limits: tuple[float, float], look: tuple[str, str]) -> None:
    """A filled marker for a bound, an open one for an estimate, with its interval and what can be certified at most."""
    from gradleak.reporting.drawing import FAINT

    (color, marker), (least, most) = look, limits
    found, top = score.value or 0.0, largest(score)
    low, high = (min(max(end, least), most) for end in score.interval or (found, found))
    axes.plot([x, x], [low, high], color=color, linewidth=1.0, alpha=0.6)
    value = min(max(found, least), most)
    axes.plot(
        x, value, marker, color=color, markersize=6, fillstyle="full" if is_bound(score) else "none", clip_on=False
    )
    if top is not None and least < top < most:
        axes.plot(x, top, "_", color=color, markersize=9, alpha=0.7)
        axes.plot([x, x], [high, top], color=FAINT, linewidth=1.0, linestyle=(0, (1, 2)))


def _series(score: Score) -> str:
    return f"{estimator(score)}, {statistic(score)}" if score.about.get(STATISTIC) else estimator(score)

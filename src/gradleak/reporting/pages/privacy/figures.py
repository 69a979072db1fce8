"""The figures of the page on the privacy loss, each in a section of its own; those without data are left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradleak.reporting.blocks import Figure, Section
from gradleak.reporting.pages.privacy.view import PrivacyView
from gradleak.results.findings.privacy import Histogram

# More panels than this are too small to be read.
MOST_PANELS = 6
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


def _histograms(views: Sequence[PrivacyView]) -> list[Section]:
    """Histograms of the statistic with the largest lower bound, else of the first; six at most, broken claims first."""
    first_loud = sorted(views, key=lambda view: not view.loud)
    pairs = [(view, chosen) for view in first_loud if (chosen := _chosen(view)) is not None]
    if not pairs:
        return []

    def draw() -> str:
        from gradleak.reporting.pages.privacy.plots import histogram_plot

        return histogram_plot(pairs[:MOST_PANELS], _HISTOGRAMS)

    many = f" ({MOST_PANELS} of {len(pairs)} pairs are drawn, broken claims first)" if len(pairs) > MOST_PANELS else ""
    title = f"Both hypotheses, by the statistic that tells them apart best{many}"
    return [_section("hypotheses", title, Figure(draw=draw, alt=_HISTOGRAMS, caption=HISTOGRAMS))]


def _measured(views: Sequence[PrivacyView]) -> list[Section]:
    """Measured values against exact ones, where at least two are known and something was measured."""
    shown = [view for view in views if 0 < (view.exact.value or 0.0) < math.inf and view.measured]
    known = any(found.epsilon.value is not None for view in shown for found in view.measured)
    if len({view.exact.value for view in shown}) < 2 or not known:
        return []

    def draw() -> str:
        from gradleak.reporting.pages.privacy.plots import epsilon_plot

        return epsilon_plot(shown, _MEASURED)

    figure = Figure(draw=draw, alt=_MEASURED, caption=MEASURED)
    return [_section("measured", "Measured epsilon against theory", figure)]


def _chosen(view: PrivacyView) -> Histogram | None:
    named = {histogram.statistic: histogram for histogram in view.histograms}
    best = view.best
    return named.get(best.statistic if best else "") or next(iter(view.histograms), None)


def _section(name: str, title: str, figure: Figure) -> Section:
    return Section(anchor=f"privacy-{name}", title=title, label=None, blocks=[figure])

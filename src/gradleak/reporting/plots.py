"""Plots as inline SVG that takes its colors from the page, so that it reads in light and in dark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from gradleak.reporting.drawing import DASHES, INK, MARKERS, SERIES, STYLE, as_svg, finish, new_figure
from gradleak.reporting.numerals import median
from gradleak.reporting.risk_view import NoiseStudy, Spectrum

# What stands at the left edge of a plot of errors: nothing smaller makes a difference to anyone.
_SMALLEST_ERROR = 1e-4

# name of the series -> (legend, color, dash, marker)
_NOISE_SERIES: Mapping[str, tuple[str, str, Any, str]] = {
    "predicted": ("predicted by I²F", SERIES[0], "solid", "o"),
    "perfect_attacker": ("perfect attacker (validation)", SERIES[2], (0, (5, 2)), "D"),
    "attack": ("real attack, random start", SERIES[3], (0, (6, 2, 1, 2)), "s"),
    "lower_bound": ("lower bound of I²F", SERIES[1], (0, (1, 1.4)), "v"),
}


def noise_plot(study: NoiseStudy, error: str = "pixel RMSE") -> str:
    """Predicted against reached error over noise levels, log-log, as SVG; "" without noisy releases.

    Thin markers are single examples, lines are medians over them, the dashed level is what the blind adversary
    reaches.

    Args:
        study: the noisy releases.
        error: what the error is called.
    """
    if not study.levels:
        return ""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 4.3)
        for name, (legend, color, dash, marker) in _NOISE_SERIES.items():
            points = [(point.noise_std, value) for point in study.points if (value := getattr(point, name))]
            if not points:
                continue
            levels = sorted({std for std, _ in points})
            middles = [median([value for std, value in points if std == level]) or 0.0 for level in levels]
            axes.plot(*zip(*points, strict=True), marker, color=color, markersize=4.5, fillstyle="none", alpha=0.75)
            axes.plot(levels, middles, color=color, linestyle=dash, linewidth=1.9, label=legend, marker=marker, ms=3)
        blind = [point.baseline for point in study.points if point.baseline]
        if blind:
            level = min(blind)
            axes.axhline(level, color=INK, linestyle=(0, (2, 3)), linewidth=1.0, label="blind baseline")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("standard deviation of the noise on each shared number")
        axes.set_ylabel(error)
        finish(figure, axes)
        return as_svg(
            figure,
            prefix="noise",
            title="Predicted and reached error over noise levels",
            description=f"Log-log plot of {error} against the standard deviation of the noise; the table below holds the "
            "medians.",
        )


def spectrum_plot(spectra: Sequence[Spectrum]) -> str:
    """Eigenvalues of AᵀA, largest first, one line an example, as SVG; "" without spectra.

    Args:
        spectra: the spectra.
    """
    shown = [spectrum for spectrum in spectra if any(value > 0 for value in spectrum.eigenvalues)]
    if not shown:
        return ""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 3.7)
        for place, spectrum in enumerate(shown):
            ranks, values = zip(
                *((rank, value) for rank, value in enumerate(spectrum.eigenvalues, 1) if value > 0), strict=True
            )
            axes.plot(
                ranks,
                values,
                color=SERIES[place % len(SERIES)],
                linestyle=DASHES[(place // len(SERIES)) % len(DASHES)],
                linewidth=1.5,
                label=spectrum.label if len(shown) <= 12 else None,
            )
        axes.set_yscale("log")
        axes.set_xlim(0, None)
        axes.set_xlabel("direction of the input, from the most to the least visible")
        axes.set_ylabel("eigenvalue of AᵀA")
        finish(figure, axes)
        return as_svg(
            figure,
            prefix="spectrum",
            title="Spectrum of AᵀA",
            description="Eigenvalues on a log scale, largest first, one line an example; the table below holds the "
            "largest and the smallest.",
        )


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """One setting of a defense in a plot of utility against the error that an attacker is left with.

    Attributes:
        family: the defense; settings of one defense are joined by a line.
        label: the setting.
        utility: what the trained model is worth.
        interval: of it, or None.
        error: what the attacker is left with; None for a setting that is not drawn.
        credit: whether the model beats every answer that ignores its input; others are drawn hollow.
    """

    family: str
    label: str
    utility: float
    interval: tuple[float, float] | None
    error: float | None
    credit: bool


def trade_off_plot(
    panels: Mapping[str, Sequence[TradeOff]],
    *,
    utility: str = "test accuracy",
    error: str = "pixel RMSE",
    blind: float | None = None,
) -> str:
    """Utility against the error of an attacker, one panel an attacker, as SVG; "" without a point.

    The upper right is where a defense should be. Hollow markers are models that are no better than an answer that ignores
    the input; the dashed level is the error of the blind adversary. Errors below a ten thousandth stand at the left edge.

    Args:
        panels: points by the name of the attacker, in the order in which they are joined.
        utility: what the utility is called.
        error: what the error is called.
        blind: error of the adversary that ignores the release, or None.
    """
    shown = {name: [p for p in points if p.error is not None] for name, points in panels.items()}
    families = list(dict.fromkeys(point.family for points in shown.values() for point in points))
    if not families:
        return ""
    with matplotlib.rc_context(STYLE):
        figure, first = new_figure(7.4, 4.0)
        figure.delaxes(first)
        grid = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, (name, points) in zip(grid, shown.items(), strict=True):
            axes.patch.set_alpha(0.0)
            for place, family in enumerate(families):
                _family(axes, family, place, [point for point in points if point.family == family])
            if blind:
                axes.axvline(blind, color=INK, linestyle=(0, (2, 3)), linewidth=1.0)
            axes.set_xscale("log")
            axes.set_title(name, fontsize=10)
            axes.set_xlabel(error)
        grid[0].set_ylabel(utility)
        finish(figure, *grid)
        return as_svg(
            figure,
            prefix="trade-off",
            title=f"{utility} against {error}",
            description="One marker a setting of a defense, bars are 95 % intervals of the utility, the dashed line is the "
            "error of the blind adversary; the table holds the numbers.",
        )


def standalone(svg: str) -> str:
    """A plot of this module as a file of its own: dark on white, with the colors that a page would define."""
    text = re.sub(r"var\(--[\w-]+, ([^)]+)\)", r"\1", svg).replace("currentColor", "#222222")
    head = '<svg xmlns="http://www.w3.org/2000/svg" style="background: white; color: #222222; font-family: sans-serif" '
    return text.replace("<svg ", head, 1)


def _family(axes: Axes, family: str, place: int, points: Sequence[TradeOff]) -> None:
    color, dash = SERIES[place % len(SERIES)], DASHES[(place // len(SERIES)) % len(DASHES)]
    marker = MARKERS[place % len(MARKERS)]
    errors = [max(point.error or 0.0, _SMALLEST_ERROR) for point in points]
    axes.plot(errors, [point.utility for point in points], color=color, linestyle=dash, linewidth=1.4)
    axes.plot([], [], color=color, linestyle=dash, marker=marker, markersize=5, label=family)
    for x, point in zip(errors, points, strict=True):
        low, high = point.interval or (point.utility, point.utility)
        axes.plot([x, x], [low, high], color=color, linewidth=1.0, alpha=0.6)
        axes.plot(x, point.utility, marker, color=color, markersize=5, fillstyle="full" if point.credit else "none")

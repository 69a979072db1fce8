"""Plots of closed-form risk: errors over noise levels, and spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

from gradleak.reporting.drawing import DASHES, INK, SERIES, STYLE, as_svg, finish, new_figure
from gradleak.reporting.numerals import median
from gradleak.reporting.pages.risk.noise import NoiseStudy

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


def spectrum_plot(spectra: Mapping[str, Sequence[float]]) -> str:
    """Eigenvalues of AᵀA, one line an example, as SVG; "" without spectra.

    Args:
        spectra: eigenvalues by the name of the example, largest first.
    """
    shown = {label: values for label, values in spectra.items() if any(value > 0 for value in values)}
    if not shown:
        return ""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 3.7)
        for place, (label, eigenvalues) in enumerate(shown.items()):
            ranks, values = zip(*((rank, value) for rank, value in enumerate(eigenvalues, 1) if value > 0), strict=True)
            axes.plot(
                ranks,
                values,
                color=SERIES[place % len(SERIES)],
                linestyle=DASHES[(place // len(SERIES)) % len(DASHES)],
                linewidth=1.5,
                label=label if len(shown) <= 12 else None,
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


__all__ = ["noise_plot", "spectrum_plot"]

"""Plots of what adversaries inferred: ROC curves, advantage by round and by size, and advantage against utility."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes

from gradleak.reporting.drawing import DASHES, INK, MARKERS, SERIES, STYLE, as_svg, finish, new_figure
from gradleak.reporting.pages.inference.view import BOTH, InferenceView

_LEAST_RATE = 1e-4
_CHANCE = (0, (2, 3))


def roc_plot(shown: Sequence[InferenceView], alt: str) -> str:
    """ROC curves on linear and on logarithmic axes side by side, as SVG.

    The dashed line is an adversary who guesses. On the logarithmic axes a false-positive rate of 0 stands at the left
    edge.
    """
    least = _least_rate(shown)
    with matplotlib.rc_context(STYLE):
        figure, first = new_figure(7.4, 4.3)
        figure.delaxes(first)
        linear, log = figure.subplots(1, 2)
        for axes in (linear, log):
            axes.patch.set_alpha(0.0)
            for view in shown:
                false, true = view.curve or ((), ())
                axes.plot(
                    [max(rate, least) for rate in false] if axes is log else list(false),
                    [max(rate, least) for rate in true] if axes is log else list(true),
                    color=_color(view, shown),
                    linestyle=_dash(view, shown),
                    linewidth=1.6,
                    label=_name(view, shown),
                )
            axes.plot([least, 1], [least, 1], color=INK, linestyle=_CHANCE, linewidth=1.0)
            axes.set_xlabel("false-positive rate")
        linear.set_xlim(0, 1)
        linear.set_ylim(0, 1.02)
        for axis in ("x", "y"):
            getattr(log, f"set_{axis}scale")("log")
            getattr(log, f"set_{axis}lim")(least, 1.1)
        linear.set_ylabel("true-positive rate")
        finish(figure, linear, log)
        return as_svg(
            figure,
            prefix="roc",
            title="ROC curves, linear and logarithmic",
            description=alt,
        )


def round_plot(shown: Sequence[InferenceView], alt: str) -> str:
    """The advantage from each observed round alone, as SVG.

    Short lines at the right edge are the advantages of all rounds together.
    """
    last = max(point.number for view in shown for point in view.rounds)
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 3.9)
        for view in shown:
            numbers = [point.number + 1 for point in view.rounds]
            values = [point.advantage for point in view.rounds]
            spans = [point.interval or (point.advantage, point.advantage) for point in view.rounds]
            _line(axes, numbers, values, spans, view, shown, _name(view, shown))
            if view.advantage.value is not None:
                ends = [last + 1.25, last + 1.75]
                axes.plot(
                    ends,
                    [view.advantage.value] * 2,
                    color=_color(view, shown),
                    linestyle=_dash(view, shown),
                    linewidth=2.4,
                )
        axes.axhline(0.0, color=INK, linestyle=_CHANCE, linewidth=1.0)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("round of training; all observed rounds together at the right edge")
        axes.set_ylabel("advantage")
        finish(figure, axes)
        return as_svg(
            figure,
            prefix="rounds",
            title="Advantage by round",
            description=alt,
        )


def advantage_utility_plot(points: Sequence[InferenceView], alt: str) -> str:
    """The worth of the trained model against the adversary's advantage, one panel an adversary, as SVG.

    The upper left is where a defense should be: a useful model, and nothing to infer.
    """
    sides = [side for side in ("static", "adaptive") if any(view.adversary in (side, BOTH) for view in points)]
    scenarios = list(dict.fromkeys(view.label for view in points))
    with matplotlib.rc_context(STYLE):
        figure, first = new_figure(7.4, 4.2)
        figure.delaxes(first)
        grid = figure.subplots(1, len(sides), sharey=True, squeeze=False)[0]
        for axes, side in zip(grid, sides, strict=True):
            axes.patch.set_alpha(0.0)
            for place, label in enumerate(scenarios):
                marker, color = MARKERS[place % len(MARKERS)], SERIES[place % len(SERIES)]
                axes.plot([], [], marker, color=color, markersize=6, label=label)
                for view in (view for view in points if view.adversary in (side, BOTH) and view.label == label):
                    low, high = view.advantage_interval or (view.advantage.value, view.advantage.value)
                    axes.plot([low, high], [view.utility] * 2, color=color, linewidth=1.0, alpha=0.6)
                    axes.plot(view.advantage.value, view.utility, marker, color=color, markersize=6)
            axes.set_xlim(-0.03, 1.03)
            axes.set_title(f"{side} adversary", fontsize=10)
            axes.set_xlabel("advantage")
        grid[0].set_ylabel(f"test {points[0].metric}".strip())
        finish(figure, *grid)
        return as_svg(
            figure,
            prefix="advantage-utility",
            title="Utility against advantage",
            description=alt,
        )


def size_plot(
    shown: Sequence[Sequence[tuple[float, InferenceView]]], alt: str, *, prefix: str, title: str, axis: str
) -> str:
    """The advantage over a size, as SVG; a line is of games that differ in nothing else."""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 3.7)
        firsts = [line[0][1] for line in shown]
        for line, first in zip(shown, firsts, strict=True):
            values = [view.advantage.value or 0.0 for _, view in line]
            spans = [view.advantage_interval or (value, value) for (_, view), value in zip(line, values, strict=True)]
            _line(axes, [size for size, _ in line], values, spans, first, firsts, _series(first, firsts))
        sizes = sorted({size for line in shown for size, _ in line})
        axes.set_xscale("log")
        axes.axhline(0.0, color=INK, linestyle=_CHANCE, linewidth=1.0)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xticks(sizes)
        axes.set_xlabel(axis)
        axes.set_ylabel("advantage")
        finish(figure, axes)
        return as_svg(
            figure,
            prefix=prefix,
            title=title,
            description=alt,
        )


def _line(
    axes: Axes,
    where: Sequence[float],
    values: Sequence[float],
    spans: Sequence[tuple[float, float]],
    view: InferenceView,
    views: Sequence[InferenceView],
    label: str,
) -> None:
    color = _color(view, views)
    axes.fill_between(
        where, [low for low, _ in spans], [high for _, high in spans], color=color, alpha=0.12, linewidth=0
    )
    axes.plot(
        where,
        values,
        color=color,
        linestyle=_dash(view, views),
        marker=MARKERS[_place(view, views) % len(MARKERS)],
        markersize=4,
        linewidth=1.6,
        label=label,
    )


def _name(view: InferenceView, views: Sequence[InferenceView]) -> str:
    """Name that tells it from the others: the scenario alone where all play one game."""
    base = view.scenario if len({other.game for other in views}) == 1 else view.label
    return f"{base}, {view.adversary}" if view.adversary else base


def _series(view: InferenceView, views: Sequence[InferenceView]) -> str:
    kinds = {other.game.split(" ")[0] for other in views}
    base = view.scenario if len(kinds) == 1 else f"{view.scenario}, {view.game.split(' ')[0]}"
    return f"{base}, {view.adversary}" if view.adversary else base


def _least_rate(views: Sequence[InferenceView]) -> float:
    """The left edge of logarithmic axes: a little below the smallest false-positive rate that any curve resolves."""
    rates = [rate for view in views for rate in (view.curve or ((), ()))[0] if rate > 0]
    return max(_LEAST_RATE, min(rates, default=0.1) / 2.0) if min(rates, default=1.0) < 0.5 else 0.01


def _place(view: InferenceView, views: Sequence[InferenceView]) -> int:
    """One place for both adversaries of a game, who share a color and a marker."""
    return list(dict.fromkeys(other.label for other in views)).index(view.label)


def _color(view: InferenceView, views: Sequence[InferenceView]) -> str:
    return SERIES[_place(view, views) % len(SERIES)]


def _dash(view: InferenceView, views: Sequence[InferenceView]) -> object:
    """Broken lines for the static adversary; other ones where colors come again."""
    again = _place(view, views) // len(SERIES) * 2
    return DASHES[(again + (view.adversary == "static")) % len(DASHES)]

"""Plots of what adversaries inferred: ROC curves, advantage by round and by size, and advantage against utility."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes

from gradleak.reporting.drawing import DASHES, INK, MARKERS, SERIES, STYLE, as_svg, finish, new_figure
from gradleak.reporting.inference_view import BOTH, InferenceView

# More lines than this cannot be told apart.
MOST_LINES = 12
_LEAST_RATE = 1e-4
_CHANCE = (0, (2, 3))


def roc_plot(views: Sequence[InferenceView]) -> str:
    """ROC curves on linear and on logarithmic axes side by side, as SVG; "" without a curve.

    The dashed line is an adversary who guesses. On the logarithmic axes a false-positive rate of 0 stands at the left
    edge.

    Args:
        views: games and adversaries; of more than twelve with a curve the first twelve are drawn.
    """
    shown = [view for view in views if view.curve is not None][:MOST_LINES]
    if not shown:
        return ""
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
            description="True-positive against false-positive rate of each game and adversary, on linear axes at the left and "
            "on logarithmic ones at the right; the dashed line is guessing. The table holds the areas and the rate at few "
            "false alarms.",
        )


def round_plot(views: Sequence[InferenceView]) -> str:
    """The advantage from each observed round alone, as SVG; "" where no game has two rounds.

    Short lines at the right edge are the advantages of all rounds together.

    Args:
        views: games and adversaries.
    """
    shown = [view for view in views if len(view.rounds) > 1][:MOST_LINES]
    if not shown:
        return ""
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
            description="Advantage over the best blind guess from each observed round alone, with intervals; short lines at the "
            "right edge are all observed rounds together. The dashed line is no advantage.",
        )


def batch_size_plot(views: Sequence[InferenceView]) -> str:
    """The advantage over batch sizes, of games that differ in nothing else; "" without two batch sizes of one game.

    Args:
        views: games and adversaries.
    """
    return _size_plot(
        views,
        size=lambda view: view.batch_size,
        other=lambda view: view.public_rows,
        prefix="batch-size",
        what="batch size",
        axis="examples of a batch",
    )


def shadow_size_plot(views: Sequence[InferenceView]) -> str:
    """The advantage over the rows that the adversary has, of games that differ in nothing else; "" without two sizes.

    Args:
        views: games and adversaries.
    """
    return _size_plot(
        views,
        size=lambda view: view.public_rows,
        other=lambda view: view.batch_size,
        prefix="shadow-size",
        what="shadow size",
        axis="public rows that the adversary has",
    )


def advantage_utility_plot(views: Sequence[InferenceView]) -> str:
    """What the trained model is worth against the adversary's advantage, one panel an adversary, as SVG; "" without points.

    The upper left is where a defense should be: a useful model, and nothing to infer.

    Args:
        views: games and adversaries; drawn are those with both numbers.
    """
    points = [view for view in views if view.utility is not None and view.advantage.value is not None]
    sides = [side for side in ("static", "adaptive") if any(view.adversary in (side, BOTH) for view in points)]
    scenarios = list(dict.fromkeys(view.label for view in points))
    if not sides or len(scenarios) < 2:
        return ""
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
            description="One marker a scenario, bars are intervals of the advantage; the upper left is a useful model that gives "
            "nothing away. The table holds the numbers.",
        )


def inference_plots(views: Sequence[InferenceView]) -> Mapping[str, str]:
    """All plots of the section by caption, in its order; those without data are left out.

    Args:
        views: games and adversaries.
    """
    plots = {
        "ROC curves, all observed rounds together: linear axes, and logarithmic ones": roc_plot(views),
        "Advantage by round": round_plot(views),
        "Advantage by batch size": batch_size_plot(views),
        "Advantage by the number of public rows that the adversary has": shadow_size_plot(views),
        "What the model is worth against what is inferred": advantage_utility_plot(views),
    }
    return {caption: svg for caption, svg in plots.items() if svg}


def _size_plot(
    views: Sequence[InferenceView],
    *,
    size: Callable[[InferenceView], float | None],
    other: Callable[[InferenceView], float | None],
    prefix: str,
    what: str,
    axis: str,
) -> str:
    lines: dict[tuple[str, float | None], list[InferenceView]] = {}
    for view in views:
        if size(view) is not None and view.advantage.value is not None:
            lines.setdefault((view.key, other(view)), []).append(view)
    shown = [line for line in lines.values() if len({size(view) for view in line}) > 1][:MOST_LINES]
    if not shown:
        return ""
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 3.7)
        firsts = [line[0] for line in shown]
        for line in shown:
            ordered = sorted(line, key=lambda view: size(view) or 0.0)
            values = [view.advantage.value or 0.0 for view in ordered]
            spans = [view.advantage_interval or (value, value) for view, value in zip(ordered, values, strict=True)]
            _line(
                axes, [size(view) or 0.0 for view in ordered], values, spans, line[0], firsts, _series(line[0], firsts)
            )
        sizes = sorted({size(view) or 0.0 for line in shown for view in line})
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
            title=f"Advantage by {what}",
            description=f"Advantage over the best blind guess against the number of {axis}, with intervals, one line a "
            "scenario and adversary; the table holds the numbers. The dashed line is no advantage.",
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
    """What tells it from the others: the scenario alone where all play one game."""
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


__all__ = [
    "MOST_LINES",
    "advantage_utility_plot",
    "batch_size_plot",
    "inference_plots",
    "roc_plot",
    "round_plot",
    "shadow_size_plot",
]

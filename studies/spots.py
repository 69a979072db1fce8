"""Values with their intervals, as lines or as spots, a panel a setting: for the figures of studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from gradleak.reporting.drawing import BESIDE, INK, drawn, look
from gradleak.reporting.pages.utility.curve import standalone

# x, value, and the interval's low and high.
Spot = tuple[float, float | None, float | None, float | None]
Panels = Mapping[str, Mapping[str, Sequence[Spot]]]


def spots(
    panels: Panels,
    *,
    x: str,
    y: str,
    title: str,
    description: str,
    logarithmic: bool = False,
    steep: bool = False,
    diagonal: bool = False,
    joined: bool = False,
    names: Sequence[str] = (),
    beside: float | None = None,
) -> str:
    """Values by series with their intervals, the text of an SVG file.

    Args:
        panels: by title, series by name.
        x: name of the horizontal axis.
        y: name of the vertical one.
        title: name of the figure.
        description: what it shows, for those who do not see it.
        logarithmic: whether the horizontal axis is.
        steep: whether the vertical axis is logarithmic; what is not positive is left out then.
        diagonal: whether the line on which both are equal is drawn; both axes are logarithmic then, and alike.
        joined: whether a line leads through the spots of a series.
        names: of the places 0, 1, ... of the horizontal axis; empty for numbers.
        beside: a value that the others are held against, or None.
    """
    every = list(dict.fromkeys(name for series in panels.values() for name in series))
    places = [spot[0] for series in panels.values() for found in series.values() for spot in found]
    # The same in all panels, with room beside the outermost spots.
    room = 0.05 * ((max(places) - min(places)) or 1.0)
    reach = (min(places) - room, max(places) + room)

    def paint(grid: Sequence[Axes]) -> None:
        for axes, (panel, series) in zip(grid, panels.items(), strict=True):
            # Series that a panel lacks have their place in the legend all the same, which is the first panel's.
            for place, name in enumerate(every):
                color, dash, marker = look(place)
                aside = 0.16 * (place - (len(every) - 1) / 2) if names else 0.0
                found = [
                    (at, value, low, high)
                    for at, value, low, high in series.get(name, ())
                    if value is not None and (value > 0 or not steep)
                ]
                axes.plot(
                    [spot[0] + aside for spot in found],
                    [spot[1] for spot in found],
                    color=color,
                    linestyle=dash if joined else "",
                    marker=marker,
                    markersize=4.5,
                    linewidth=1.4,
                    label=name,
                )
                for at, _, low, high in found:
                    if low is not None and high is not None:
                        axes.plot([at + aside] * 2, [low, high], color=color, alpha=0.5, linewidth=1.0)
            if beside is not None:
                axes.axhline(beside, color=INK, linestyle=BESIDE, linewidth=1.0)
            if steep or diagonal:
                axes.set_yscale("log")
            if diagonal:
                axes.set_xscale("log")
                axes.plot(
                    [min(places), max(places)], [min(places), max(places)], color=INK, linestyle=BESIDE, linewidth=1.0
                )
            elif logarithmic:
                axes.set_xscale("log")
                axes.set_xticks(sorted({spot[0] for found in series.values() for spot in found}))
            elif not names:
                axes.set_xlim(*reach)
            axes.set_title(panel, fontsize=10)
            axes.set_xlabel(x)
            axes.set_ylabel(y)
            if names:
                _name(axes, names)

    rows = -(-len(panels) // 2)
    svg = drawn(
        paint,
        prefix="game",
        title=title,
        description=description,
        size=(7.4, (3.6 if names else 3.0) * rows + 0.4),
        panels=len(panels),
        shared=True,
    )
    return standalone(svg)


def _name(axes: Axes, names: Sequence[str]) -> None:
    """Names in place of numbers, which the ticks of `finish` would be."""
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(range(len(names)))
    axes.tick_params(axis="x", labelbottom=False)
    for place, name in enumerate(names):
        axes.annotate(
            name, (place, -0.04), xycoords=("data", "axes fraction"), rotation=35, ha="right", va="top", fontsize=8
        )


__all__ = ["Panels", "Spot", "spots"]

"""Figures of the studies of generative priors: losses along the way, and quality over a setting."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from gradleak.reporting.drawing import drawn, look
from gradleak.reporting.pages.utility.curve import standalone
from studies.attack_lines import Line

PLACES = 25
"""Costs at which the losses of several images are put together."""


def loss_curves(panels: Mapping[str, Mapping[str, Sequence[Line]]]) -> str:
    """Median matching loss so far over plain gradients, both logarithmic, as the text of an SVG file.

    Args:
        panels: by title, the lines of each attack by its name. Attacks without a history are left out.

    Returns:
        "" where no attack has a history.
    """
    curves = {title: _known(lines) for title, lines in panels.items()}
    curves = {title: known for title, known in curves.items() if known}
    if not curves:
        return ""
    places = _places([name for known in curves.values() for name in known])

    def paint(every: Sequence[Axes]) -> None:
        for axes, (title, known) in zip(every, curves.items(), strict=True):
            for name, points in known.items():
                color, dash, _ = look(places[name])
                axes.plot(*zip(*points, strict=True), color=color, linestyle=dash, label=name, drawstyle="steps-post")
            axes.set(title=title, xlabel="plain gradients an image", ylabel="matching loss", xscale="log", yscale="log")

    return standalone(
        drawn(
            paint,
            prefix="losses",
            title="Matching losses",
            description="Median over the images of the smallest matching loss so far, over plain gradients.",
            size=(7.4, 3.4 * (1 + (len(curves) - 1) // 2)),
            panels=len(curves),
        )
    )


def quality_over(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> str:
    """PSNR over whole numbers such as batch sizes, a line a way to attack, as the text of an SVG file.

    Args:
        panels: by what the horizontal axis counts, points (number, dB) by name.

    Returns:
        "" where there are no points.
    """
    drawable = {title: lines for title, lines in panels.items() if any(lines.values())}
    if not drawable:
        return ""
    places = _places([name for lines in drawable.values() for name in lines])

    def paint(every: Sequence[Axes]) -> None:
        for axes, (title, lines) in zip(every, drawable.items(), strict=True):
            for name, points in lines.items():
                color, dash, marker = look(places[name])
                axes.plot(*zip(*sorted(points), strict=True), color=color, linestyle=dash, marker=marker, label=name)
            counts = sorted({count for points in lines.values() for count, _ in points})
            axes.set(xlabel=title, ylabel="mean PSNR (dB)", xscale="log", xticks=counts)
        # One legend for all panels, from the first.
        missing = [name for name in places if name not in next(iter(drawable.values()))]
        for name in missing:
            color, dash, marker = look(places[name])
            every[0].plot([], [], color=color, linestyle=dash, marker=marker, label=name)

    return standalone(
        drawn(
            paint,
            prefix="quality",
            title="Quality of the claims",
            description="Mean PSNR over " + ", ".join(drawable) + ", a line a way to attack.",
            size=(7.4, 3.4 * (1 + (len(drawable) - 1) // 2)),
            panels=len(drawable),
        )
    )


def _places(names: Sequence[str]) -> dict[str, int]:
    """One look a name, whichever panel it stands in."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def _known(lines: Mapping[str, Sequence[Line]]) -> dict[str, list[tuple[float, float]]]:
    found = {name: median_losses(some) for name, some in lines.items()}
    return {name: points for name, points in found.items() if points}


def median_losses(lines: Sequence[Line]) -> list[tuple[float, float]]:
    """(plain gradients, median over images of the smallest loss so far), from where all images have one.

    Only positive losses are kept: they are drawn on a logarithmic axis.
    """
    histories = [line.history for line in lines if line.history]
    if not histories:
        return []
    first = max(history[0][0] for history in histories)
    last = max(history[-1][0] for history in histories)
    ratio = (last / first) ** (1 / (PLACES - 1)) if last > first else 1.0
    costs = [first * ratio**place for place in range(PLACES)] if last > first else [first]
    points = []
    for cost in costs:
        at = [loss_at(history, cost) for history in histories]
        value = statistics.median([loss for loss in at if loss is not None])
        if value > 0:
            points.append((cost, value))
    return points


def loss_at(history: Sequence[Sequence[float]], cost: float) -> float | None:
    """The smallest loss that was had for at most so many plain gradients; None before the first."""
    had = [loss for spent, loss in history if spent <= cost * 1.001]
    return had[-1] if had else None


__all__ = ["loss_at", "loss_curves", "median_losses", "quality_over"]

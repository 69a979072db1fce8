"""Grids of panels as SVG files, for the figures of studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from gradleak.reporting.drawing import drawn
from gradleak.reporting.pages.utility.curve import standalone


def panels(
    rows: int,
    columns: int,
    size: tuple[float, float],
    paint: Callable[[Any], None],
    *,
    prefix: str,
    title: str,
    description: str,
) -> str:
    """A grid of panels as the text of an SVG file.

    Args:
        rows: of panels.
        columns: of panels.
        size: width and height in inches.
        paint: draws on the array of axes (rows, columns).
        prefix: of all ids.
        title: its name, HTML.
        description: what it shows, for those who do not see it, HTML.
    """

    def fill(every: Sequence[Axes]) -> None:
        paint(np.array(every, dtype=object).reshape(rows, columns))

    return standalone(
        drawn(
            fill,
            prefix=prefix,
            title=title,
            description=description,
            size=size,
            panels=rows * columns,
            columns=columns,
        )
    )


def drawn_grid(
    count: int,
    paint: Callable[[Sequence[Axes]], None],
    *,
    prefix: str,
    title: str,
    description: str,
    columns: int = 3,
    side: float = 2.6,
) -> str:
    """So many panels of one size, as the text of an SVG file.

    Args:
        count: of panels.
        paint: draws on the axes of all panels.
        prefix: of all ids.
        title: its name, HTML.
        description: what it shows, for those who do not see it, HTML.
        columns: how many panels stand side by side, at most.
        side: height of a panel in inches.
    """
    wide = min(count, columns)
    size = (1.1 * side * wide, side * math.ceil(count / wide) + 0.5)
    return standalone(
        drawn(paint, prefix=prefix, title=title, description=description, size=size, panels=count, columns=wide)
    )


__all__ = ["drawn_grid", "panels"]

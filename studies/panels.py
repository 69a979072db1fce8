"""Grids of panels as SVG files, for the figures of studies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib

from gradleak.reporting.drawing import STYLE, as_svg, finish, new_figure
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
    with matplotlib.rc_context(STYLE):
        figure, first = new_figure(*size)
        figure.delaxes(first)
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat:
            axes.patch.set_alpha(0.0)
        paint(grid)
        finish(figure, *grid.flat)
        return standalone(as_svg(figure, prefix=prefix, title=title, description=description))


__all__ = ["panels"]

"""Smooth curves through scattered points."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradleak.results import InputError

Floats = NDArray[np.float64]


def loess(x: Sequence[float], y: Sequence[float], at: Sequence[float], *, span: float = 0.75) -> Floats:
    """LOESS: at each place the line that fits the nearest points best, near ones weighing more, read there.

    Weights are (1 − (d/h)³)³ of the distance d, with h that of the furthest of the ⌈span · n⌉ nearest points. Where these
    have one place only, it is their weighted mean. A line is its own curve, whatever the span.

    Args:
        x: places of the points, (n,), at least two.
        y: their values.
        at: places where the curve is read, (m,).
        span: share of the points that a line is fitted to, above 0 and at most 1.

    Returns:
        The curve, (m,).

    Raises:
        InputError: for fewer than two points, or another span.

    **Source**: Cleveland 1979 (locally weighted regression, degree 1, without the robust reweighting), as Mo et al. 2021
    draw their figures 5 and 7; statsmodels, which has it too, is no dependency of this repository.
    """
    places, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(places) != len(values) or len(places) < 2 or not 0.0 < span <= 1.0:
        raise InputError(
            f"loess: expected at least two points and a span in (0, 1], got {len(places)}, {len(values)} and {span}"
        )
    count = max(2, math.ceil(span * len(places)))
    found = np.empty(len(at))
    for number, place in enumerate(at):
        apart = places - place
        reach = float(np.sort(np.abs(apart))[count - 1])
        # The furthest point would weigh nothing: reach a little further, and past points that lie upon each other.
        reach = reach * (1 + 1e-9) if reach > 0.0 else 1.0
        weights = np.clip(1.0 - np.abs(apart / reach) ** 3, 0.0, None) ** 3
        middle = float(np.average(apart, weights=weights))
        spread = float(np.average((apart - middle) ** 2, weights=weights))
        mean = float(np.average(values, weights=weights))
        if spread > 1e-12 * reach**2:
            slope = float(np.average((apart - middle) * (values - mean), weights=weights)) / spread
            mean -= slope * middle
        found[number] = mean
    return found


__all__ = ["loess"]

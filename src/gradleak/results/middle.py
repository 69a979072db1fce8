"""The median of numbers among which some may be infinite."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median(values: Sequence[float]) -> float | None:
    """The median: of two middle values their mean, or the finite one where the other is infinite; None for no values.

    A perfect copy has an infinite PSNR. Half of the way to infinity is infinity, so that one perfect copy of two would
    make the middle perfect, too.

    Examples:
        >>> median([0.1, 0.4, 0.2]), median([0.1, 0.4]), median([20.0, math.inf]), median([])
        (0.2, 0.25, 20.0, None)
    """
    if not values:
        return None
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    if math.isinf(low) or math.isinf(high):
        return low if math.isfinite(low) else high
    return low + (high - low) / 2

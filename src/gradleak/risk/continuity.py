"""Test for jumps of a release as its input moves along a line."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PIECES = 16
ZOOMS = 7  # each by PIECES / 2: the last pieces are 3e-8 of the line


def largest_jump(function: Callable[[Tensor], Tensor], start: Tensor, end: Tensor) -> float:
    """The largest jump found along the line from `start` to `end`, relative to the change over the whole line.

    The line is cut into pieces; the search zooms into the two pieces where the second difference is largest, again and
    again. A smooth function leaves second differences of the order of the squared length of a piece, one with a kink of
    its length, one with a jump the jump itself.

    Assumptions: a search, not a proof: a jump that is small beside the curvature of the first pieces may be missed.

    Args:
        function: maps (n,) to (P,).
        start: (n,).
        end: (n,).

    Returns:
        0.0 if the function does not change along the line.

    Cost: about 120 evaluations.
    """
    low, high, change, jump = 0.0, 1.0, 0.0, 0.0
    with torch.no_grad():
        for zoom in range(ZOOMS):
            places = torch.linspace(low, high, PIECES + 1, dtype=start.dtype).tolist()
            values = torch.stack([function(torch.lerp(start, end, place)) for place in places])
            if zoom == 0:
                change = float((values[1:] - values[:-1]).norm(dim=1).sum())
                if change == 0.0:
                    return 0.0
            seconds = (values[2:] - 2 * values[1:-1] + values[:-2]).norm(dim=1)
            worst = int(seconds.argmax())
            jump = float(seconds[worst])
            low, high = places[worst], places[worst + 2]
    return jump / change

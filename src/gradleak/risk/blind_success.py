"""Chance that a guess made before seeing a release is near enough to an example."""

from __future__ import annotations

import scipy.stats
import torch
from torch import Tensor

# Of the largest squared length: distances come from inner products in float64. Only ever counts a point more.
SLACK = 1e-10
CHUNK_ENTRIES = 2**22


def blind_success_limit(points: Tensor, radius: float, *, guesses: int = 1, confidence: float = 0.95) -> float:
    """An upper confidence limit of κ = sup P(X lies within `radius` of one of k guesses), from independent draws of X.

    The supremum is over all sets of k points of the space, whether drawn or not. **It needs no uniform convergence**: let
    z* be the best guesses. They depend on the law of X alone and not on the draws, so the number of draws within
    `radius` of z* is binomial with probability κ. The largest number N within `radius` of any k points is at least
    that, so the limit of Clopper and Pearson from N is at least theirs from the binomial number, which is above κ with
    the stated confidence. (Where no best guesses exist, take some that fall short by any small amount.)

    N is not known either; k times `most_within` is at least N, and more draws only raise the limit.

    Args:
        points: (n, e), the draws.
        radius: Euclidean, positive.
        guesses: k.
        confidence: of the limit, between 0 and 1, over the draws.

    Cost: n²·e multiplications.

    Source: Clopper and Pearson 1934 for the limit; the argument for the supremum is ours.

    Examples:
        >>> apart = torch.eye(100, dtype=torch.float64)
        >>> round(blind_success_limit(apart, 0.5), 4)  # one of 100 draws is within 0.5 of any point
        0.0466
    """
    count = points.shape[0]
    found = min(count, guesses * most_within(points, radius))
    return 1.0 if found == count else float(scipy.stats.beta.ppf(confidence, found + 1, count - found))


def most_within(points: Tensor, radius: float) -> int:
    """A number of points that no ball of this radius exceeds, wherever its center is; at least 1.

    For m points within r of some center, the mean over all pairs (each with itself too) of the squared distance is twice
    the mean squared distance from their own mean, so at most 2r². So one of the m has a mean squared distance of at
    most 2r² from them, and none further than 2r away. For every point the largest m is taken for which its m nearest
    (itself first) allow that.

    Args:
        points: (n, e) with n >= 1.
        radius: r, positive.

    Cost: n²·e multiplications, and a partial sort of every row of distances.

    Examples:
        >>> most_within(torch.tensor([[0.0], [1.0], [2.0], [9.0]]), 1.0)
        3
    """
    points = points.double() - points.double().mean(0)
    squares = points.square().sum(1)
    slack = SLACK * float(squares.max())
    most = 1
    for rows in points.split(max(1, CHUNK_ENTRIES // points.shape[0])):
        gaps = (rows.square().sum(1)[:, None] + squares - 2 * rows @ points.T).clamp(min=0.0)
        near = int((gaps <= 4 * radius**2 + slack).sum(1).max())
        nearest = gaps.topk(near, largest=False, sorted=True).values
        means = nearest.cumsum(1) / torch.arange(1, near + 1, dtype=gaps.dtype, device=gaps.device)
        fits = (nearest <= 4 * radius**2 + slack) & (means <= 2 * radius**2 + slack)
        most = max(most, int(fits.sum(1).max()))
    return most

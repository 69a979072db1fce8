"""Whole numbers behind real ones that are known up to a covariance: reduction of a lattice, and rounding along it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Lovász's constant; phases between reductions of all sizes, between factorizations anew, and at most.
_LOVASZ, _SIZES, _AGAIN, _PHASES = 0.99, 12, 120, 20_000
# Standard deviation of each step of rounding at which a wrong one comes once in a million times.
_SURE = 0.1
# Distance from whole numbers that is met, and logarithm of the chance of others.
_MET, _BY_CHANCE = 0.2, -math.log(1e6)
# Logarithm of the factor by which the longest vector exceeds the geometric mean, a dimension.
GROWTH = 0.0198


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounded:
    """Whole numbers, and what speaks for them.

    Attributes:
        values: (m,).
        off: largest distance of what was found from whole numbers, before it was rounded.
        squares: of what was off beforehand, in standard deviations, by number.
        chance: logarithm of how many other whole numbers are to be expected as near: an ellipsoid's volume.
    """

    values: Array
    off: float
    squares: float
    chance: float

    @property
    def sure(self) -> bool:
        """True if whole numbers were met, and others as near would come by chance less than once in a million times."""
        return self.off < _MET and self.chance < _BY_CHANCE


def reduced(factor: Array) -> tuple[Array, Array]:
    """Combinations c of whole numbers for which cᵀ F is short.

    Lenstra, Lenstra and Lovász 1982, with every second pair of neighbors handled at once. It ends where all steps are sure, too.

    Args:
        factor: F (m, d), m ≤ d, of rank m.

    Returns:
        Combinations as columns of U (m, m), unimodular; R of the QR decomposition of Fᵀ U.

    **Cost**: about m²/10 phases of m² operations.
    """
    basis = factor.T
    count = basis.shape[1]
    combined = np.eye(count)
    upper = _triangular(basis)
    _reduce_sizes(upper, combined)
    idle = 0
    for phase in range(1, _PHASES + 1):
        pairs = np.arange(phase % 2, count - 1, 2)
        times = np.rint(upper[pairs, pairs + 1] / upper[pairs, pairs])
        some = np.nonzero(times)[0]
        if len(some):
            left = pairs[some]
            upper[:, left + 1] -= upper[:, left] * times[some]
            combined[:, left + 1] -= combined[:, left] * times[some]
        turned = upper[pairs, pairs + 1] ** 2 + upper[pairs + 1, pairs + 1] ** 2
        swapped = pairs[_LOVASZ * upper[pairs, pairs] ** 2 > turned]
        idle = 0 if len(swapped) else idle + 1
        if len(swapped):
            _swap(upper, combined, swapped)
        if phase % _SIZES == 0 or idle > 1:
            _reduce_sizes(upper, combined)
        if phase % _AGAIN == 0 or idle > 1:
            upper = _triangular(basis @ combined)
            if idle > 1 or np.abs(np.diag(upper)).max() < _SURE:
                break
    return combined, upper


def _triangular(basis: Array) -> Array:
    made: Array = np.asarray(np.linalg.qr(basis, mode="r"))
    return made


def _swap(upper: Array, combined: Array, left: NDArray[np.int64]) -> None:
    there, back = np.concatenate([left, left + 1]), np.concatenate([left + 1, left])
    upper[:, there] = upper[:, back]
    combined[:, there] = combined[:, back]
    first, second = upper[left, left], upper[left + 1, left]
    length = np.hypot(first, second)
    cosine, sine = (first / length)[:, None], (second / length)[:, None]
    above, below = upper[left], upper[left + 1]
    upper[left], upper[left + 1] = cosine * above + sine * below, cosine * below - sine * above
    upper[left + 1, left] = 0


def _reduce_sizes(upper: Array, combined: Array) -> None:
    for row in range(upper.shape[0] - 2, -1, -1):
        times = np.rint(upper[row, row + 1 :] / upper[row, row])
        some = np.nonzero(times)[0]
        if len(some):
            places = row + 1 + some
            upper[: row + 1, places] -= np.outer(upper[: row + 1, row], times[some])
            combined[:, places] -= np.outer(combined[:, row], times[some])


def whole(values: Array, factor: Array) -> Rounded:
    """The whole numbers that are likely to be behind values with errors of covariance F Fᵀ.

    Combinations of them of small variance are rounded, one after the other, each given those before (Babai 1986; bootstrapping,
    as Teunissen 1995 has it for the ambiguities of positioning by satellites).

    Args:
        values: (m,).
        factor: F (m, d); errors below 1e-8 are round-off where values are in the hundreds.

    Returns:
        They, and what speaks for them; nothing is sure where values and covariance do not determine them.
    """
    order = np.argsort(np.square(factor).sum(axis=1))
    factor = factor[order]
    combined, _ = reduced(factor)
    turned, again = np.linalg.qr(factor.T @ combined)
    middle = combined.T @ values[order]
    steps = np.zeros(len(values))
    for place in range(len(values)):
        given = middle[place] + again[:place, place] @ steps[:place]
        steps[place] = (np.rint(given) - given) / again[place, place]
    found = np.empty(len(values))
    found[order] = values[order] + factor @ (turned @ steps)
    nearest, half = np.rint(found), len(values) / 2
    squares = float(np.square(steps).mean())
    ball = half * math.log(math.pi * len(values) * max(squares, 1.0)) - math.lgamma(half + 1)
    return Rounded(
        values=nearest,
        off=float(np.abs(found - nearest).max()),
        squares=squares,
        chance=ball + float(np.log(np.abs(np.diag(again))).sum()),
    )


def hardness(factor: Array) -> float:
    """Logarithm of what the standard deviation of the least sure step will be about, for errors of covariance F Fᵀ."""
    sizes = np.abs(np.diag(_triangular(factor.T)))
    return float(np.log(np.maximum(sizes, 1e-300)).mean()) + GROWTH * len(factor)


def is_sure(expected: float) -> bool:
    """True if rounding of this hardness is worth a try."""
    return expected < math.log(_SURE)

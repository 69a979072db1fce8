"""A bound on ε from guesses of hidden coins: for canaries of one run, which are not independent, and for trials."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from gradleak.privacy.lower_bounds.estimator import (
    Direction,
    EpsilonEstimator,
    Reading,
    TrialScores,
    Values,
    geometric_ranks,
    lower_rate,
)
from gradleak.privacy.lower_bounds.gaussian_fit import gaussian_dp_epsilon
from gradleak.privacy.lower_bounds.thresholds import part_size
from gradleak.results import (
    MAHLOUJIFAR_2025,
    STEINKE_2023,
    Citation,
    InputError,
    Share,
)

# Standard deviations of the number of heads among fair coins: how many trials are kept back, and what is no fair coin.
_SPARE, _UNFAIR = 4.0, 6.0
_STEPS = 40
Labels = NDArray[np.bool_]


class TradeOff(StrEnum):
    """Family of trade-off curves that the bound is about."""

    EPSILON_DELTA = "epsilon_delta"
    GAUSSIAN = "gaussian"


@dataclass(frozen=True, kw_only=True)
class OneRunEpsilon(EpsilonEstimator):
    """A lower bound on ε from how many hidden coins are guessed, where trials need not be independent.

    m units have a fair coin each, H1 for heads; scores come of all of them, for instance from one training run whose
    canaries were taken in or left out. The highest scores are guessed H1, the lowest H0, r guesses in all, as many as a
    separate split found best, and s of them are right. If every unit had a trade-off curve f whatever the other coins
    are, P(S ≥ s) would be smaller than what the recursion of Mahloujifar et al. allows; ε̂ is the largest ε whose curve
    is refused at level α, of the curves that `curve` names:

    - "epsilon_delta": of all (ε, δ)-private mechanisms; no other assumption.
    - "gaussian": of two Gaussians μ apart, then ε(δ) of μ. A bound for Gaussian mechanisms alone.

    **Assumptions**: fair coins, independent of each other and of everything else; a unit's contribution is private
    whatever the other coins are. Independent trials are a case of it: with `coins=False` fair coins are drawn here, each
    takes the next trial of its hypothesis, and about 4√(2n) trials of 2n are left over.

    Attributes:
        curve: family of trade-off curves.
        coins: whether the hypothesis of every trial was drawn by a fair coin, so that all are used; False for numbers
            of trials that were fixed.
        share: of the coins whose outcome chooses direction and number of guesses, between 0 and 1.

    Raises:
        InputError: for a number out of range; for `coins` with numbers of trials that fair coins do not give.

    **Cost**: sorts, and about 40 recursions of a few hundred steps.

    **Source**: Mahloujifar, Melis and Chaudhuri 2025, the recursion for f-DP with abstentions; Steinke, Nasr and
    Jagielski 2023 for the game. Deviations: (ε, δ) privacy is taken as the trade-off curve that it is, the number of
    guesses and the direction are chosen on separate coins.
    """

    curve: TradeOff = TradeOff.EPSILON_DELTA
    coins: bool = False
    share: Share = 0.2
    selection: ClassVar[str] = "number of guesses and direction chosen on separate coins"
    citations: ClassVar[tuple[Citation, ...]] = (MAHLOUJIFAR_2025, STEINKE_2023)

    def largest_certifiable(self, null: int, alternative: int) -> float:
        """The value if all coins of the second part were guessed; at most 0 for too few.

        Args:
            null: trials of H0.
            alternative: trials of H1.
        """
        coins = null + alternative if self.coins else fair_coins(min(null, alternative))
        guessed = coins - part_size(coins, self.share)
        return self._invert(guessed, guessed, guessed) if guessed > 0 else 0.0

    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        values, heads = self._toss(scores, generator)
        order = generator.permutation(len(values))
        chosen = part_size(len(values), self.share)
        choosing, counting = order[:chosen], order[chosen:]
        total = len(counting)
        direction, shares = self._promising(values[choosing], heads[choosing], total)
        highest, lowest = (max(0, round(share * total)) for share in shares)
        highest = min(highest, total - lowest)
        sign = 1.0 if direction is Direction.HIGHER else -1.0
        ranked = heads[counting][np.argsort(sign * values[counting], kind="stable")]
        right = int(np.count_nonzero(ranked[total - highest :]) + np.count_nonzero(~ranked[:lowest]))
        guesses = highest + lowest
        return Reading(
            value=self._invert(total, guesses, right),
            interval=None,
            used=(int(np.count_nonzero(~heads[counting])), int(np.count_nonzero(heads[counting]))),
            direction=direction,
            threshold=None,
            details={"curve": self.curve.value, "coins": total, "guesses": guesses, "right_guesses": right},
        )

    def _toss(self, scores: TrialScores, generator: np.random.Generator) -> tuple[Values, Labels]:
        """Scores and coins, the latter fair."""
        null, alternative = (generator.permutation(values) for values in (scores.null, scores.alternative))
        if self.coins:
            total = len(null) + len(alternative)
            if abs(len(alternative) - len(null)) > _UNFAIR * math.sqrt(total):
                raise InputError(
                    f"OneRunEpsilon.coins: expected about as many trials of H0 as of H1, as fair coins give, got {len(null)} "
                    f"and {len(alternative)}; use coins=False for numbers that were fixed"
                )
            return np.concatenate([null, alternative]), np.arange(total) >= len(null)
        each = min(len(null), len(alternative))
        coins = fair_coins(each)
        # Cut off at what is there, which happens once in 15,000 draws.
        heads = int(np.clip(generator.binomial(coins, 0.5), coins - each, each))
        return np.concatenate([null[: coins - heads], alternative[:heads]]), np.arange(coins) >= coins - heads

    def _promising(self, values: Values, heads: Labels, total: int) -> tuple[Direction, tuple[float, float]]:
        """Direction, and the shares of all coins to guess H1 and H0."""
        count = len(values)
        ranks = np.array([0, *geometric_ranks(max(1, count // 2))])
        asked = np.maximum(ranks[:, None] + ranks[None, :], 1)
        guesses = asked * (total / count)
        best = None
        for direction in Direction:
            sign = 1.0 if direction is Direction.HIGHER else -1.0
            ranked = heads[np.argsort(sign * values, kind="stable")]
            top = np.concatenate([[0], np.cumsum(ranked[::-1])])[ranks]
            bottom = np.concatenate([[0], np.cumsum(~ranked)])[ranks]
            # Half a guess is added to either side: a few right ones in a row would promise too much.
            right = guesses * (top[:, None] + bottom[None, :] + 0.5) / (asked + 1.0)
            promised = self._promise(lower_rate(right, guesses, self.error), guesses / total)
            promised[0, 0] = -np.inf
            row, column = np.unravel_index(int(np.argmax(promised)), promised.shape)
            if best is None or promised[row, column] > best[0]:
                best = promised[row, column], direction, (float(ranks[row]) / count, float(ranks[column]) / count)
        assert best is not None
        return best[1], best[2]

    def _promise(self, right: Values, guessed: Values) -> Values:
        """Start of the recursion: the parameter whose curve just allows these shares of right guesses."""
        hit, missed = self.error * guessed * right, self.error * guessed * (1.0 - right)
        if self.curve is TradeOff.GAUSSIAN:
            return np.asarray(scipy.special.ndtri(hit) - scipy.special.ndtri(missed))
        return np.asarray(np.log(np.maximum(hit - self.delta, 1e-300) / missed))

    def _invert(self, coins: int, guesses: int, right: int) -> float:
        """The largest ε whose curve is refused."""
        if not guesses:
            return 0.0
        largest = _largest_refused(coins, guesses, right, self.error, self.delta, self.curve)
        return gaussian_dp_epsilon(largest, self.delta) if self.curve is TradeOff.GAUSSIAN else largest


def fair_coins(each: int) -> int:
    """Number of fair coins that can be tossed so that heads and tails both find their trial but once in 15,000 times.

    Args:
        each: trials of either hypothesis.
    """
    return max(0, math.floor(2 * each - _SPARE * math.sqrt(2 * each)))


@functools.lru_cache(maxsize=4096)
def _largest_refused(coins: int, guesses: int, right: int, error: float, delta: float, curve: TradeOff) -> float:
    """By bisection from below: what is refused is refused for every smaller parameter too."""

    def refused(parameter: float) -> bool:
        return refuses(coins, guesses, right, error=error, inverse=_inverse(curve, parameter, delta))

    if not refused(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refused(high):
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if refused(middle) else (low, middle)
    return low


def _inverse(curve: TradeOff, parameter: float, delta: float) -> Callable[[float], float]:
    """F⁻¹: the least probability under one hypothesis of an event that has given probability under the other."""
    if curve is TradeOff.GAUSSIAN:
        return lambda mass: float(scipy.special.ndtr(scipy.special.ndtri(mass) - parameter))
    shrink, grow = math.exp(-parameter), math.exp(parameter)
    return lambda mass: max(0.0, shrink * (mass - delta), 1.0 - delta - grow * (1.0 - mass))


def refuses(coins: int, guesses: int, right: int, *, error: float, inverse: Callable[[float], float]) -> bool:
    """True if so many right guesses are improbable (below `error`) for every mechanism with a trade-off curve.

    With p_j the probability of j right guesses, r_i = Σ_{j≥i} (j/m) p_j is the probability that a unit drawn at random is
    guessed rightly and at least i are, h_i = Σ_{j≥i} ((r − j)/m) p_j that it is guessed wrongly and at least i are right.
    Its own coin has the curve, so that h_{i−1} ≥ F⁻¹(r_i), F = 1 − f; and r_i − r_{i+1} = i/(r − i) (h_i − h_{i+1}). From
    r_s ≥ α s/m on, this gives lower bounds down to r_0 + h_0, which is r/m: more than that cannot be.

    Args:
        coins: m.
        guesses: r, from 1 to m, fixed without their coins.
        right: s.
        error: α.
        inverse: F⁻¹, increasing.

    **Source**: Mahloujifar, Melis and Chaudhuri 2025.
    """
    hit, missed = error * right / coins, error * (guesses - right) / coins
    for count in range(right - 1, -1, -1):
        least = inverse(hit)
        if least <= missed:
            return False
        hit, missed = hit + count / (guesses - count) * (least - missed), least
        if hit + missed > guesses / coins:
            return True
    return False

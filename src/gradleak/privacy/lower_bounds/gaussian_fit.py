"""Lower bound on epsilon by Gaussian scores, and the most that any number of trials can attain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy

from gradleak.privacy.lower_bounds.estimator import (
    Direction,
    EpsilonEstimator,
    Reading,
    TrialScores,
    certified_epsilon,
    lower_rate,
    upper_rate,
)
from gradleak.privacy.lower_bounds.thresholds import directed, part_size, split
from gradleak.results import (
    CLOPPER_PEARSON_1934,
    DONG_2022,
    NASR_2023,
    Citation,
    InputError,
    Share,
    check_count,
    check_not_negative,
    check_positive,
    check_share,
)

_GRID = 4001


def gaussian_dp_epsilon(mu: float, delta: float) -> float:
    """ε(δ) of two unit Gaussians μ apart, exactly: of every mechanism that is μ-GDP with equality.

    Args:
        mu: μ, at least 0: distance over standard deviation.
        delta: δ, between 0 and 1.

    Raises:
        InputError: for a number out of range.

    **Source**: Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022, corollary 2.13.

    Examples:
        >>> round(gaussian_dp_epsilon(1.0, 1e-5), 3)
        4.377
    """
    check_not_negative("mu", mu)
    check_share("delta", delta)
    if mu == 0.0:
        return 0.0
    # Φ(μ/2 − ε/μ) alone is larger than δ(ε).
    most = mu * (mu / 2.0 - float(scipy.special.ndtri(delta)))

    def excess(epsilon: float) -> float:
        first, second = scipy.special.log_ndtr([mu / 2.0 - epsilon / mu, -mu / 2.0 - epsilon / mu])
        shrunk = min(0.0, epsilon + second - first)
        return float(first + np.log(-np.expm1(shrunk)) - np.log(delta)) if shrunk < 0.0 else -np.inf

    # Below δ in total variation nothing is left to hide.
    if most <= 0.0 or excess(0.0) <= 0.0:
        return 0.0
    return float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-12, rtol=1e-12))


def gaussian_dp_mu(epsilon: float, delta: float) -> float:
    """The μ of μ-GDP whose ε(δ) this is: the inverse of `gaussian_dp_epsilon`.

    Args:
        epsilon: ε, above 0.
        delta: δ, between 0 and 1.

    Raises:
        InputError: for a number out of range.

    Examples:
        >>> round(gaussian_dp_mu(4.377, 1e-5), 3)
        1.0
    """
    check_positive("epsilon", epsilon)
    most = 1.0
    while gaussian_dp_epsilon(most, delta) < epsilon:
        most *= 2.0
    return float(scipy.optimize.brentq(lambda mu: gaussian_dp_epsilon(mu, delta) - epsilon, 0.0, most, xtol=1e-14))


def largest_certifiable_epsilon(null: int, alternative: int, *, delta: float, confidence: float = 0.95) -> float:
    """The largest ε that a threshold can certify with so many trials: all of them told apart.

    ln((L − δ)/U) with U = 1 − (α/2)^(1/n₀) and L = (α/2)^(1/n₁), or the same with H0 and H1 in each other's place where
    that is larger. At most 0 for so few trials that nothing can be certified.

    Args:
        null: n₀, trials of H0 that are counted.
        alternative: n₁, trials of H1 that are counted.
        delta: δ, between 0 and 1.
        confidence: 1 − α.

    Raises:
        InputError: for a number out of range.

    Examples:
        >>> round(largest_certifiable_epsilon(5000, 5000, delta=1e-5), 2)
        7.21
    """
    check_count("null", null)
    check_count("alternative", alternative)
    check_share("delta", delta)
    check_share("confidence", confidence)
    return float(certified_epsilon(0, alternative, (null, alternative), delta=delta, error=1.0 - confidence))


def attainable_epsilon(mu: float, n: int, *, delta: float, confidence: float = 0.95) -> float:
    """The most that the best threshold certifies of two unit Gaussians μ apart, with n trials of each.

    max over c of the Clopper–Pearson bound at c with the counts of false and true positives at their medians: what an
    auditor gets in a typical run who knows the best threshold beforehand and spends no trial on it. By how far it
    stays below ε(δ) is what n trials and thresholds cost, whatever the rule.

    Args:
        mu: μ, at least 0.
        n: trials under each hypothesis.
        delta: δ, between 0 and 1.
        confidence: 1 − α.

    Raises:
        InputError: for a number out of range.

    Examples:
        >>> round(attainable_epsilon(1.0, 10_000, delta=1e-5), 1)
        2.2
    """
    check_not_negative("mu", mu)
    check_count("n", n)
    check_share("delta", delta)
    check_share("confidence", confidence)
    # Past the middle, where the first form is the larger one; the laws are mirror images of each other.
    thresholds = np.linspace(mu / 2.0, mu / 2.0 + 8.0, _GRID)
    false, true = (scipy.stats.binom.median(n, scipy.stats.norm.sf(thresholds - shift)) for shift in (0.0, mu))
    certified = certified_epsilon(false, true, (n, n), delta=delta, error=1.0 - confidence)
    return max(0.0, float(certified.max()))


# The law of the number of right answers is bounded by a binomial one in its outer quarters.
_LEAST_CONFIDENCE = 0.5


@dataclass(frozen=True, kw_only=True)
class GaussianFitEpsilon(EpsilonEstimator):
    """A lower bound on ε for two hypotheses that differ by a shift in Gaussian noise: a bound on μ, and ε(δ) of it.

    Of two Gaussians μ apart (in standard deviations) no test is right in more than a share Φ(μ/2) of trials, half of
    them of H0 and half of H1. One threshold, the median of a separate split of both, is right s times of 2n; the
    lower end p of Clopper and Pearson's interval of that share gives μ̂ = 2Φ⁻¹(p), and ε̂ solves
    Φ(μ̂/2 − ε/μ̂) − e^ε Φ(−μ̂/2 − ε/μ̂) = δ. The Gaussian shape says how the tails go on beyond what trials can show, so that
    ε̂ comes close to the truth where thresholds alone certify a half of it or less. The interval is two-sided and begins
    at the bound, which therefore holds with 1 − α/2: the threshold is nearly the best one, and nothing else is to spare. Its
    upper end is that of the share of right answers in either direction, since of hypotheses that are hardly told apart the
    split may choose the wrong one; it limits what this threshold shows, and not ε.

    **Assumptions**: independent trials; what is released has the trade-off curve of two Gaussians, as the mean of one
    release with fixed hypotheses and noise of one covariance has. The statistic itself may have any law: it can only
    lose. Where H1 draws one of several such alternatives (an attribute of more than two values), ε̂ bounds the ε of the
    farthest one, since no test does better on average than on the easiest of them, and not that of the mixture. No bound
    under sampling or noise of another shape; use `CorrectedThresholdEpsilon` or `SplitThresholdEpsilon` there. Of the
    larger sample as many trials are left out as it has more.

    Attributes:
        share: of the trials that choose threshold and direction, between 0 and 1.

    Raises:
        InputError: for a number out of range, or a confidence below 0.5 (the tail bound needs an outer quarter).

    **Cost**: a median.

    **Source**: Dong, Roth and Su 2022 for Gaussian differential privacy; Nasr et al. 2023, section 4, for fitting it.
    Deviations: both rates are bounded together by the share of right answers rather than each alone (a sum of unlike
    coins has lighter tails than like ones, Hoeffding 1956, theorem 4), and the threshold is chosen on a separate split.
    """

    share: Share = 0.1
    selection: ClassVar[str] = "median of a separate split of both; Gaussian trade-off curve assumed"
    citations: ClassVar[tuple[Citation, ...]] = (DONG_2022, NASR_2023, CLOPPER_PEARSON_1934)

    def largest_certifiable(self, null: int, alternative: int) -> float:
        """The value if all trials of the second part were told apart; at most 0 for too few.

        Args:
            null: trials of H0.
            alternative: trials of H1.
        """
        each = min(count - part_size(count, self.share) for count in (null, alternative))
        return self._epsilon(float(lower_rate(2 * each, 2 * each, self.error / 2.0))) if each > 0 else 0.0

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if self.confidence < _LEAST_CONFIDENCE:
            raise InputError(
                f"GaussianFitEpsilon.confidence: expected at least {_LEAST_CONFIDENCE}, got {self.confidence!r}"
            )

    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        choosing, counting = split(scores, self.share, generator)
        some = min(choosing.counts)
        null, alternative = choosing.null[:some], choosing.alternative[:some]
        threshold = float(np.median(np.concatenate([null, alternative])))
        higher = np.count_nonzero(alternative > threshold) >= np.count_nonzero(null > threshold)
        direction = Direction.HIGHER if higher else Direction.LOWER
        each = min(counting.counts)
        null, alternative = (values[:each] for values in directed(counting, direction))
        level = threshold if direction is Direction.HIGHER else -threshold
        right = int(np.count_nonzero(null <= level) + np.count_nonzero(alternative > level))
        share = right / (2 * each)
        low, high = (float(end(right, 2 * each, self.error / 2.0)) for end in (lower_rate, upper_rate))
        return Reading(
            value=self._epsilon(low),
            interval=(self._epsilon(low), self._epsilon(max(high, 1.0 - low))),
            used=(each, each),
            direction=direction,
            threshold=threshold,
            details={
                "right_answers": share,
                "mu": _mu(low),
                "mu_estimate": _mu(share),
                "estimate": self._epsilon(share),
            },
        )

    def _epsilon(self, right: float) -> float:
        mu = _mu(right)
        return math.inf if math.isinf(mu) else gaussian_dp_epsilon(mu, self.delta)


def _mu(right: float) -> float:
    """The distance at which the best test is right in this share of trials."""
    return max(0.0, 2.0 * float(scipy.special.ndtri(right)))

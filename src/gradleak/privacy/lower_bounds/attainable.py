"""Largest epsilon that so many trials can certify, or any threshold for two Gaussians; the truth beside both."""

from __future__ import annotations

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats

from gradleak.privacy.lower_bounds.rates import certified_epsilon
from gradleak.results import check_count, check_not_negative, check_share

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

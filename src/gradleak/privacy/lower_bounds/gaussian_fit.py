"""A bound on ε for Gaussian mechanisms: how well one threshold tells the hypotheses apart, turned into μ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.special

from gradleak.privacy.lower_bounds.attainable import gaussian_dp_epsilon
from gradleak.privacy.lower_bounds.estimator import Direction, EpsilonEstimator, Reading
from gradleak.privacy.lower_bounds.rates import lower_rate, upper_rate
from gradleak.privacy.lower_bounds.split_threshold import directed, part_size, split
from gradleak.privacy.lower_bounds.trials import TrialScores
from gradleak.results import CLOPPER_PEARSON_1934, DONG_2022, NASR_2023, Citation, InputError, Share

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
    at the bound, which therefore holds with 1 − α/2: the threshold is nearly the best one, and nothing else is to spare.

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
            interval=(self._epsilon(low), self._epsilon(high)),
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

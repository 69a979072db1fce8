"""Several rounds combined by Bayes' rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradleak.attacks.inference.classifier import Floats, normalized
from gradleak.results import InputError


def combine_rounds(
    log_posteriors: NDArray[np.floating],
    log_prior: NDArray[np.floating],
    *,
    rounds: Sequence[int] | None = None,
) -> Floats:
    """The log-posterior after several rounds, (n, m), normalized: Σ_{i ∈ R} log p_bal(a | g_i) + log P(a) + const.

    Exact if the updates of the rounds are independent given a, and each p_bal is the posterior under a uniform prior.
    Rounds of one batch are not independent: the ranking is used all the same, and the probabilities are too sure.

    Args:
        log_posteriors: (r, n, m), one fit on balanced labels a round (`Classifier.log_posterior`).
        log_prior: (m,), finite, of positive numbers that need not add up to 1; added once. Zeros for a uniform one.
        rounds: which of the r rounds the adversary saw, each at most once; None for all. For none, the prior is left.

    Raises:
        InputError: for other shapes, numbers that are not finite, or rounds out of range or twice.

    **Cost**: r·n·m additions.

    **Source**: Li et al. 2024, equation (5). There p is the posterior under the prior itself, and (|R| − 1) log P(a) is
    taken off; with p_bal ∝ p/P, which is what a balanced fit models (section 4.1), the prior is to be added once.

    Examples:
        >>> balanced = np.log(np.array([[[0.8, 0.2]], [[0.5, 0.5]]]))
        >>> np.exp(combine_rounds(balanced, np.log(np.array([0.2, 0.8])))).round(6).tolist()
        [[0.5, 0.5]]
    """
    logs, prior = np.asarray(log_posteriors, dtype=np.float64), np.asarray(log_prior, dtype=np.float64)
    if logs.ndim != 3 or prior.shape != logs.shape[2:]:
        raise InputError(
            f"combine_rounds: expected log-posteriors (r, n, m) and a log-prior (m,), got {logs.shape} and {prior.shape}"
        )
    if not np.isfinite(logs).all() or not np.isfinite(prior).all():
        raise InputError("combine_rounds: expected finite logarithms; leave out a class that has probability 0")
    seen = range(logs.shape[0]) if rounds is None else list(rounds)
    if len(set(seen)) != len(seen) or any(not 0 <= place < logs.shape[0] for place in seen):
        raise InputError(f"rounds: expected places from 0 to {logs.shape[0] - 1}, each once, got {list(seen)}")
    return normalized(logs[list(seen)].sum(axis=0) + prior)

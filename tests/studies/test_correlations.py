"""Correlations against scipy, of one table and of many draws at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from studies.correlations import mean_interval, paired, partial_spearman, pearson, pearsons, spearman, spearmans
from studies.summaries import percentiles


def test_many_draws_are_those_of_scipy_one_by_one() -> None:
    draws = np.random.default_rng(0).normal(size=(5, 12, 2))
    draws[:, 3, 1] = draws[:, 4, 1]
    for mine, ranks, draw in zip(pearsons(draws), spearmans(draws), draws, strict=True):
        assert mine == pytest.approx(stats.pearsonr(*draw.T)[0], abs=1e-12)
        assert ranks == pytest.approx(stats.spearmanr(*draw.T)[0], abs=1e-12)
        assert pearson(draw) == mine
        assert spearman(draw) == ranks


def test_what_does_not_vary_has_no_coefficient() -> None:
    assert pearson(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])) is None
    # The mean of equal numbers may miss them by a bit.
    assert pearson(np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 3.0]] * 7)) is None
    assert spearman(np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 3.0]])) is None
    assert spearman(np.zeros((0, 2))) is None


def test_an_interval_needs_half_of_its_draws() -> None:
    values = np.linspace(0.0, 1.0, 41)
    assert percentiles(values, of=82) == pytest.approx((0.025, 0.975))
    assert percentiles(values, of=83) is None
    assert percentiles([], of=0) is None


def test_coefficients_are_those_of_scipy_and_known_answers() -> None:
    random = np.random.default_rng(0)
    third = random.normal(size=400)
    rows = np.stack([third + 0.1 * random.normal(size=400), third + 0.1 * random.normal(size=400), third], axis=1)
    assert spearman(rows) == pytest.approx(float(stats.spearmanr(rows[:, 0], rows[:, 1])[0]))
    tied = np.round(rows[:30])
    assert spearman(tied) == pytest.approx(float(stats.spearmanr(tied[:, 0], tied[:, 1])[0]))
    # What two columns share is the third alone: once it is taken out, nothing is left.
    plain, partial = spearman(rows), partial_spearman(rows)
    assert plain is not None
    assert plain > 0.95
    assert partial is not None
    assert abs(partial) < 0.15
    # Nothing to take out: the coefficient stays, whatever the third column.
    apart = np.stack([rows[:, 0], rows[:, 1], random.normal(size=400)], axis=1)
    assert partial_spearman(apart) == pytest.approx(spearman(apart), abs=0.02)
    assert spearman(rows[:2]) is None
    assert partial_spearman(np.stack([third, third, third], axis=1)) is None


def test_pairs_leave_out_what_is_not_known_and_intervals_hold_the_value() -> None:
    rows = paired([1.0, None, 3.0, float("inf"), 5.0], [2.0, 1.0, 4.0, 1.0, 6.0])
    assert rows.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    random = np.random.default_rng(1)
    noisy = np.stack([np.arange(40.0), np.arange(40.0) + 10 * random.normal(size=40)], axis=1)
    interval = mean_interval([noisy, noisy[:20]], spearmans, resamples=200, seed=0)
    value = np.mean([spearman(noisy), spearman(noisy[:20])])  # type: ignore[list-item]
    assert interval is not None
    assert interval[0] < value < interval[1]
    assert mean_interval([noisy[:2]], spearmans, resamples=20, seed=0) is None

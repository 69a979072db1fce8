"""The coverage of intervals of true-positive rates, at tiny size and at length."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from gradleak.results import InputError
from studies import RateCoverage, ScoreLaw


def _quiet(line: str) -> None:
    del line


@pytest.mark.parametrize("law", list(ScoreLaw))
def test_the_true_rate_of_a_law_is_that_of_many_draws(law: ScoreLaw) -> None:
    random = np.random.default_rng(0)
    negatives, positives = (np.sort(law.drawn(np.full(200_000, distance), random))[::-1] for distance in (0.0, 1.0))
    for share in (0.01, 0.1):
        threshold = negatives[int(share * len(negatives))]
        above, at = (np.mean(kind(positives, threshold)) for kind in (np.greater, np.equal))
        spare = share - np.mean(negatives > threshold)
        lot = spare / max(np.mean(negatives == threshold), 1e-9)
        assert law.rate(1.0, share) == pytest.approx(above + lot * at, abs=0.006)


def test_the_table_has_a_row_a_cell_and_says_what_is_not_resolvable() -> None:
    study = RateCoverage(laws=(ScoreLaw.NORMAL,), distances=(1.0,), trials=(60, 400), rates=(0.01, 0.1), runs=20)
    result = study.run(say=_quiet)
    assert [finding.n for finding in result.findings] == [0, 0, 0, 20]
    assert result.findings[0].note.startswith("not resolvable")
    last = result.findings[-1]
    assert f"true rate {scipy.stats.norm.sf(scipy.stats.norm.isf(0.1) - 1):.3f}" in last.note
    assert last.ours is not None
    assert last.ours >= 0.8
    (table,) = result.tables
    assert len(table.rows) == 4
    assert "Intervals of 95% hold the rate" in result.markdown()


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"RateCoverage.rates"):
        RateCoverage(rates=(1.5,))
    with pytest.raises(InputError, match=r"RateCoverage.laws"):
        RateCoverage(laws=("none",))  # type: ignore[arg-type]


@pytest.mark.slow
def test_no_cell_is_short_beyond_chance() -> None:
    result = RateCoverage(runs=100, trials=(1000, 3000)).run(say=_quiet)
    for finding in result.findings:
        assert finding.ours is not None
        # Of 36 cells none should be below what 95 % gives with probability 1e-4.
        assert finding.ours * finding.n >= scipy.stats.binom(finding.n, 0.95).ppf(1e-4), finding.quantity

"""The coverage of bounds on epsilon at tiny size."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from gradleak.accounting import exact_gaussian_epsilon
from gradleak.results import InputError
from studies import EpsilonCoverage


def _quiet(line: str) -> None:
    del line


def test_the_table_holds_truth_best_threshold_and_every_bound() -> None:
    study = EpsilonCoverage(distances=(0.0, 1.0), trials=500, runs=12)
    result = study.run(say=_quiet)
    assert set(result.details) == {"0", "1"}
    row = result.details["1"]
    assert row["truth"] == pytest.approx(exact_gaussian_epsilon(1.0, 1.0, 1e-5).value, rel=1e-7)
    assert 0.0 < row["attainable"] < row["truth"]
    assert row["GaussianFitEpsilon"]["median"] > row["SplitThresholdEpsilon"]["median"] > 0.0
    assert result.details["0"]["PlugInEpsilon"]["coverage"] == 0.0
    assert result.details["0"]["CorrectedThresholdEpsilon"]["median"] == 0.0
    (table,) = result.tables
    assert len(table.rows) == 2 * 6
    assert all(len(cells) == len(table.columns) for cells in table.rows)
    finding = result.findings[0]
    assert finding.n == 12
    assert finding.interval is not None
    low, _ = scipy.stats.binomtest(round(12 * (finding.ours or 0.0)), 12).proportion_ci(0.95)
    assert finding.interval[0] == pytest.approx(low, rel=1e-6)
    page = result.markdown()
    assert "On pure noise the naive plug-in says" in page
    assert "PlugInEpsilon is no bound" in page


def test_a_distance_has_its_own_draws_whatever_stands_beside_it() -> None:
    alone = EpsilonCoverage(distances=(1.0,), trials=200, runs=3).run(say=_quiet).details["1"]
    beside = EpsilonCoverage(distances=(0.5, 1.0), trials=200, runs=3).run(say=_quiet).details["1"]
    assert alone == beside
    other = EpsilonCoverage(distances=(1.0,), trials=200, runs=3, seed=1).run(say=_quiet).details["1"]
    assert not np.isclose(other["PlugInEpsilon"]["median"], alone["PlugInEpsilon"]["median"])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"EpsilonCoverage.distances: expected a finite number of at least 0"):
        EpsilonCoverage(distances=(-1.0,))
    with pytest.raises(InputError, match=r"SplitThresholdEpsilon.delta"):
        EpsilonCoverage(delta=0.0)

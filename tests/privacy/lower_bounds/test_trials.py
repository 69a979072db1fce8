from __future__ import annotations

import numpy as np
import pytest

from gradleak.privacy.lower_bounds import TrialScores
from gradleak.results import InputError


def test_trials_are_kept_as_read_only_copies() -> None:
    null = np.arange(3, dtype=np.float32)
    scores = TrialScores(null=null, alternative=[1, 2], name="distance")  # type: ignore[arg-type]
    null[0] = 9.0
    assert scores.null.dtype == scores.alternative.dtype == np.float64
    assert scores.null.tolist() == [0.0, 1.0, 2.0]
    assert scores.counts == (3, 2)
    with pytest.raises(ValueError, match="read-only"):
        scores.alternative[0] = 0.0


@pytest.mark.parametrize(
    ("null", "alternative", "message"),
    [
        ([], [1.0], r"TrialScores.null: expected one number a trial, got the shape \(0,\)"),
        ([1.0], [[1.0]], r"TrialScores.alternative: expected one number a trial, got the shape \(1, 1\)"),
        ([1.0, np.nan, np.inf], [1.0], "TrialScores.null: expected finite numbers, got 2 NaN or infinite of 3"),
    ],
)
def test_what_is_no_trial_is_refused(null: list[float], alternative: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrialScores(null=np.array(null), alternative=np.array(alternative))

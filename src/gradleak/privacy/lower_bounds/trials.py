"""Trials of an audit: one number a trial, under either hypothesis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradleak.results import InputError

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialScores:
    """One number a trial: the values of a test statistic under both hypotheses.

    **Assumptions**: of the bounds that read them: trials are independent, and the two samples are.

    Attributes:
        null: shape (n0,): values under H0, finite; kept as a read-only float64 array.
        alternative: shape (n1,): values under H1, likewise.
        name: of the statistic, in lower snake case.

    Raises:
        InputError: for a sample that is empty, not one-dimensional or not finite.
    """

    null: Values
    alternative: Values
    name: str = "statistic"

    def __post_init__(self) -> None:
        """Keep read-only float64 copies."""
        for field in ("null", "alternative"):
            values = np.array(getattr(self, field), dtype=np.float64)
            if values.ndim != 1 or not values.size:
                raise InputError(f"TrialScores.{field}: expected one number a trial, got the shape {values.shape}")
            if not np.isfinite(values).all():
                wrong = int((~np.isfinite(values)).sum())
                raise InputError(
                    f"TrialScores.{field}: expected finite numbers, got {wrong} NaN or infinite of {values.size}"
                )
            values.setflags(write=False)
            object.__setattr__(self, field, values)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of trials of H0 and of H1."""
        return len(self.null), len(self.alternative)

from __future__ import annotations

import pytest
from tests.oracles import Oracle
from tests.risk.cases import diagonal

from gradleak.results import Evidence, Leakier, Outcome
from gradleak.risk import GradientNorm


def test_reference_value(mlp: Oracle) -> None:
    score = GradientNorm()(mlp.exposure)
    assert score.value == pytest.approx(mlp.values["gradient_norm"], rel=1e-12)
    assert (score.unit, score.evidence, score.leakier) == ("gradient", Evidence.EXACT, Leakier.HIGHER)


def test_a_zero_release_has_no_value() -> None:
    score = GradientNorm()(diagonal([0.0, 0.0], [1.0, 2.0]))
    assert (score.value, score.outcome) == (None, Outcome.NO_SIGNAL)

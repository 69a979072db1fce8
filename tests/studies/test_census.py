"""The census of the studies of inference games, standardized as papers do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import zscore

from gradleak.data import Encoding
from studies.census import census


def test_standardized_codes_are_those_of_scipy_and_other_games() -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    plain = census(encoding=Encoding.CODES)
    found = census(encoding=Encoding.CODES, standardized=True)
    expected = zscore(plain.inputs.double().numpy(), axis=0, ddof=1)
    np.testing.assert_allclose(found.inputs.numpy(), expected, atol=1e-5)
    assert found.inputs.dtype == plain.inputs.dtype
    # No entry is 0, so that no gradient of a first layer is.
    assert (plain.inputs == 0).any()
    assert not (found.inputs == 0).any()
    assert (plain.name, found.name) == ("adult: gender, codes", "adult: gender, codes, standardized")
    assert (found.targets == plain.targets).all()
    assert (found.sensitive == plain.sensitive).all()

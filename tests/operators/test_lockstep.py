from __future__ import annotations

import pytest
import torch
from tests.operators.models import Fused, Sequence, exposure_of
from torch import nn

from gradleak.core import Exposure
from gradleak.operators import GradientJacobian, example_matrices, example_operators
from gradleak.results import InputError


def _fused() -> Exposure:
    return exposure_of(Sequence(Fused(), 3), (5, 3), examples=3)


def _encoder() -> Exposure:
    layer = nn.TransformerEncoderLayer(4, 2, 6, activation="gelu", batch_first=True)
    return exposure_of(Sequence(layer, 4), (3, 4), examples=3)


@pytest.mark.parametrize("case", [_fused, _encoder])
def test_attention_runs_in_lockstep_with_the_values_of_single_examples(case: object) -> None:
    exposure = case()  # type: ignore[operator]
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    matrices = list(example_matrices(exposure))
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()) == before
    for index, matrix in enumerate(matrices):
        alone = GradientJacobian(Exposure(exposure.objective, exposure.batch.example(index), exposure.release))
        assert matrix is not None
        torch.testing.assert_close(matrix, alone.dense(), rtol=1e-9, atol=1e-12)


def test_without_lockstep_every_operator_computes_its_own() -> None:
    exposure = _fused()
    assert list(example_matrices(exposure, lockstep=False)) == [None] * 3
    together, alone = (list(example_operators(exposure, lockstep=lockstep)) for lockstep in (True, False))
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.dense(), other.dense(), rtol=1e-9, atol=1e-12)


def test_an_example_that_is_not_finite_is_refused() -> None:
    exposure = _fused()
    inputs = exposure.batch.inputs.clone()
    inputs[1] = float("nan")
    broken = Exposure(exposure.objective, exposure.batch.with_inputs(inputs), exposure.release)
    with pytest.raises(InputError, match="finite released mean"):
        list(example_operators(broken))

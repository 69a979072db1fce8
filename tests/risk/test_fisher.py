from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.oracles import Oracle
from tests.risk.cases import diagonal, signed

from gradleak.core import Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Leakier, Outcome
from gradleak.risk import FisherInformationLoss


def test_reference_values(reference: tuple[Oracle, GradientJacobian]) -> None:
    oracle, operator = reference
    score = FisherInformationLoss(std=0.02)(oracle.exposure, operator=operator)
    assert score.value == pytest.approx(np.sqrt(oracle.values["gram_eigenvalue_max"]) / 0.02, rel=1e-6)
    assert (score.evidence, score.leakier, score.unit) == (Evidence.EXACT, Leakier.HIGHER, "1/input")


def test_is_the_spectral_norm_with_and_without_a_spectrum(mlp: Oracle) -> None:
    want = np.linalg.norm(GradientJacobian(mlp.exposure).dense().numpy(), 2) / 0.5
    for limit in (0, 4096):
        score = FisherInformationLoss(std=0.5, dense_limit=limit)(mlp.exposure)
        assert score.value == pytest.approx(want, rel=1e-8)


def test_a_known_answer() -> None:
    # A = diag(4·3·2/2, 4·1·1/2) = diag(12, 2)
    assert FisherInformationLoss(std=2.0)(diagonal([3.0, 1.0], [2.0, 1.0])).value == pytest.approx(6.0)


def test_noise_that_is_not_gaussian_and_zero_maps(mlp: Oracle) -> None:
    score = FisherInformationLoss(std=1.0)(signed(mlp.exposure))
    assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    noisy_then_clipped = replace(mlp.exposure, release=Release(FedSGD(), [GaussianNoise(std=0.1), Clip(1.0)]))
    assert FisherInformationLoss(std=1.0)(noisy_then_clipped).outcome is Outcome.UNSUPPORTED
    zero = FisherInformationLoss(std=1.0)(diagonal([1.0], [0.0]))
    assert (zero.value, zero.outcome) == (None, Outcome.NOT_INFORMATIVE)


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_std(std: float) -> None:
    with pytest.raises(InputError, match="std: expected a finite positive number"):
        FisherInformationLoss(std=std)

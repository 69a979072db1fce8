from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.defenses.setting import batch, generator, objective
from torch import Tensor

from gradleak.core import Exposure, NotGaussian, Release
from gradleak.defenses import Clip, GaussianNoise, Sign, SpectralNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, UnsupportedError
from gradleak.risk import InversionInfluence


def singular(release: Release, examples: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Left singular vectors and values of A, by numpy."""
    a = GradientJacobian(Exposure(objective(), batch(examples), release)).dense().numpy()
    left, values, _ = np.linalg.svd(a, full_matrices=False)
    return left, values


def perturbation(defense: SpectralNoise, before: Release, seed: int = 7, examples: int = 1) -> Tensor:
    known, data = objective(), batch(examples)
    release = Release(before.protocol, [*before.defenses, defense])
    mean = known.flatten(before.mean(known, known.params, data))
    return known.flatten(release(known, data, generator(seed)).tensors) - mean


@pytest.mark.parametrize(
    "before",
    [Release(FedSGD()), Release(FedSGD(), [Clip(0.1)]), Release(FedAvg(learning_rate=0.1, epochs=2))],
    ids=repr,
)
def test_one_direction_is_the_last_left_singular_vector(before: Release) -> None:
    delta = perturbation(SpectralNoise(norm=0.3), before).numpy()
    left, values = singular(before)
    assert np.linalg.norm(delta) == pytest.approx(0.3, rel=1e-9)
    rank = int((values > 1e-9 * values[0]).sum())
    assert abs(left[:, rank - 1] @ delta) == pytest.approx(0.3, rel=1e-6)


def test_several_directions_span_the_least_visible_ones_evenly() -> None:
    before, defense = Release(FedSGD()), SpectralNoise(norm=0.3, directions=3)
    left, _ = singular(before)
    weights = np.array([left[:, -3:].T @ perturbation(defense, before, seed).numpy() for seed in range(100)])
    assert np.allclose(np.linalg.norm(weights, axis=1), 0.3, rtol=1e-6)
    covariance = weights.T @ weights / len(weights)
    assert np.allclose(covariance, np.eye(3) * 0.03, atol=5 * 0.03 * np.sqrt(2 / 100))


def test_i2f_predicts_its_error_and_that_of_isotropic_noise_of_the_same_norm() -> None:
    known, data, before = objective(), batch(1), Release(FedSGD())
    _, values = singular(before)
    exposure = Exposure(known, data, before)
    delta = perturbation(SpectralNoise(norm=0.3), before)
    assert InversionInfluence()(exposure, delta=delta).value == pytest.approx(0.3 / values[-1], rel=1e-6)
    size, random = known.size, generator()
    squares = []
    for _ in range(150):
        noise = torch.randn(size, generator=random, dtype=torch.float64)
        value = InversionInfluence()(exposure, delta=0.3 * noise / noise.norm()).value
        assert value is not None
        squares.append(value**2)
    assert np.mean(squares) == pytest.approx(0.09 / size * (1 / values**2).sum(), rel=0.35)
    assert (0.3 / values[-1]) ** 2 > 5 * np.mean(squares)


def test_the_drawn_direction_is_all_that_changes() -> None:
    before = Release(FedSGD())
    first, same, other = (perturbation(SpectralNoise(norm=0.3, directions=2), before, seed) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    release = Release(FedSGD(), [SpectralNoise(norm=0.3)])
    law = release.noise(objective())
    assert isinstance(law, NotGaussian)
    assert "in 1 direction that depend" in law.reason
    assert Release(FedSGD(), [SpectralNoise(norm=0.0)]).noise(objective()) is None
    law = Release(FedSGD(), [GaussianNoise(std=0.1), SpectralNoise(norm=0.3)]).noise(objective())
    assert isinstance(law, NotGaussian)


def test_later_defenses_act_on_the_perturbed_update() -> None:
    known, data = objective(), batch(1)
    release = Release(FedSGD(), [SpectralNoise(norm=5.0), Clip(0.5)])
    found = known.flatten(release(known, data, generator()).tensors)
    spectral = known.flatten(Release(FedSGD(), [SpectralNoise(norm=5.0)])(known, data, generator()).tensors)
    torch.testing.assert_close(found, 0.5 * spectral / spectral.norm())
    assert release.after_gradient is None


def test_it_works_for_a_float32_model() -> None:
    known, data = objective().to(torch.float32), batch(1)
    update = Release(FedSGD(), [SpectralNoise(norm=0.3)])(known, data, generator())
    plain = Release(FedSGD())(known, data, generator())
    residual = known.flatten(update.tensors) - known.flatten(plain.tensors)
    assert residual.dtype == torch.float32
    assert float(residual.norm()) == pytest.approx(0.3, rel=1e-4)


def test_faults_are_named() -> None:
    known, data = objective(), batch(1)
    with pytest.raises(UnsupportedError, match=r"the derivative of the release is zero.*put it before .* Sign"):
        Release(FedSGD(), [Sign(), SpectralNoise(norm=0.3)])(known, data, generator())
    with pytest.raises(UnsupportedError, match=r"d = 6 is above the limit of 5"):
        Release(FedSGD(), [SpectralNoise(norm=0.3, dense_limit=5)])(known, data, generator())
    with pytest.raises(InputError, match=r"norm: expected a finite number of at least 0, got -1"):
        SpectralNoise(norm=-1)
    with pytest.raises(InputError, match=r"directions: expected a whole number of at least 1, got 0"):
        SpectralNoise(norm=1, directions=0)

from __future__ import annotations

import pytest
import scipy.stats
import torch
from tests.defenses.setting import batch, generator, objective

from gradleak.core import NotGaussian, Release
from gradleak.defenses import GaussianNoise, LaplaceNoise
from gradleak.protocols import FedSGD
from gradleak.results import InputError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_follows_the_laplace_law(dtype: torch.dtype) -> None:
    zero = {"w": torch.zeros(20_000, dtype=dtype)}
    drawn = LaplaceNoise(scale=0.3).draw(zero, generator())["w"]
    assert drawn.dtype == dtype
    assert scipy.stats.kstest(drawn.double().numpy(), "laplace", args=(0, 0.3)).pvalue > 1e-6
    assert float(LaplaceNoise(scale=0.3).variance(zero)["w"][0]) == pytest.approx(scipy.stats.laplace.var(scale=0.3))


def test_it_is_random_but_not_gaussian_whatever_stands_before() -> None:
    for defenses in ([LaplaceNoise(scale=0.3)], [GaussianNoise(std=0.1), LaplaceNoise(scale=0.3)]):
        law = Release(FedSGD(), defenses).noise(objective())
        assert isinstance(law, NotGaussian)
        assert "Laplace noise of scale 0.3" in law.reason
    quiet = Release(FedSGD(), [GaussianNoise(std=0.1), LaplaceNoise(scale=0.0)])
    assert quiet.noise(objective()) == Release(FedSGD(), [GaussianNoise(std=0.1)]).noise(objective())


def test_a_release_is_the_gradient_plus_noise() -> None:
    known, release = objective(), Release(FedSGD(), [LaplaceNoise(scale=0.3)])
    update = release(known, batch(), generator())
    plain = Release(FedSGD())(known, batch(), generator())
    residual = known.flatten(update.tensors) - known.flatten(plain.tensors)
    assert scipy.stats.kstest(residual.numpy(), "laplace", args=(0, 0.3)).pvalue > 1e-6


@pytest.mark.parametrize("scale", [-0.1, float("nan"), "0.1"])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(InputError, match=r"LaplaceNoise.scale: expected a finite number of at least 0"):
        LaplaceNoise(scale=scale)

from __future__ import annotations

import pytest
import scipy.stats
import torch
from tests.defenses.setting import batch, generator, objective

from gradleak.core import DiagonalGaussian, Exposure, Release
from gradleak.defenses import GaussianNoise, LayerNoise
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import InputError


def test_every_layer_carries_its_own_noise() -> None:
    known, release = objective(), Release(FedSGD(), [LayerNoise(std={"0": 0.2}, default=0.05)])
    law = release.noise(known)
    assert isinstance(law, DiagonalGaussian)
    assert law.std == {"0.weight": 0.2, "0.bias": 0.2, "2.weight": 0.05, "2.bias": 0.05}
    plain = Release(FedSGD())(known, batch(), generator()).tensors
    random = generator()
    updates = [release(known, batch(), random).tensors for _ in range(200)]
    for name, std in law.std.items():
        residual = torch.stack([update[name] - plain[name] for update in updates]) / std
        low, high = scipy.stats.chi2.ppf([1e-6, 1 - 1e-6], residual.numel())
        assert low < float(residual.square().sum()) < high


def test_layers_without_noise_are_released_as_they_are() -> None:
    known = objective()
    plain = Release(FedSGD())(known, batch(), generator()).tensors
    update = Release(FedSGD(), [LayerNoise(std={"2": 0.1})])(known, batch(), generator()).tensors
    assert torch.equal(update["0.weight"], plain["0.weight"])
    assert not bool((update["2.weight"] == plain["2.weight"]).any())
    assert Release(FedSGD(), [LayerNoise(std={})]).noise(known) is None


def test_the_same_noise_everywhere_is_gaussian_noise() -> None:
    known = objective()
    one = Release(FedSGD(), [LayerNoise(std={}, default=0.1)])
    other = Release(FedSGD(), [GaussianNoise(std=0.1)])
    assert one.noise(known) == other.noise(known)
    drawn = [release(known, batch(), generator()).tensors for release in (one, other)]
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in known.params)
    law = Release(FedSGD(), [GaussianNoise(std=0.3), LayerNoise(std={"0": 0.4})]).noise(known)
    assert isinstance(law, DiagonalGaussian)
    assert law.std["0.weight"] == pytest.approx(0.5)
    assert law.std["2.weight"] == 0.3


def test_the_derivative_of_the_release_stays() -> None:
    known, data = objective(), batch(1)
    with_noise = GradientJacobian(Exposure(known, data, Release(FedSGD(), [LayerNoise(std={"0": 1.0})])))
    torch.testing.assert_close(
        with_noise.dense(), GradientJacobian(Exposure(known, data, Release(FedSGD()))).dense(), rtol=1e-10, atol=1e-14
    )


def test_faults_are_named() -> None:
    with pytest.raises(InputError, match=r"names of layers, got 'first'; the update has '0', '2'"):
        Release(FedSGD(), [LayerNoise(std={"first": 0.1})]).noise(objective())
    with pytest.raises(InputError, match=r"LayerNoise.std\['0'\]: expected a finite number of at least 0, got -1.0"):
        LayerNoise(std={"0": -1.0})
    with pytest.raises(InputError, match=r"LayerNoise.default: expected a finite number of at least 0, got nan"):
        LayerNoise(std={}, default=float("nan"))
    with pytest.raises(InputError, match=r"expected finite numbers of at least 0 by name, got 0.1; write \{'0': 0.1\}"):
        LayerNoise(std=0.1)  # type: ignore[arg-type]


def test_it_keeps_its_own_numbers() -> None:
    given = {"0": 0.1}
    defense = LayerNoise(std=given)
    given["0"] = 5.0
    assert defense.std == {"0": 0.1}
    assert hash(defense) == hash(LayerNoise(std={"0": 0.1}))

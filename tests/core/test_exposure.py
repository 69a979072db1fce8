from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradleak.core import Batch, DiagonalGaussian, Domain, Exposure, NotGaussian, Objective, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.protocols import FedSGD
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

DOMAIN = Domain(shape=(2, 3), mean=(0.5, 0.1), std=(0.2, 0.4), high=2.0)


def exposure(*defenses: Any, domain: Domain | None = DOMAIN) -> Exposure:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs = torch.rand(2, 2, 3, generator=torch.Generator().manual_seed(2))
    batch = Batch(inputs, torch.tensor([0, 2]), domain)
    return Exposure(Objective.from_module(model), batch, Release(FedSGD(), defenses))


def test_the_mean_is_the_flat_release_of_flat_inputs() -> None:
    seen = exposure(Clip(0.1)).to(torch.float64)
    mean = seen.release.mean(seen.objective, seen.objective.params, seen.batch)
    assert torch.equal(seen.released_mean(), seen.objective.flatten(mean))
    assert seen.released_mean().dtype == torch.float64
    assert seen.inputs.shape == (12,)
    jacobian = torch.func.jacrev(seen.mean)(seen.inputs)
    assert jacobian.shape == (seen.objective.size, 12)
    torch.testing.assert_close(torch.func.jacfwd(seen.mean)(seen.inputs), jacobian)


def test_the_pixel_scale_covers_every_entry_of_the_batch() -> None:
    seen = exposure()
    expected = torch.tensor([0.1] * 3 + [0.2] * 3).repeat(2)
    torch.testing.assert_close(seen.pixel_scale(), expected)
    step = torch.rand(12)
    pixels = seen.domain.to_pixels((seen.inputs + step).reshape(2, 2, 3)) - seen.domain.to_pixels(seen.batch.inputs)
    torch.testing.assert_close(pixels.reshape(-1), seen.pixel_scale() * step, rtol=1e-4, atol=1e-6)


def test_the_noise_is_that_of_the_release() -> None:
    assert exposure().noise is None
    assert isinstance(exposure(GaussianNoise(std=0.1)).noise, DiagonalGaussian)
    assert isinstance(exposure(GaussianNoise(std=0.1), Clip(1.0)).noise, NotGaussian)


def test_a_delta_may_be_flat_or_named() -> None:
    seen = exposure().to(torch.float64)
    flat = torch.arange(float(seen.objective.size))
    named = dict(reversed(seen.objective.unflatten(flat).items()))
    for delta in (flat, named):
        assert torch.equal(seen.flat_delta(delta), flat.double())
    with pytest.raises(InputError, match=rf"expected {seen.objective.size} entries \(the shared tensors\), got 3"):
        seen.flat_delta(torch.zeros(3))


@pytest.mark.parametrize("fault", ["missing", "extra", "transposed"])
def test_a_named_delta_must_have_the_shapes_of_the_parameters(fault: str) -> None:
    seen = exposure()
    delta = seen.objective.unflatten(torch.zeros(seen.objective.size))
    if fault == "missing":
        del delta["1.bias"]
        message = r"1.bias: expected \(4,\), got None"
    elif fault == "extra":
        delta["other"] = torch.zeros(2)
        message = r"other: expected None, got \(2,\)"
    else:
        delta["1.weight"] = delta["1.weight"].T
        message = r"1.weight: expected \(4, 6\), got \(6, 4\)"
    with pytest.raises(InputError, match=message):
        seen.flat_delta(delta)


def test_without_a_stated_domain_there_are_no_pixels() -> None:
    for ask in (lambda: exposure(domain=None).domain, exposure(domain=None).pixel_scale):
        with pytest.raises(InputError, match=r"batch.domain: expected a declared domain"):
            ask()


def test_arguments_in_another_order_are_refused() -> None:
    seen = exposure()
    with pytest.raises(InputError, match=r"Exposure.objective: expected a gradleak.Objective, got Batch; the order is"):
        Exposure(seen.batch, seen.objective, seen.release)  # type: ignore[arg-type]

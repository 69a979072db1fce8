from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf

from gradleak.core import Batch, Domain
from gradleak.results import InputError
from gradleak.risk import GaussianPrior
from gradleak.risk.posterior import posterior_factor


def _public() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn((4, 4), generator=generator, dtype=torch.float64)
    return 0.3 + (torch.randn((50, 4), generator=generator, dtype=torch.float64) @ mixing).reshape(50, 1, 2, 2)


def test_is_mean_and_shrunk_covariance() -> None:
    public = _public()
    prior = GaussianPrior.from_public(public)
    covariance, shrinkage = ledoit_wolf(public.flatten(1).numpy())
    assert torch.allclose(prior.covariance, torch.from_numpy(covariance))
    assert torch.allclose(prior.mean, public.flatten(1).mean(0))
    assert f"{shrinkage:.3g}" in prior.origin
    sample = np.cov(public.flatten(1).numpy(), rowvar=False, bias=True)
    target = np.trace(sample) / 4 * np.eye(4)
    assert np.allclose(covariance, (1 - shrinkage) * sample + shrinkage * target)


def test_draws_have_its_law_and_the_shape_of_an_example() -> None:
    prior = GaussianPrior.from_public(_public())
    drawn = prior.draw(20000, torch.Generator().manual_seed(1))
    assert drawn.shape == (20000, 1, 2, 2)
    flat = drawn.flatten(1)
    assert torch.allclose(flat.mean(0), prior.mean, atol=0.08)
    assert torch.allclose(flat.T.cov(), prior.covariance, atol=0.25)
    assert torch.equal(prior.draw(3, torch.Generator().manual_seed(2)), prior.draw(3, torch.Generator().manual_seed(2)))


def test_takes_the_domain_of_a_batch() -> None:
    domain = Domain.image(channels=1, height=2, width=2, std=(0.5,))
    prior = GaussianPrior.from_public(Batch(_public(), torch.zeros(50, dtype=torch.long), domain))
    assert prior.pixel_scale().tolist() == [0.5] * 4
    assert GaussianPrior.from_public(_public()).pixel_scale().tolist() == [1.0] * 4


def test_posterior_factor_of_an_ill_conditioned_prior() -> None:
    root = torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))
    factor = posterior_factor(torch.eye(2, dtype=torch.float64), root)
    assert torch.allclose((factor @ factor.T).diagonal(), torch.tensor([0.5, 1e-18], dtype=torch.float64), rtol=1e-9)


def test_refusals() -> None:
    with pytest.raises(InputError, match="expected at least two examples"):
        GaussianPrior.from_public(_public()[:1])
    with pytest.raises(InputError, match="differ from each other"):
        GaussianPrior.from_public(torch.ones(3, 4))
    with pytest.raises(InputError, match="positive definite"):
        GaussianPrior(mean=torch.zeros(2), covariance=torch.zeros(2, 2))
    with pytest.raises(InputError, match=r"a mean \(e,\) and a covariance \(e, e\)"):
        GaussianPrior(mean=torch.zeros(2), covariance=torch.eye(3))
    with pytest.raises(InputError, match="symmetric covariance"):
        GaussianPrior(mean=torch.zeros(2), covariance=torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    domain = Domain.image(channels=1, height=2, width=2)
    with pytest.raises(InputError, match="the 4 entries of the domain, got 2"):
        GaussianPrior(mean=torch.zeros(2), covariance=torch.eye(2), domain=domain)
    with pytest.raises(InputError, match="a shape of 2 entries"):
        GaussianPrior(mean=torch.zeros(2), covariance=torch.eye(2), shape=(3,))
    for mean, covariance, what in (
        (None, torch.eye(2), "mean: expected a tensor of floating point numbers, got NoneType"),
        (torch.zeros(2), [[1.0]], "covariance: expected a tensor of floating point numbers, got list"),
        (torch.zeros(2, dtype=torch.complex64), torch.eye(2), r"mean: expected .*, got torch\.complex64"),
    ):
        with pytest.raises(InputError, match=what):
            GaussianPrior(mean=mean, covariance=covariance)  # type: ignore[arg-type]
    for std in (True, "1", None, 0.0, math.nan):
        with pytest.raises(InputError, match="std: expected a finite positive number"):
            GaussianPrior.isotropic(domain, std=std)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mean: expected a finite number, got 'x'"):
        GaussianPrior.isotropic(domain, std=0.1, mean="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="domain: expected a Domain, got tuple"):
        GaussianPrior.isotropic((4,), std=0.1)  # type: ignore[arg-type]

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import color, diagonal, signed

from gradleak.core import Batch, Domain, Exposure, Objective, Release
from gradleak.linalg import DenseSolver, Hutchinson, HutchPlusPlus, LanczosQuadrature, TraceSolver
from gradleak.models import initialize_uniform, lenet_dlg
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Leakier, Outcome
from gradleak.risk import GaussianPrior, LinearizedPosteriorError


def test_reference_values(reference: tuple[Oracle, GradientJacobian]) -> None:
    oracle, operator = reference
    score = LinearizedPosteriorError(noise_std=0.01, prior_std=0.3)(oracle.exposure, operator=operator)
    want = oracle.values["bayesian_cramer_rao_trace_sigma_0.01_prior_std_0.3"]
    assert score.value == pytest.approx(want, rel=1e-6)
    assert (score.evidence, score.leakier) == (Evidence.ESTIMATE, Leakier.LOWER)
    assert "model-input units (no domain)" in score.details["prior"]


def test_prior_std_is_in_pixels_where_the_domain_is_known() -> None:
    exposure = color(torch.Generator().manual_seed(0), low=0.0, high=2.0)
    matrix = GradientJacobian(exposure).dense().numpy()
    scale = np.tile(np.repeat([0.1, 0.35], 9), 2)
    posterior = np.linalg.inv(matrix.T @ matrix / 0.05**2 + np.diag((scale / 0.3) ** 2))
    score = LinearizedPosteriorError(noise_std=0.05, prior_std=0.3)(exposure)
    assert score.value == pytest.approx(np.trace(posterior), rel=1e-10)
    assert score.details["prior_error"] == pytest.approx(np.sum((0.3 / scale) ** 2))
    pixels = LinearizedPosteriorError(noise_std=0.05, prior_std=0.3, unit="pixel_rmse")(exposure)
    assert pixels.value == pytest.approx(np.sqrt(np.mean(scale**2 * np.diag(posterior))), rel=1e-10)
    assert pixels.details["prior_error"] == pytest.approx(0.3)


def test_a_known_answer() -> None:
    # A = diag(12, 2); 1/(144/4 + 1) + 1/(4/4 + 1)
    score = LinearizedPosteriorError(noise_std=2.0, prior_std=1.0)(diagonal([3.0, 1.0], [2.0, 1.0]))
    assert score.value == pytest.approx(1 / 37 + 1 / 2)


@pytest.mark.parametrize("noise_std", [1e-6, 0.1, 1e3])
def test_a_prior_from_public_examples(noise_std: float) -> None:
    exposure = color(torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn((18, 18), generator=generator, dtype=torch.float64)
    public = (torch.randn((200, 18), generator=generator, dtype=torch.float64) @ mixing).reshape(200, 2, 3, 3)
    prior = GaussianPrior.from_public(public)
    precision = np.linalg.inv(np.kron(np.eye(2), prior.covariance.numpy()))
    matrix = GradientJacobian(exposure).dense().numpy()
    want = np.trace(np.linalg.inv(matrix.T @ matrix / noise_std**2 + precision))
    score = LinearizedPosteriorError(noise_std=noise_std, prior=prior)(exposure)
    assert score.value == pytest.approx(want, rel=1e-6)
    assert "200 public examples, Ledoit-Wolf shrinkage" in score.details["prior"]


def test_an_isotropic_prior_object_is_prior_std(mlp: Oracle) -> None:
    prior = GaussianPrior(mean=torch.zeros(12), covariance=0.09 * torch.eye(12))
    score = LinearizedPosteriorError(noise_std=0.01, prior=prior)(mlp.exposure)
    want = mlp.values["bayesian_cramer_rao_trace_sigma_0.01_prior_std_0.3"]
    assert score.value == pytest.approx(want, rel=1e-6)
    assert score.unit == "input^2"


def test_outcomes_without_a_value(mlp: Oracle) -> None:
    measure = LinearizedPosteriorError(noise_std=1.0, prior_std=1.0)
    assert measure(signed(mlp.exposure)).outcome is Outcome.UNSUPPORTED
    zero = measure(diagonal([1.0], [0.0]))
    assert (zero.value, zero.outcome) == (None, Outcome.NOT_INFORMATIVE)
    assert zero.details["prior_error"] == pytest.approx(1.0)
    zero = replace(measure, dense_limit=0)(diagonal([1.0], [0.0]))
    assert (zero.value, zero.outcome) == (None, Outcome.NOT_INFORMATIVE)


def _prior(generator: torch.Generator, size: int) -> GaussianPrior:
    mixing = torch.randn((size, size), generator=generator, dtype=torch.float64) / size**0.5
    return GaussianPrior(mean=torch.zeros(size), covariance=0.01 * torch.eye(size) + 0.1 * mixing @ mixing.T)


@pytest.mark.parametrize("solver", [LanczosQuadrature(), HutchPlusPlus(), Hutchinson()])
@pytest.mark.parametrize("unit", ["input", "pixel_rmse"])
@pytest.mark.parametrize("isotropic", [True, False])
def test_beyond_the_dense_limit_the_trace_is_sampled(solver: TraceSolver, unit: str, isotropic: bool) -> None:
    exposure = color(torch.Generator().manual_seed(0))  # two examples whose channels weigh differently
    prior = {"prior_std": 0.3} if isotropic else {"prior": _prior(torch.Generator().manual_seed(1), 18)}
    exact = LinearizedPosteriorError(noise_std=0.02, unit=unit, **prior)
    score = replace(exact, dense_limit=10, solver=solver)(exposure)
    want = exact(exposure)
    assert (score.outcome, score.evidence) == (Outcome.CONVERGED, Evidence.ESTIMATE)
    assert score.value == pytest.approx(want.value, rel=0.1)
    assert score.interval is not None
    assert score.interval[0] < want.value < score.interval[1]
    assert score.details["prior_error"] == pytest.approx(want.details["prior_error"], rel=1e-12)
    assert score.details["solver"] == solver.label
    assert score.details["matvecs"] > 0


def test_intervals_of_the_sampled_trace_cover() -> None:
    exposure = color(torch.Generator().manual_seed(0))
    exact = LinearizedPosteriorError(noise_std=0.05, prior_std=0.3)
    operator = GradientJacobian(exposure)
    operator.dense()
    want = exact(exposure, operator=operator).value
    assert want is not None
    covered = 0
    for seed in range(100):
        score = replace(exact, dense_limit=0, solver=LanczosQuadrature(samples=8, seed=seed))(
            exposure, operator=operator
        )
        assert score.interval is not None
        covered += score.interval[0] <= want <= score.interval[1]
    assert covered / 100 > 0.95 - 3 * (0.95 * 0.05 / 100) ** 0.5


def test_a_trace_that_was_not_resolved_says_so_and_keeps_within_the_prior() -> None:
    exposure = color(torch.Generator().manual_seed(0))
    exact = LinearizedPosteriorError(noise_std=1e-4, prior_std=0.3)
    score = replace(exact, dense_limit=0, solver=LanczosQuadrature(steps=8))(exposure)
    want = exact(exposure).value
    assert (score.outcome, score.evidence) == (Outcome.BUDGET_SPENT, Evidence.ESTIMATE)
    assert "rather too small" in score.note
    assert score.interval is not None
    assert score.interval[0] < want < score.interval[1]
    assert score.interval[1] == pytest.approx(score.details["prior_error"])


@pytest.mark.slow
@pytest.mark.parametrize("noise_std", [0.03, 0.1])
def test_on_a_larger_network(noise_std: float) -> None:
    generator = torch.Generator().manual_seed(0)
    model = initialize_uniform(lenet_dlg(classes=10), low=-0.5, high=0.5, generator=generator)
    domain = Domain.image(channels=3, height=32, width=32)
    batch = Batch(torch.rand((1, 3, 32, 32), generator=generator), torch.tensor([3]), domain)
    exposure = Exposure(Objective.from_module(model), batch, Release(FedSGD()))
    exact = LinearizedPosteriorError(noise_std=noise_std, prior_std=0.3)
    score = replace(exact, dense_limit=1000)(exposure)
    want = exact(exposure).value
    assert score.value == pytest.approx(want, rel=0.02)
    assert score.interval[0] < want < score.interval[1]


def test_rank_deficient_keeps_the_prior_along_the_null_space() -> None:
    score = LinearizedPosteriorError(noise_std=1e-9, prior_std=0.5)(diagonal([1.0, 0.0, 1.0], [2.0, 5.0, 1.0]))
    assert score.value == pytest.approx(0.25, rel=1e-9)
    assert score.outcome is Outcome.CONVERGED


def test_bad_fields(mlp: Oracle) -> None:
    prior = GaussianPrior(mean=torch.zeros(3), covariance=torch.eye(3))
    with pytest.raises(InputError, match="noise_std: expected a finite positive number"):
        LinearizedPosteriorError(noise_std=0.0, prior_std=1.0)
    with pytest.raises(InputError, match="prior_std: expected a finite positive number"):
        LinearizedPosteriorError(noise_std=1.0, prior_std=float("inf"))
    for priors in ({}, {"prior": prior, "prior_std": 1.0}):
        with pytest.raises(InputError, match="expected one of prior_std and prior"):
            LinearizedPosteriorError(noise_std=1.0, **priors)
    with pytest.raises(InputError, match=r"solver: expected .*Solver.*, got DenseSolver; \w+, for instance"):
        LinearizedPosteriorError(noise_std=1.0, prior_std=1.0, solver=DenseSolver())
    with pytest.raises(InputError, match="the 12 entries of an example, got 3"):
        LinearizedPosteriorError(noise_std=1.0, prior=prior)(mlp.exposure)


def test_no_domain_and_a_domain_of_pixels_agree(mlp: Oracle) -> None:
    stated = replace(mlp.exposure.batch, domain=Domain(shape=(12,), kind="tabular"))
    measure = LinearizedPosteriorError(noise_std=0.01, prior_std=0.3)
    with_domain = measure(replace(mlp.exposure, batch=stated))
    assert with_domain.value == pytest.approx(measure(mlp.exposure).value, rel=1e-9)

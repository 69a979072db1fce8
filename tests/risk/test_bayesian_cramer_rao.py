from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.oracles import Oracle
from tests.risk.cases import Scale, Sign
from torch import Tensor, nn

from gradleak.core import Batch, DiagonalGaussian, Domain, Exposure, Objective, Release
from gradleak.defenses import Clip, GaussianNoise
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.risk import BayesianCramerRao, GaussianPrior, LinearizedPosteriorError
from gradleak.risk.bayesian_cramer_rao import upper_limit

PLAIN = Release(FedSGD())


def _prior(std: float = 1.0, size: int = 2, mean: float = 0.5) -> GaussianPrior:
    return GaussianPrior(
        mean=torch.full((size,), mean, dtype=torch.float64), covariance=std**2 * torch.eye(size, dtype=torch.float64)
    )


def _linear(size: int) -> Objective:
    """The gradient of Σ wᵢxᵢ in w is x itself: A = I at every x."""
    return Objective.from_module(Scale(torch.ones(size)), loss=lambda outputs, targets: outputs.sum())


def _mlp(activation: nn.Module, inputs: int = 2) -> Objective:
    first, last = nn.utils.skip_init(nn.Linear, inputs, 4), nn.utils.skip_init(nn.Linear, 4, 2)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(first, activation, last).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.7, generator=generator)
    return Objective.from_module(model)


def test_is_the_mean_squared_error_of_the_best_estimator_of_a_linear_gaussian_model() -> None:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn((3, 3), generator=generator, dtype=torch.float64)
    covariance = mixing @ mixing.T + 0.1 * torch.eye(3, dtype=torch.float64)
    prior = GaussianPrior(mean=torch.zeros(3), covariance=covariance)
    score = BayesianCramerRao(noise_std=0.5, prior=prior)(_linear(3), PLAIN, targets=torch.zeros(1))
    # The posterior covariance of x given x + noise, by the Kalman formula.
    gain = covariance @ torch.linalg.inv(covariance + 0.25 * torch.eye(3, dtype=torch.float64))
    want = float((covariance - gain @ covariance).trace())
    assert score.value == pytest.approx(want, rel=1e-9)
    assert score.details["plug_in"] == pytest.approx(want, rel=1e-9)
    assert score.interval == pytest.approx((want, want), rel=1e-9)
    assert (score.evidence, score.leakier, score.n) == (Evidence.LOWER_BOUND, Leakier.LOWER, 64)
    assert score.details["prior_error"] == pytest.approx(float(covariance.trace()))
    assert "more than it carries" in score.note


def _mean_squared_error(objective: Objective, prior: GaussianPrior, target: Tensor, std: float) -> tuple[float, float]:
    """The error of the posterior mean by importance weights and its standard error: an attacker, above the bound."""
    generator = torch.Generator().manual_seed(5)
    shape = Batch(torch.zeros(1, 2, dtype=torch.float64), target)

    def released(x: Tensor) -> Tensor:
        return objective.flatten(PLAIN.mean(objective, objective.params, shape.with_inputs(x[None])))

    cloud, truths = prior.draw(40000, generator), prior.draw(400, generator)
    means, centers = torch.func.vmap(released)(cloud), torch.func.vmap(released)(truths)
    seen = centers + std * torch.randn(centers.shape, generator=generator, dtype=torch.float64)
    weights = torch.softmax(-(torch.cdist(seen, means) ** 2) / (2 * std**2), dim=1)
    errors = ((weights @ cloud - truths) ** 2).sum(1)
    return float(errors.mean()), float(errors.std() / 20)


@pytest.mark.parametrize("std", [0.1, 0.5, 2.0])
def test_no_attacker_does_better_on_average(std: float) -> None:
    objective, target = _mlp(nn.Tanh()), torch.tensor([1])
    score = BayesianCramerRao(noise_std=std, prior=_prior())(objective, PLAIN, targets=target)
    error, uncertainty = _mean_squared_error(objective, _prior(), target, std)
    assert score.evidence is Evidence.LOWER_BOUND
    assert score.value is not None
    assert 0.15 * error < score.value < error + 3 * uncertainty
    assert score.value < score.details["prior_error"]


def test_wide_noise_leaves_the_prior() -> None:
    score = BayesianCramerRao(noise_std=1e4, prior=_prior())(_mlp(nn.Tanh()), PLAIN, targets=torch.tensor([1]))
    assert score.value == pytest.approx(2.0, rel=1e-4)


def _random_grams(generator: torch.Generator, count: int) -> Iterator[Tensor]:
    """Gram matrices of rank one, skewed to the right: vvᵀ with v ~ N(0, I) has the mean I."""
    for v in torch.randn((count, 3), generator=generator, dtype=torch.float64):
        yield torch.outer(v, v)


@pytest.mark.parametrize("noise_std", [0.1, 1.0, 5.0])
def test_the_lower_limit_covers_at_its_confidence_where_the_plug_in_does_not(noise_std: float) -> None:
    truth = 3 / (1 / noise_std**2 + 1)
    measure = BayesianCramerRao(noise_std=noise_std, prior=_prior(size=3), samples=64, confidence=0.9)
    eye, ones = torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    found = [measure._limit(_random_grams(generator, 64), eye, ones, noise_std) for _ in range(400)]
    limits, plug_ins, highs = np.array(found).T
    standard_error = np.sqrt(0.9 * 0.1 / 400)
    assert np.mean(limits <= truth) > 0.9 - 3 * standard_error
    assert np.mean(highs >= truth) > 0.9 - 3 * standard_error
    assert np.mean(plug_ins) >= truth - 3 * np.std(plug_ins) / 20  # f is convex
    if noise_std == 0.1:
        assert np.mean(plug_ins >= truth) > 0.6  # no lower bound
    assert np.median(limits) > 0.6 * truth


@pytest.mark.parametrize("count", [8, 32, 128])
@pytest.mark.parametrize("floor", [0.0, 3.0])
def test_upper_limits_of_a_skewed_mean_cover(count: int, floor: float) -> None:
    # Student's t alone holds the mean of 32 squares in 88 %, with the correction for skewness in 92 %.
    generator = torch.Generator().manual_seed(0)
    sample = floor + torch.randn((2000, count), generator=generator, dtype=torch.float64) ** 2
    limits = np.array([upper_limit(row, 0.95, floor=floor) for row in sample])
    assert np.mean(limits >= floor + 1.0) > 0.95 - 3.5 * np.sqrt(0.95 * 0.05 / 2000)
    assert np.median(limits - floor) < {8: 3.0, 32: 1.7, 128: 1.3}[count]
    assert upper_limit(torch.ones(9), 0.95) == 1.0


def test_more_samples_tighten_the_limit() -> None:
    objective, target = _mlp(nn.Tanh()), torch.tensor([1])
    few, many = (
        BayesianCramerRao(noise_std=0.3, prior=_prior(), samples=count)(objective, PLAIN, targets=target)
        for count in (16, 512)
    )
    assert few.value < many.value < many.details["plug_in"]


def test_pixels_and_the_domain() -> None:
    domain = Domain(shape=(2,), high=2.0, mean=(0.3, 0.1), std=(0.5, 4.0), kind="tabular")
    given = _prior()
    prior = GaussianPrior(mean=given.mean, covariance=given.covariance, domain=domain)
    score = BayesianCramerRao(noise_std=0.5, prior=prior, unit="pixel_rmse")(_linear(2), PLAIN, targets=torch.zeros(1))
    # Every entry keeps the variance 1/(1/0.25 + 1) = 0.2, and its pixel moves by 0.25 or 2 times as much.
    assert score.value == pytest.approx(np.sqrt(0.2 * (0.25**2 + 2.0**2) / 2), rel=1e-9)
    assert score.unit == "pixel_rmse"
    public = given.draw(30, torch.Generator().manual_seed(0))
    guessed = BayesianCramerRao(noise_std=0.5, public=public, unit="pixel_rmse")
    score = guessed(_linear(2), PLAIN, targets=torch.zeros(1))
    assert "guessed" in score.details["domain"]
    assert "was guessed from the public examples" in score.note
    assert replace(guessed, unit="input")(_linear(2), PLAIN, targets=torch.zeros(1)).unit == "input^2"
    bare = BayesianCramerRao(noise_std=0.5, prior=given, unit="pixel_rmse")
    with pytest.raises(InputError, match="expected a domain for unit='pixel_rmse', got none"):
        bare(_linear(2), PLAIN, targets=torch.zeros(1))


def test_public_labels_are_drawn_and_a_batch_is_joint() -> None:
    objective = _mlp(nn.Tanh())
    images = _prior().draw(40, torch.Generator().manual_seed(3))
    public = Batch(images, torch.arange(40) % 2)
    drawn = BayesianCramerRao(noise_std=0.5, public=public)(objective, PLAIN)
    assert drawn.details["labels"] == "drawn from the public labels"
    assert "40 public examples" in drawn.details["prior"]["origin"]
    measure = BayesianCramerRao(noise_std=0.5, public=images, samples=32)
    alone = measure(objective, PLAIN, targets=torch.tensor([1]))
    pair = measure(objective, PLAIN, targets=torch.tensor([1, 0]))
    assert pair.details["prior_error"] == pytest.approx(2 * alone.details["prior_error"])
    assert pair.value > alone.value
    with pytest.raises(InputError, match="a Batch of public examples with labels"):
        measure(objective, PLAIN)


def test_a_release_that_jumps_is_an_estimate_and_says_why() -> None:
    measure = BayesianCramerRao(noise_std=0.3, prior=_prior(size=3), samples=16)
    kinked = measure(_mlp(nn.ReLU(), 3), PLAIN, targets=torch.tensor([1]))
    assert kinked.evidence is Evidence.ESTIMATE
    assert "the release jumps" in kinked.note
    # Clipping makes kinks, which the theorem allows.
    clipped = measure(_mlp(nn.Tanh(), 3), Release(FedSGD(), [Clip(0.5)]), targets=torch.tensor([1]))
    assert clipped.evidence is Evidence.LOWER_BOUND
    assert clipped.details["largest_jump"] < 1e-6


def test_outcomes_without_a_value() -> None:
    measure = BayesianCramerRao(noise_std=0.3, prior=_prior(), samples=16)
    target = torch.tensor([1])
    signs = measure(_mlp(nn.Tanh()), Release(FedSGD(), [Sign()]), targets=target)
    assert (signs.value, signs.outcome) == (None, Outcome.UNSUPPORTED)
    large = BayesianCramerRao(noise_std=0.3, prior=_prior(), dense_limit=3)
    assert large(_mlp(nn.Tanh()), PLAIN, targets=torch.tensor([1, 0])).outcome is Outcome.UNSUPPORTED
    constant = Objective.from_module(Scale(torch.ones(2)), loss=lambda outputs, targets: 0 * outputs.sum())
    nothing = measure(constant, PLAIN, targets=torch.zeros(1))
    assert (nothing.value, nothing.outcome) == (None, Outcome.NOT_INFORMATIVE)


def test_the_noise_of_the_release_itself_needs_no_warning() -> None:
    release = Release(FedSGD(), [GaussianNoise(std=0.5)])
    score = BayesianCramerRao(noise_std=0.5, prior=_prior(), samples=16)(_linear(2), release, targets=torch.zeros(1))
    assert "more than it carries" not in score.note


def test_same_generator_same_score_and_a_record_can_hold_it(global_rng_unchanged: None) -> None:
    measure, objective = BayesianCramerRao(noise_std=0.3, prior=_prior(), samples=16), _mlp(nn.Tanh())
    first, second = (measure(objective, PLAIN, targets=torch.tensor([1])) for _ in range(2))
    assert first == second
    other = measure(objective, PLAIN, targets=torch.tensor([1]), generator=torch.Generator().manual_seed(9))
    assert other.value != first.value
    assert Score.from_dict(json.loads(json.dumps(first.to_dict(), allow_nan=False))) == first


def test_is_near_the_linearized_error_for_a_narrow_prior(mlp: Oracle) -> None:
    prior = GaussianPrior(mean=mlp.exposure.batch.inputs[0], covariance=1e-6 * torch.eye(12))
    exposure = Exposure(mlp.exposure.objective, mlp.exposure.batch.example(0), PLAIN)
    score = BayesianCramerRao(noise_std=1e-4, prior=prior)(
        exposure.objective, exposure.release, targets=exposure.batch.targets
    )
    want = LinearizedPosteriorError(noise_std=1e-4, prior=prior)(exposure).value
    assert score.value == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"noise_std": 0.0}, "noise_std: expected a finite positive number"),
        ({"samples": 8}, "samples: expected a whole number of at least 16, got 8"),
        ({"confidence": 1.0}, "confidence: expected a number between 0.5 and 1"),
        ({"prior": None}, "expected one of public, prior and prior_std"),
        ({"prior_std": 0.3}, "expected one of public, prior and prior_std"),
        ({"prior": None, "prior_std": -1.0}, "prior_std: expected a finite positive number"),
        ({"prior_mean": float("nan")}, "prior_mean: expected a finite number"),
        ({"prior": None, "public": [1.0]}, "public: expected a tensor, a Batch or None"),
        ({"unit": "pixels"}, "unit: expected one of input, pixel_rmse"),
    ],
)
def test_bad_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BayesianCramerRao(**{"noise_std": 1.0, "prior": _prior(), **fields})


def test_the_noise_that_the_release_carries_is_the_default() -> None:
    target = torch.zeros(1)
    stated = BayesianCramerRao(noise_std=0.5, prior=_prior(), samples=16)(_linear(2), PLAIN, targets=target)
    release = Release(FedSGD(), [GaussianNoise(std=0.4), GaussianNoise(std=0.3)])
    carried = BayesianCramerRao(prior=_prior(), samples=16)(_linear(2), release, targets=target)
    assert carried.value == pytest.approx(stated.value, rel=1e-9)
    assert (carried.details["noise_std"], carried.details["holds_for_release"]) == (pytest.approx(0.5), True)
    assert (stated.details["release_noise_std"], stated.details["holds_for_release"]) == (0.0, False)
    # Less noise than the release carries gives a smaller bound, which holds all the same.
    less = BayesianCramerRao(noise_std=0.2, prior=_prior(), samples=16)(_linear(2), release, targets=target)
    assert less.details["holds_for_release"]
    assert less.value < carried.value
    nothing = BayesianCramerRao(prior=_prior())(_linear(2), PLAIN, targets=target)
    assert (nothing.value, nothing.outcome) == (None, Outcome.NOT_INFORMATIVE)
    assert "carries no noise" in nothing.note


def test_the_smallest_noise_counts_where_tensors_differ() -> None:
    class Uneven(GaussianNoise):
        def noise(self, shapes: Mapping[str, Tensor]) -> DiagonalGaussian:
            stds = [self.std, 2 * self.std, *[4 * self.std] * 8]
            return DiagonalGaussian(std=dict(zip(shapes, stds, strict=False)))

    objective, target = _mlp(nn.Tanh()), torch.tensor([1])
    measure = BayesianCramerRao(prior=_prior(), samples=16)
    uneven = measure(objective, Release(FedSGD(), [Uneven(std=0.3)]), targets=target)
    even = measure(objective, Release(FedSGD(), [GaussianNoise(std=0.3)]), targets=target)
    assert uneven.value == even.value


def test_an_isotropic_prior_takes_its_domain_from_the_call() -> None:
    domain = Domain(shape=(2,), high=2.0, mean=(0.3, 0.1), std=(0.5, 4.0), kind="tabular")
    measure = BayesianCramerRao(noise_std=0.5, prior_std=0.2, unit="pixel_rmse", samples=16)
    score = measure(_linear(2), PLAIN, targets=torch.zeros(1), domain=domain)
    # A = I; a deviation of 0.2 of the range is 0.8 and 0.1 in input units; pixel = scale · input.
    scale = np.array([0.25, 2.0])
    variances = (0.2 / scale) ** 2
    want = np.sqrt(np.mean(scale**2 / (1 / 0.25 + 1 / variances)))
    assert score.value == pytest.approx(want, rel=1e-9)
    assert score.details["prior_error"] == pytest.approx(0.2)
    assert "isotropic Gaussian, mean 0.5 and std 0.2 of the valid range" in score.details["prior"]["origin"]
    with pytest.raises(InputError, match=r"expected domain=\.\.\. with prior_std"):
        measure(_linear(2), PLAIN, targets=torch.zeros(1))


def test_a_batch_draws_as_many_labels() -> None:
    objective = _mlp(nn.Tanh())
    public = Batch(_prior().draw(40, torch.Generator().manual_seed(3)), torch.arange(40) % 2)
    measure = BayesianCramerRao(noise_std=0.5, public=public, samples=16)
    alone, pair = (measure(objective, PLAIN, batch_size=size) for size in (1, 2))
    assert pair.details["prior_error"] == pytest.approx(2 * alone.details["prior_error"])
    with pytest.raises(InputError, match="batch_size: expected the number of targets, 1, got 3"):
        measure(objective, PLAIN, batch_size=3, targets=torch.tensor([1]))
    alike = measure(objective, PLAIN, batch_size=2, copies=2)
    assert alike.value is None
    assert "stands 2 times in the batch" in alike.note
    assert measure.estimate(2) == 0.5 * 2 * 16 + 240
    assert measure.public_inputs is public.inputs
    assert measure.unsupported("no derivative").outcome is Outcome.UNSUPPORTED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": 3}, "objective: expected Objective, got int"),
        ({"release": FedSGD()}, "release: expected Release, got FedSGD"),
        ({"targets": [0]}, "targets: expected a tensor"),
        ({"targets": torch.tensor(1)}, "targets: expected a tensor"),
        ({"targets": torch.tensor([])}, "targets: expected a tensor"),
        ({"domain": 3}, "domain: expected .*Domain.*, got int"),
        ({"generator": 3}, "generator: expected .*Generator.*, got int"),
        ({"targets": None, "batch_size": 1.5}, "batch_size: expected a whole number of at least 1, got 1.5"),
        ({"targets": None, "batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    measure = BayesianCramerRao(noise_std=0.5, prior=_prior(), samples=16)
    given = {"objective": _mlp(nn.Tanh()), "release": PLAIN, "targets": torch.tensor([1]), **arguments}
    with pytest.raises(InputError, match=message):
        measure(given.pop("objective"), given.pop("release"), **given)

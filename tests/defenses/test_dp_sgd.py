from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
import torch
from tests.defenses.setting import batch, generator, gradients, objective
from torch import Tensor

from gradleak.core import DiagonalGaussian, Guarantee, NotGaussian, Release
from gradleak.defenses import DPSGD, Clip, ClipPerExample, GaussianNoise, NoiseOn, Prune
from gradleak.protocols import FedAvg, FedSGD, LocalAdam, average_gradient
from gradleak.results import InputError, UnsupportedError


def clipped_sum(norm: float, examples: int = 4) -> Tensor:
    rows = gradients(batch(examples))
    assert bool((rows.norm(dim=1) > norm).any())
    return torch.stack([row * min(1.0, norm / float(row.norm())) for row in rows]).sum(dim=0)


def drawn(release: Release, draws: int, examples: int = 4) -> Tensor:
    known, random = objective(), generator()
    return torch.stack([known.flatten(release(known, batch(examples), random).tensors) for _ in range(draws)])


@pytest.mark.parametrize("examples", [1, 4, 16])
@pytest.mark.parametrize(
    ("noise", "std"), [(NoiseOn.PER_EXAMPLE, lambda k: 0.1 / math.sqrt(k)), (NoiseOn.SUM, lambda k: 0.1 / k)]
)
def test_the_mean_carries_the_noise_of_its_convention(noise: NoiseOn, std: Any, examples: int) -> None:
    defense = DPSGD(clip_norm=0.5, noise_std=0.1, noise=noise)
    known, release = objective(), Release(FedSGD(), [defense])
    mean = clipped_sum(0.5, examples) / examples
    found = known.flatten(release.mean(known, known.params, batch(examples)))
    torch.testing.assert_close(found, mean, rtol=1e-10, atol=1e-13)
    law = release.noise(known, examples=examples)
    assert law == DiagonalGaussian(std=dict.fromkeys(known.params, pytest.approx(std(examples))))
    residual = drawn(release, 60, examples) - mean
    count = residual.numel()
    low, high = scipy.stats.chi2.ppf([1e-6, 1 - 1e-6], count)
    assert low < float((residual / std(examples)).square().sum()) < high
    assert scipy.stats.kstest((residual / std(examples)).flatten().numpy(), "norm").pvalue > 1e-6


def test_noise_on_every_example_and_on_their_mean_have_one_law() -> None:
    # The long way: N(0, σ²) on each of the k clipped gradients, then the mean.
    k, sigma, random = 9, 0.3, generator()
    slow = (sigma * torch.randn(4000, k, 50, generator=random, dtype=torch.float64)).mean(dim=1)
    defense = DPSGD(clip_norm=1.0, noise_std=sigma, noise="per_example")
    zero = {"w": torch.zeros(50, dtype=torch.float64)}
    fast = torch.stack([defense.draw(zero, k, random)["w"] for _ in range(4000)])
    assert scipy.stats.ks_2samp(slow.flatten().numpy(), fast.flatten().numpy()).pvalue > 1e-6
    assert float(slow.std()) == pytest.approx(float(fast.std()), rel=0.02) == pytest.approx(0.1, rel=0.02)


def test_the_noise_multiplier_is_the_noise_on_the_sum_over_the_clip_norm() -> None:
    assert DPSGD(clip_norm=2.0, noise_std=0.1, noise="per_example").noise_multiplier(16) == pytest.approx(0.2)
    assert DPSGD(clip_norm=2.0, noise_std=0.1, noise="sum").noise_multiplier(16) == pytest.approx(0.05)
    assert DPSGD.from_noise_multiplier(1.5, clip_norm=0.4) == DPSGD(clip_norm=0.4, noise_std=1.5 * 0.4, noise="sum")
    assert DPSGD.from_noise_multiplier(1.5, clip_norm=0.4).noise_multiplier(3) == pytest.approx(1.5)


def test_a_public_divisor_takes_the_place_of_the_number_of_examples() -> None:
    defense = DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum", expected_batch_size=10)
    known, release = objective(), Release(FedSGD(), [defense])
    found = known.flatten(release.mean(known, known.params, batch(4)))
    torch.testing.assert_close(found, clipped_sum(0.5) / 10, rtol=1e-10, atol=1e-13)
    law = release.noise(known, examples=4)
    assert isinstance(law, DiagonalGaussian)
    assert set(law.std.values()) == {0.01}
    assert float((drawn(release, 200) - found).std()) == pytest.approx(0.01, rel=0.03)


def test_a_release_of_no_example_is_noise_alone() -> None:
    known = objective()
    defense = DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum", expected_batch_size=10)
    release = Release(FedSGD(), [defense])
    rows = torch.stack([known.flatten(release.of_nothing(known, generator(seed)).tensors) for seed in range(100)])
    low, high = scipy.stats.chi2.ppf([1e-6, 1 - 1e-6], rows.numel())
    assert low < float((rows / 0.01).square().sum()) < high
    full = release(known, batch(4), generator())
    none = release.of_nothing(known, generator())
    assert (none.kind, none.provenance, list(none.tensors)) == (full.kind, full.provenance, list(full.tensors))
    pruned = Release(FedSGD(), [defense, Prune(0.5)]).of_nothing(known, generator())
    assert float((known.flatten(pruned.tensors) == 0).double().mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "release",
    [
        Release(FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")]),
        Release(FedSGD(), [ClipPerExample(0.5), GaussianNoise(std=0.1)]),
        Release(FedSGD(), [Clip(0.5)]),
        Release(
            FedAvg(learning_rate=0.1),
            [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum", expected_batch_size=4)],
        ),
    ],
    ids=repr,
)
def test_a_mean_over_no_example_is_refused(release: Release) -> None:
    with pytest.raises(UnsupportedError, match="release of no example: expected"):
        release.of_nothing(objective(), generator())


def test_under_local_training_every_step_draws_its_own_noise() -> None:
    known, defense = objective(), DPSGD(clip_norm=0.5, noise_std=0.2, noise="sum")
    one = Release(FedAvg(learning_rate=0.1), [defense])
    law = one.noise(known, examples=4)
    assert isinstance(law, DiagonalGaussian)
    assert list(law.std.values()) == pytest.approx([0.1 * 0.2 / 4] * len(known.params))
    assert float((drawn(one, 60) - drawn(Release(FedAvg(learning_rate=0.1), [ClipPerExample(0.5)]), 1)).std()) == (
        pytest.approx(0.005, rel=0.03)
    )
    # With tiny steps the parameters stand still, and T independent noises add up to √T of one.
    rate = 1e-7
    many = Release(FedAvg(learning_rate=rate, epochs=9), [defense])
    spread = (drawn(many, 60) / rate).std(dim=0).mean()
    assert float(spread) == pytest.approx(0.05 * 3, rel=0.05)


@pytest.mark.parametrize(
    "protocol", [FedAvg(learning_rate=0.1, epochs=2), FedAvg(learning_rate=0.1, batch_size=2), LocalAdam()], ids=repr
)
def test_noise_inside_local_training_is_not_gaussian(protocol: Any) -> None:
    release = Release(protocol, [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")])
    law = release.noise(objective(), examples=4)
    assert isinstance(law, NotGaussian)
    assert "inside the local training" in law.reason


def test_without_the_number_of_examples_the_law_says_what_is_missing() -> None:
    law = Release(FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")]).noise(objective())
    assert isinstance(law, NotGaussian)
    assert "DPSGD on the mean depends on the number of examples" in law.reason


def test_noise_of_examples_and_of_the_update_add_up() -> None:
    known = objective()
    release = Release(FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.12, noise="sum"), GaussianNoise(std=0.04)])
    law = release.noise(known, examples=4)
    assert isinstance(law, DiagonalGaussian)
    assert list(law.std.values()) == pytest.approx([0.05] * len(known.params))
    law = Release(FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.12, noise="sum"), Prune(0.5)]).noise(known, examples=4)
    assert isinstance(law, NotGaussian)
    assert "passes through Prune" in law.reason


def test_it_is_formal_and_the_last_defense_of_examples() -> None:
    defense = DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")
    assert defense.guarantee is Guarantee.FORMAL
    Release(FedSGD(), [ClipPerExample(1.0), defense, Prune(0.5)])
    with pytest.raises(InputError, match=r"expected DPSGD last .*, got ClipPerExample after it; put ClipPerExample"):
        Release(FedSGD(), [defense, ClipPerExample(1.0)])


def test_the_average_gradient_of_an_update_is_not_touched_by_it() -> None:
    known = objective()
    release = Release(FedAvg(learning_rate=0.5), [DPSGD(clip_norm=0.5, noise_std=0.2, noise="sum")])
    update = release(known, batch(4), generator())
    assert float(known.flatten(average_gradient(update, release.protocol, 4).tensors).norm()) == pytest.approx(
        float(known.flatten(update.tensors).norm()) / 0.5
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip_norm": 0.0}, r"DPSGD.clip_norm: expected a finite positive number, got 0.0"),
        (
            {"noise_std": 0.0},
            r"noise_std: expected a finite positive number, got 0.0; without noise it is ClipPerExample",
        ),
        ({"noise_std": math.inf}, r"noise_std: expected a finite positive number, got inf"),
        ({"noise": "mean"}, r"DPSGD.noise: expected one of per_example, sum, got 'mean'"),
        ({"expected_batch_size": -1}, r"expected_batch_size: expected a finite positive number, got -1"),
        ({"noise": "per_example", "expected_batch_size": 4}, r"use noise='sum'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DPSGD(**({"clip_norm": 1.0, "noise_std": 0.1, "noise": "sum"} | arguments))

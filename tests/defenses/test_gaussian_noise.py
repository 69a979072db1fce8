from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats

from gradleak.core import DiagonalGaussian
from gradleak.defenses import GaussianNoise
from gradleak.results import InputError

UPDATE = {"a": torch.full((50, 40), 3.0), "b": torch.full((1000,), -2.0, dtype=torch.float64), "c": torch.tensor(1.0)}

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def test_the_mean_is_the_update() -> None:
    mean = GaussianNoise(std=0.5).mean(UPDATE)
    assert all(torch.equal(mean[name], UPDATE[name]) for name in UPDATE)


def test_the_drawn_noise_is_normal_with_the_stated_deviation_and_independent() -> None:
    drawn = GaussianNoise(std=0.5).draw(UPDATE, torch.Generator().manual_seed(3))
    noise = torch.cat([(drawn[name] - UPDATE[name]).double().reshape(-1) for name in UPDATE]).numpy() / 0.5
    assert abs((noise**2).sum() - len(noise)) < 5 * math.sqrt(2 * len(noise))
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    neighbors = (noise[:-1] * noise[1:]).sum() / math.sqrt(len(noise) - 1)
    assert abs(neighbors) < 5
    for name, tensor in drawn.items():
        assert tensor.dtype == UPDATE[name].dtype
        assert tensor.shape == UPDATE[name].shape


def test_a_draw_depends_on_the_generator_alone_and_moves_it_on() -> None:
    generator = torch.Generator().manual_seed(3)
    first, second = (GaussianNoise(std=0.5).draw(UPDATE, generator) for _ in range(2))
    again = GaussianNoise(std=0.5).draw(UPDATE, torch.Generator().manual_seed(3))
    assert all(torch.equal(first[name], again[name]) for name in UPDATE)
    assert not any(torch.equal(first[name], second[name]) for name in UPDATE)


def test_the_law() -> None:
    law = GaussianNoise(std=0.5).noise(UPDATE)
    assert law == DiagonalGaussian(std={"a": 0.5, "b": 0.5, "c": 0.5})
    assert GaussianNoise(std=0.1).carry(law) is law
    assert law.added_to(DiagonalGaussian(std={"a": 1.2, "b": 0.0, "c": 0.5})).std == {
        "a": pytest.approx(1.3),
        "b": pytest.approx(0.5),
        "c": pytest.approx(math.sqrt(0.5)),
    }


def test_zero_noise_is_no_noise() -> None:
    none = GaussianNoise(std=0.0)
    assert none.noise(UPDATE) is None
    drawn = none.draw(UPDATE, torch.Generator())
    assert all(torch.equal(drawn[name], UPDATE[name]) for name in UPDATE)


@pytest.mark.parametrize("std", [-1e-9, float("nan"), float("inf"), "0.1", None])
def test_impossible_deviations_are_refused(std: Any) -> None:
    with pytest.raises(InputError, match=r"GaussianNoise.std: expected a finite number of at least 0, got"):
        GaussianNoise(std=std)

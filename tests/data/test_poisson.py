from __future__ import annotations

import pytest
import scipy.stats
import torch
from tests.defenses.setting import batch, generator, objective

from gradleak.core import Release
from gradleak.data import poisson_release
from gradleak.defenses import DPSGD
from gradleak.protocols import FedSGD
from gradleak.results import InputError, UnsupportedError

PRIVATE = Release(FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum", expected_batch_size=0.5)])


def test_empty_samples_are_counted_and_their_noise_is_added() -> None:
    known, data, random = objective(), batch(50), generator()
    draws = [poisson_release(PRIVATE, known, data, rate=0.01, generator=random) for _ in range(200)]
    counts = torch.tensor([draw.examples for draw in draws])
    empty = [draw for draw in draws if draw.examples == 0]
    expected = 200 * 0.99**50
    assert abs(len(empty) - expected) < 5 * (expected * (1 - 0.99**50)) ** 0.5
    assert scipy.stats.binomtest(int(counts.sum()), 50 * 200, 0.01).pvalue > 1e-6
    rows = torch.stack([known.flatten(draw.update.tensors) for draw in empty])
    low, high = scipy.stats.chi2.ppf([1e-6, 1 - 1e-6], rows.numel())
    assert low < float((rows / 0.2).square().sum()) < high
    assert draws[0].update.provenance == empty[0].update.provenance, "an empty update does not tell that it is"


def test_every_row_takes_part_by_a_coin_of_its_own() -> None:
    known, data, random = objective(), batch(20), generator()
    counts = [poisson_release(PRIVATE, known, data, rate=0.4, generator=random).examples for _ in range(60)]
    assert abs(sum(counts) / 60 - 8) < 5 * (20 * 0.4 * 0.6 / 60) ** 0.5
    assert poisson_release(PRIVATE, known, data, rate=1.0, generator=random).examples == 20


def test_an_empty_sample_of_a_release_that_divides_by_its_number_is_refused() -> None:
    release = Release(FedSGD(), [DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")])
    with pytest.raises(UnsupportedError, match=r"divides by a constant"):
        poisson_release(release, objective(), batch(3), rate=1e-9, generator=generator())
    with pytest.raises(InputError, match=r"expected a rate above 0 and at most 1, got 0"):
        poisson_release(release, objective(), batch(3), rate=0, generator=generator())

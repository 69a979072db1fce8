"""How often a guess is near an example by chance: counts that no ball exceeds, and the coverage of their limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from gradleak.risk.setting_measure import blind_success_limit, most_within


def _in_window(points: Tensor, radius: float) -> int:
    """The most numbers of a line within `radius` of one point: a sliding window."""
    line = np.sort(points.flatten().numpy())
    return int((np.searchsorted(line, line + 2 * radius * (1 + 1e-12), side="right") - np.arange(len(line))).max())


def _in_disk(points: Tensor, radius: float) -> int:
    """The most points of a plane in a disk: the best one has two of them on its rim, or one in its middle."""
    centers = [*points.numpy()]
    for first, second in itertools.combinations(points.numpy(), 2):
        half = (second - first) / 2
        length = float(np.hypot(*half))
        if 0 < length <= radius:
            normal = np.array([-half[1], half[0]]) / length * np.sqrt(radius**2 - length**2)
            centers += [first + half + normal, first + half - normal]
    gaps = np.linalg.norm(np.stack(centers)[:, None] - points.numpy(), axis=2)
    return int((gaps <= radius * (1 + 1e-9)).sum(1).max())


@pytest.mark.parametrize("seed", range(8))
def test_no_ball_holds_more(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    line = torch.rand((60, 1), generator=generator, dtype=torch.float64)
    assert _in_window(line, 0.07) <= most_within(line, 0.07) <= 2 * _in_window(line, 0.07)
    plane = torch.rand((40, 2), generator=generator, dtype=torch.float64)
    assert _in_disk(plane, 0.15) <= most_within(plane, 0.15) <= 2.5 * _in_disk(plane, 0.15)


def test_known_counts() -> None:
    corners = torch.eye(30, dtype=torch.float64)  # any two of them 1.414 apart
    assert most_within(corners, 0.7071) == 1
    assert most_within(corners, 0.7072) == 2  # three lie in no ball smaller than sqrt(2/3)
    assert most_within(corners, 0.8165) == 3
    assert most_within(torch.ones((5, 3)), 1e-3) == 5
    assert most_within(1e6 + 1e-6 * corners, 0.01) == 30  # a mean far away does not blur small distances


def test_the_limit_is_that_of_a_rate() -> None:
    corners = torch.eye(100, dtype=torch.float64)
    want = scipy.stats.binomtest(1, 100, alternative="less").proportion_ci(0.95, method="exact").high
    assert blind_success_limit(corners, 0.5) == pytest.approx(want, rel=1e-9)
    want = scipy.stats.binomtest(3, 100, alternative="less").proportion_ci(0.99, method="exact").high
    assert blind_success_limit(corners, 0.5, guesses=3, confidence=0.99) == pytest.approx(want, rel=1e-9)
    assert blind_success_limit(corners[:3], 0.5, guesses=5) == 1.0


@pytest.mark.parametrize(("guesses", "best"), [(1, 0.2), (2, 0.4)])
def test_the_limit_covers_the_best_guess_at_a_uniform_law(guesses: int, best: float) -> None:
    generator = torch.Generator().manual_seed(5)
    draws = torch.rand((200, 50, 1), generator=generator, dtype=torch.float64)
    limits = [blind_success_limit(points, 0.1, guesses=guesses) for points in draws]
    assert sum(limit >= best for limit in limits) >= 0.95 * 200 - 3 * np.sqrt(200 * 0.05 * 0.95)


def test_the_limit_covers_the_best_guess_at_a_law_of_few_values() -> None:
    shares = torch.tensor([0.3, 0.25, 0.25, 0.2], dtype=torch.float64)
    generator = torch.Generator().manual_seed(6)
    drawn = torch.multinomial(shares.expand(400, 4), 40, replacement=True, generator=generator)
    values = torch.eye(4, dtype=torch.float64)
    limits = [blind_success_limit(values[places], 0.1) for places in drawn]
    covered = sum(limit >= 0.3 for limit in limits)
    assert covered >= 0.95 * 400 - 3 * np.sqrt(400 * 0.05 * 0.95)
    assert np.median(limits) < 0.55  # it says something

"""Rounding against brute force, and what the probabilities are worth against simulation."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from gradleak.attacks.labels.counting import expected_predictions, judge, largest_remainder
from gradleak.attacks.labels.label_attack import Reduction
from gradleak.attacks.labels.reading import Reading


@pytest.mark.parametrize("seed", range(20))
def test_rounding_is_the_nearest_vector_of_counts(seed: int) -> None:
    random = np.random.default_rng(seed)
    total, classes = 5, 4
    values = random.dirichlet(np.ones(classes)) * total + random.normal(0, 0.4, classes)
    found = largest_remainder(torch.from_numpy(values), total).numpy()
    every = [np.array(c) for c in itertools.product(range(total + 1), repeat=classes) if sum(c) == total]
    best = min(every, key=lambda counts: float(((values - counts) ** 2).sum()))
    assert found.sum() == total
    assert found.tolist() == best.tolist()


@pytest.mark.parametrize(("scaled", "plain"), [(True, True), (False, True), (True, False)])
def test_expected_predictions_are_the_larger_of_dummies_and_counts(scaled: bool, plain: bool) -> None:
    """n + D v is what the update says of the model's predictions, where its scale and the loss allow it; never negative."""
    form = SimpleNamespace(plain=plain, reduction=Reduction.MEAN)
    reading = cast(Reading, SimpleNamespace(examples=4, scaled=scaled, form=form))
    values, gradient = torch.tensor([3.0, 1.0, -0.5]), torch.tensor([-0.5, 0.1, -0.1])
    found = expected_predictions(reading, values, gradient, torch.tensor([0.5, 0.2, 0.3]))
    # 4 p = (2, 0.8, 1.2) beside n + 4 v = (1, 1.4, -0.9).
    want = [2.0, 1.4, 1.2] if scaled and plain else [2.0, 0.8, 1.2]
    torch.testing.assert_close(found, torch.tensor(want))


def test_runaway_values_still_give_counts() -> None:
    found = largest_remainder(torch.tensor([1e12, -1e12, 3.0, 0.0]), 8)
    assert (int(found.sum()), bool((found >= 0).all())) == (8, True)


def _draw(random: np.random.Generator, error: float, classes: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    counts = torch.from_numpy(random.multinomial(total, np.ones(classes) / classes))
    relative = torch.full((classes,), total / classes, dtype=torch.float64)
    noise = torch.from_numpy(random.normal(0, error, classes)) * relative
    return counts, counts + noise - noise.mean()


def test_confidence_is_about_how_often_it_is_right_and_intervals_cover() -> None:
    # Errors as the model has them, of unknown size; the size varies as its prior says.
    random = np.random.default_rng(0)
    classes, total = 8, 24
    confidences, right, covered = [], [], []
    for _ in range(250):
        error = 10 ** random.uniform(-3, 0)
        counts, values = _draw(random, error, classes, total)
        rounded = largest_remainder(values, total)
        relative = torch.full((classes,), total / classes, dtype=torch.float64)
        confidence, accuracy, interval = judge(
            values, rounded, relative=relative, std=torch.zeros(classes, dtype=torch.float64), total=total
        )
        assert 0 <= confidence <= 1
        assert 0 <= accuracy <= 1
        confidences.append(confidence)
        right.append(bool((rounded == counts).all()))
        covered.append(((interval[:, 0] <= counts) & (counts <= interval[:, 1])).double().mean().item())
    confidence, hits = np.array(confidences), np.array(right)
    sure = confidence > 0.9
    assert sure.sum() > 60
    assert hits[sure].mean() > 0.95
    assert -0.1 < confidence.mean() - hits.mean() < 0.03  # a little cautious: the known sum helps the rounding
    assert np.mean(covered) > 0.93


def test_known_noise_lowers_the_confidence_even_where_values_happen_to_be_whole() -> None:
    values = torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    counts = largest_remainder(values, 4)
    relative = torch.ones(4, dtype=torch.float64)
    clear, _, _ = judge(values, counts, relative=relative, std=torch.full((4,), 0.01), total=4)
    noisy, accuracy, interval = judge(values, counts, relative=relative, std=torch.full((4,), 1.0), total=4)
    assert clear > 0.99
    assert noisy < 0.3
    assert accuracy < 0.9
    assert interval[0].tolist()[0] < 3 < interval[0].tolist()[1] + 1


def test_values_far_from_whole_numbers_are_not_believed() -> None:
    values = torch.tensor([2.5, 1.5, 0.5, 1.5, 1.5, 0.5], dtype=torch.float64)
    counts = largest_remainder(values, 8)
    confidence, _, _ = judge(
        values, counts, relative=torch.ones(6, dtype=torch.float64), std=torch.zeros(6, dtype=torch.float64), total=8
    )
    assert confidence < 0.05

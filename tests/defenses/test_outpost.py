"""Outpost: what is pruned and noised, how often, what is read of it, and that knowing it undoes it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from tests.attacks.setting import rows, setting, small_net
from tests.defenses.setting import batch, generator, objective

from gradleak.attacks import GaussNewton
from gradleak.core import Bounds, HonestButCurious, Release
from gradleak.defenses import Outpost
from gradleak.protocols import FedSGD

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


def _plain(examples: int = 2) -> dict[str, torch.Tensor]:
    return dict(Release(FedSGD())(objective(), batch(examples), generator()).tensors)


def test_entries_are_pruned_by_tensor_and_columns_with_the_largest_squares_get_noise() -> None:
    plain, loss = _plain(), objective()
    update = Release(FedSGD(), [Outpost()])(loss, batch(2), generator()).tensors
    squares = [(tensor.numpy() ** 2).mean(axis=0) for tensor in plain.values()]
    threshold = np.sort(np.concatenate([np.atleast_1d(one) for one in squares]))[::-1]
    threshold = threshold[int(np.ceil(0.4 * len(threshold))) - 1]
    for (name, tensor), square in zip(plain.items(), squares, strict=True):
        noisy = np.broadcast_to(square >= threshold, tuple(tensor.shape))
        small = np.zeros(tensor.numel(), dtype=bool)
        small[np.argsort(tensor.abs().numpy().reshape(-1))[: int(0.8 * tensor.numel())]] = True
        expected = np.where(small.reshape(tuple(tensor.shape)), 0.0, tensor.numpy())
        found = update[name].numpy()
        assert np.array_equal(found[~noisy], expected[~noisy])
        if noisy.any():
            std = 0.8 * min(float(loss.params[name].var()), 1.0)
            reach = scipy.stats.norm(scale=std).isf(1e-6)
            assert 0 < np.abs(found - expected)[noisy].max() < reach


def test_updates_are_perturbed_as_often_as_stated_and_have_the_mean_that_is_stated() -> None:
    defense, loss, data = Outpost(iteration=16, scale=0.05), objective(), batch(2)
    assert defense.probability == pytest.approx(1 / 3)
    plain, random = _plain(), generator(5)
    draws = [Release(FedSGD(), [defense])(loss, data, random).tensors for _ in range(600)]
    hit = sum(not torch.equal(draw["0.weight"], plain["0.weight"]) for draw in draws)
    assert scipy.stats.binomtest(hit, 600, 1 / 3).pvalue > 1e-4
    mean = defense.mean(plain, data)
    for name, tensor in plain.items():
        drawn = torch.stack([draw[name] for draw in draws])
        error = drawn.std(dim=0) / 600**0.5
        assert bool(((drawn.mean(dim=0) - mean[name]).abs() <= 5 * error + 1e-12).all()), name
        assert mean[name].shape == tensor.shape


@pytest.mark.parametrize("iteration", [0, 8])
def test_bounds_hold_the_truth_whatever_was_drawn(iteration: int) -> None:
    defense, loss = Outpost(iteration=iteration), objective()
    exact = 0
    for seed in range(20):
        plain = dict(Release(FedSGD())(loss, batch(2, seed), generator()).tensors)
        update = Release(FedSGD(), [defense])(loss, batch(2, seed), generator(seed)).tensors
        found = defense.before(Bounds.of(update))
        for name, tensor in plain.items():
            assert bool(((found.lower[name] <= tensor) & (tensor <= found.upper[name])).all())
        whole = all(bool(found.known(name).all()) for name in plain)
        assert whole == all(torch.equal(update[name], plain[name]) for name in plain)
        exact += whole
    # At the first iteration every update is perturbed, later one in two.
    assert (exact == 0) if iteration == 0 else (exact > 2)


def test_who_knows_it_rebuilds_what_who_does_not_cannot() -> None:
    errors = []
    for told in (True, False):
        threat = HonestButCurious(targets=True, defenses=told)
        case = setting(small_net(), rows(1), defenses=[Outpost()], threat=threat)
        found = GaussNewton(starts=1, max_steps=12)(case.update, case.knowledge, generator=generator(3))
        errors.append(case.error(found.inputs))
    assert errors[0] < 1e-20 < 1e-3 < errors[1]

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from tests.defenses.setting import batch, generator, objective
from torch import Tensor

from gradleak.core import NotGaussian, Release
from gradleak.defenses import RandomSparsify
from gradleak.protocols import FedSGD
from gradleak.results import InputError

UPDATE = {"w": torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 4), "b": torch.tensor([-3.0, 5.0, 0.5]).double()}


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def test_every_entry_is_kept_with_the_same_probability_and_every_count_is_the_same() -> None:
    defense, random = RandomSparsify(0.3), generator()
    masks = torch.stack([flat(defense.mask(UPDATE, random)) for _ in range(6000)])
    assert bool((masks.sum(dim=1) == math.ceil(0.3 * 15)).all())
    counts = masks.sum(dim=0)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-6
    # Of two entries both are kept as often as a draw without replacement does it.
    both = float((masks[:, 0] & masks[:, 1]).double().mean())
    assert both == pytest.approx(5 * 4 / (15 * 14), abs=5 * math.sqrt(0.1 * 0.9 / 6000))


@pytest.mark.parametrize("unbiased", [True, False])
def test_a_draw_shows_its_mask_and_what_it_keeps(unbiased: bool) -> None:
    defense = RandomSparsify(0.3, unbiased=unbiased)
    mask, drawn = flat(defense.mask(UPDATE, generator())), flat(defense.draw(UPDATE, generator()))
    assert torch.equal(drawn != 0, mask)
    torch.testing.assert_close(drawn[mask], flat(UPDATE)[mask] * (3.0 if unbiased else 1.0))
    mean = flat(defense.mean(UPDATE))
    torch.testing.assert_close(mean, flat(UPDATE) * (1.0 if unbiased else 1 / 3))


@pytest.mark.parametrize("unbiased", [True, False])
def test_the_variance_is_that_of_many_draws(unbiased: bool) -> None:
    defense, random = RandomSparsify(0.3, unbiased=unbiased), generator()
    draws = torch.stack([flat(defense.draw(UPDATE, random)) for _ in range(4000)])
    # An entry is kept or not: the variance of a variance over n draws is far below a tenth of it.
    torch.testing.assert_close(draws.var(dim=0), flat(defense.variance(UPDATE)), rtol=0.1, atol=0)
    torch.testing.assert_close(draws.mean(dim=0), flat(defense.mean(UPDATE)), rtol=0.15, atol=0)


def test_all_of_it_is_the_update_itself() -> None:
    defense = RandomSparsify(1.0)
    assert torch.equal(flat(defense.draw(UPDATE, generator())), flat(UPDATE))
    assert defense.noise(UPDATE) is None


def test_its_law_is_named_and_the_mask_is_drawn_anew() -> None:
    known, release = objective(), Release(FedSGD(), [RandomSparsify(0.1)])
    law = release.noise(known)
    assert isinstance(law, NotGaussian)
    assert "the mask is visible" in law.reason
    random = generator()
    first, second = (known.flatten(release(known, batch(), random).tensors) for _ in range(2))
    assert not torch.equal(first != 0, second != 0)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match=r"RandomSparsify.share: expected a number above 0 and at most 1, got 0"):
        RandomSparsify(0)

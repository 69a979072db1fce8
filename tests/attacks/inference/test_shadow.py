"""Labels of shadow batches, and side information."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradleak.attacks.inference import LinearDiscriminant, balanced_labels, with_side
from gradleak.results import InputError


def test_labels_are_balanced_and_in_random_order() -> None:
    labels = balanced_labels(20, 3, torch.Generator().manual_seed(4))
    assert labels.dtype == torch.int64
    assert sorted(labels.bincount().tolist()) == [6, 7, 7]
    assert labels.tolist() != sorted(labels.tolist())
    assert torch.equal(labels, balanced_labels(20, 3, torch.Generator().manual_seed(4)))
    assert not torch.equal(labels, balanced_labels(20, 3, torch.Generator().manual_seed(5)))


def test_who_has_one_more_is_drawn() -> None:
    more = {
        int(balanced_labels(4, 3, torch.Generator().manual_seed(seed)).bincount(minlength=3).argmax())
        for seed in range(30)
    }
    assert more == {0, 1, 2}
    assert balanced_labels(1, 3, torch.Generator()).numel() == 1


def test_labels_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="count"):
        balanced_labels(0, 2, torch.Generator())
    with pytest.raises(InputError, match="classes"):
        balanced_labels(5, 1, torch.Generator())


def test_side_information_is_used() -> None:
    """The update says nothing but which way the side is to be read: only both together tell the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 2
    side = rng.standard_normal((600, 1))
    features = (side + labels[:, None] + 0.1 * rng.standard_normal((600, 1))).astype(np.float32)
    both = with_side(features, side)
    np.testing.assert_array_equal(both, np.hstack([features, side]))
    correct = []
    for rows in (features, both):
        fitted = LinearDiscriminant().fit(rows[:300], labels[:300], 2, 0)
        correct.append((fitted.log_posterior(rows[300:]).argmax(axis=1) == labels[300:]).mean())
    assert correct[0] < 0.8
    assert correct[1] > 0.99
    assert with_side(features, None) is features
    with pytest.raises(InputError, match="with_side"):
        with_side(features, side[:-1])

from __future__ import annotations

import itertools

import pytest
import torch

from gradleak.results import InputError
from gradleak.scoring import Pairing, mse, pair, wrong_pairing_rmse
from gradleak.scoring.pairing import pairwise_mse, scorable, wrong_pairs


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_permuted_batch_is_put_in_order() -> None:
    truths = images(7)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    found = pair(truths[order], truths)
    assert [found.claim_of[int(truth)] for truth in order] == list(range(7))


def test_the_total_error_is_the_smallest_of_all_permutations() -> None:
    claims, truths = images(5, seed=1), images(5, seed=2)
    errors = pairwise_mse(claims, truths)
    best = min(
        sum(float(errors[claim, truth]) for truth, claim in enumerate(order))
        for order in itertools.permutations(range(5))
    )
    found = sum(float(errors[claim, truth]) for truth, claim in pair(claims, truths).paired)
    assert found == pytest.approx(best, rel=1e-12)


def test_duplicates_are_used_once_each() -> None:
    truths = images(4)
    truths[1] = truths[0]
    found = pair(truths.flip(0), truths)
    assert sorted(claim for _, claim in found.paired) == [0, 1, 2, 3]
    assert all(torch.equal(truths.flip(0)[claim], truths[truth]) for truth, claim in found.paired)


def test_tiny_errors_are_told_apart() -> None:
    truths = 0.5 + 1e-9 * images(3)
    assert pair(truths.flip(0), truths).claim_of == (2, 1, 0)


def test_a_diverged_claim_does_not_disturb_the_others() -> None:
    truths = images(4)
    claims = truths[[2, 0, 3, 1]].clone()
    claims[0] = 1e20
    assert pair(claims, truths).claim_of == (1, 3, 0, 2)


def test_claims_that_are_not_finite_stay_alone() -> None:
    truths = images(3)
    claims = truths.clone()
    claims[1, 0, 0, 0] = float("nan")
    assert scorable(claims).tolist() == [True, False, True]
    assert pair(claims, truths).claim_of == (0, None, 2)


@pytest.mark.parametrize(("claims", "expected"), [(2, 2), (6, 4)])
def test_other_counts_match_the_smaller_side(claims: int, expected: int) -> None:
    truths = images(4)
    assert len(pair(images(claims, seed=3), truths).paired) == expected


def test_wrong_pairing_is_the_mean_over_derangements() -> None:
    claims, truths = images(4, seed=1), images(4, seed=2)
    pairing = pair(claims, truths)
    by_truth = claims[[claim for _, claim in pairing.paired]]
    shifts = [mse(by_truth.roll(shift, dims=0), truths).sqrt().mean() for shift in (1, 2, 3)]
    expected = float(torch.stack(shifts).mean())
    assert wrong_pairing_rmse(claims, truths, pairing) == pytest.approx(expected, rel=1e-12)


def test_wrong_pairing_needs_two_examples() -> None:
    assert wrong_pairing_rmse(images(1), images(1), Pairing(claim_of=(0,))) is None


def test_a_duplicate_is_no_wrong_example() -> None:
    claims, truths = images(3, seed=1), images(3, seed=2)
    truths[2] = truths[0]
    pairing = Pairing(claim_of=(0, 1, 2))
    assert sorted(wrong_pairs(truths, pairing)) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    wrong = [mse(claims[[i]], truths[[j]]).sqrt() for i, j in ((1, 0), (0, 1), (2, 1), (1, 2))]
    assert wrong_pairing_rmse(claims, truths, pairing) == pytest.approx(float(torch.stack(wrong).mean()), rel=1e-12)
    assert wrong_pairing_rmse(claims, truths[[0, 0, 0]], pairing) is None


def test_other_example_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"examples of shape \(1, 8, 8\), got \(3, 8, 8\)"):
        pair(torch.zeros(2, 3, 8, 8), images(2))

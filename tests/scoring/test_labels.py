from __future__ import annotations

import torch

from gradleak.core import Batch, Reconstruction
from gradleak.results import Outcome
from gradleak.scoring import Pairing, label_accuracy
from gradleak.scoring.pairing import class_indices


def claim(targets: torch.Tensor | None, outcome: Outcome = Outcome.CONVERGED) -> Reconstruction:
    return Reconstruction(inputs=None, targets=targets, loss=0.0, outcome=outcome)


def batch(targets: torch.Tensor) -> Batch:
    return Batch(torch.zeros(len(targets), 1, 8, 8), targets)


TRUTH = torch.tensor([3, 3, 7, 1])


def test_paired_labels_follow_their_images() -> None:
    pairing = Pairing(claim_of=(2, 3, 0, 1))
    score = label_accuracy(claim(torch.tensor([7, 1, 3, 5])), batch(TRUTH), pairing)
    assert score is not None
    assert score.value == 0.75
    assert score.details["per_example"] == [True, False, True, True]


def test_without_images_the_counts_are_compared() -> None:
    score = label_accuracy(claim(torch.tensor([1, 3, 7, 7])), batch(TRUTH), None)
    assert score is not None
    assert score.value == 0.75
    assert score.details["matching"] == "counts"


def test_class_weights_count_by_their_largest_entry() -> None:
    weights = torch.eye(10)[TRUTH] * 5 - 1
    score = label_accuracy(claim(weights), batch(torch.eye(10)[TRUTH]), Pairing(claim_of=(0, 1, 2, 3)))
    assert score is not None
    assert score.value == 1.0


def test_labels_that_were_not_claimed_are_no_zero() -> None:
    score = label_accuracy(claim(None), batch(TRUTH), None)
    assert score is not None
    assert score.value is None
    assert score.outcome is Outcome.UNSUPPORTED
    assert "claims no labels" in score.note


def test_a_failed_attack_has_its_own_outcome() -> None:
    score = label_accuracy(claim(TRUTH, Outcome.NO_SIGNAL), batch(TRUTH), None)
    assert score is not None
    assert (score.value, score.outcome) == (None, Outcome.NO_SIGNAL)


def test_weights_that_are_not_finite_are_no_claim() -> None:
    score = label_accuracy(claim(torch.full((4, 10), float("nan"))), batch(TRUTH), None)
    assert score is not None
    assert (score.value, score.outcome) == (None, Outcome.NOT_FINITE)


def test_regression_targets_have_no_accuracy() -> None:
    for targets in (torch.rand(4), torch.tensor([[0.1, 3.0], [2.0, -1.0]]), torch.zeros(3, 4, 4, dtype=torch.long)):
        assert class_indices(targets) is None
    assert label_accuracy(claim(None), batch(torch.tensor([0.5, 2.5])), None) is None


def test_right_labels_behind_wrong_images_are_told() -> None:
    # The labels of the batch are all known; the images, and so the pairing, are arbitrary.
    score = label_accuracy(claim(torch.tensor([3, 3, 7, 1])), batch(TRUTH), Pairing(claim_of=(2, 3, 0, 1)))
    assert score is not None
    assert score.value == 0.0
    assert score.details["by_counts"] == 1.0
    assert "100% are right" in score.note

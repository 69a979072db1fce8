"""Pairing of rebuilt with true examples, and of labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import scipy
import torch
from torch import Tensor

from gradleak.core import Batch, Reconstruction
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score

# Larger errors count as this one, or a single diverged claim would swamp the digits that tell the others apart.
LARGEST_COST = 1e6

# Pixels beyond this are no claim about an image, and their powers overflow.
LARGEST_PIXEL = 1e30


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """A one-to-one matching of claims and true examples.

    Attributes:
        claim_of: for each true example the index of its claim, or None where no claim is left for it.
    """

    claim_of: tuple[int | None, ...]

    @property
    def paired(self) -> list[tuple[int, int]]:
        """The (true example, claim) pairs in the order of the examples."""
        return [(truth, claim) for truth, claim in enumerate(self.claim_of) if claim is not None]


def pair(claims: Tensor, truths: Tensor) -> Pairing:
    """The one-to-one matching of claims and truths with the smallest total squared error.

    Claims that cannot be scored (see `scorable`) stay without a partner. With fewer claims than examples, or more,
    the smaller side is matched completely. Errors above 1e6 count as 1e6.

    Args:
        claims: (m, *shape) pixels scaled to [0, 1].
        truths: (b, *shape) pixels scaled to [0, 1].

    Returns:
        The pairing; equal costs are broken by index, so it is deterministic.

    Raises:
        InputError: the shapes of one example differ.

    Cost:
        m · b · d operations for the errors and O(n³) for the assignment, n the larger of m and b.

    Source:
        Kuhn 1955 (Hungarian method), as in `scipy.optimize.linear_sum_assignment`.
    """
    errors = pairwise_mse(claims, truths).clamp(max=LARGEST_COST)
    finite = scorable(claims).nonzero()[:, 0]
    claim_of: list[int | None] = [None] * int(truths.shape[0])
    rows, columns = scipy.optimize.linear_sum_assignment(errors[finite].cpu().numpy())
    for row, column in zip(rows, columns, strict=True):
        claim_of[int(column)] = int(finite[row])
    return Pairing(claim_of=tuple(claim_of))


def scorable(claims: Tensor) -> Tensor:
    """Mask (m,) of the claims that are images at all: every pixel finite and below 1e30 in magnitude.

    Args:
        claims: (m, *shape) pixels.
    """
    pixels = claims.flatten(start_dim=1)
    return (torch.isfinite(pixels) & (pixels.abs() < LARGEST_PIXEL)).all(dim=1)


def pairwise_mse(claims: Tensor, truths: Tensor) -> Tensor:
    """The mean squared error between every claim and every truth, (m, b) float64.

    Args:
        claims: (m, *shape) pixels scaled to [0, 1].
        truths: (b, *shape) pixels scaled to [0, 1].

    Raises:
        InputError: the shapes of one example differ.
    """
    if claims.shape[1:] != truths.shape[1:]:
        raise InputError(
            f"expected claims with examples of shape {tuple(truths.shape[1:])}, got {tuple(claims.shape[1:])}"
        )
    left = claims.flatten(start_dim=1).to(torch.float64)
    right = truths.flatten(start_dim=1).to(torch.float64)
    # Not through the Gram matrix: its cancellation would hide errors below 1e-8.
    distances = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    return distances**2 / left.shape[1]


def wrong_pairs(truths: Tensor, pairing: Pairing) -> list[tuple[int, int]]:
    """Every (true example, claim) in which the claim was paired with another, different example.

    Equal examples (duplicates in a batch) are one and the same to whoever holds a claim against them, so a claim on one
    is not wrong on the other.

    Args:
        truths: (b, *shape) pixels scaled to [0, 1].
        pairing: of claims and truths.
    """
    pairs = pairing.paired
    flat = truths.flatten(start_dim=1)
    _, kinds = torch.unique(flat, dim=0, return_inverse=True)
    return [(truth, claim) for truth, _ in pairs for other, claim in pairs if bool(kinds[other] != kinds[truth])]


def wrong_pairing_rmse(claims: Tensor, truths: Tensor, pairing: Pairing) -> float | None:
    """The mean pixel RMSE when every claim is held against a wrong example; None where there is no wrong one.

    The mean over all wrong pairs (see `wrong_pairs`). Without duplicates that is the exact expectation over a random
    pairing in which no claim stands right: the n - 1 cyclic shifts of the pairing are such, and together they visit
    every wrong pair once. A reconstruction whose error is no smaller than this has found nothing about single examples.

    Args:
        claims: (m, *shape) pixels scaled to [0, 1].
        truths: (b, *shape) pixels scaled to [0, 1].
        pairing: the pairing of the two.

    Raises:
        InputError: the shapes of one example differ.
    """
    wrong = wrong_pairs(truths, pairing)
    if not wrong:
        return None
    errors = pairwise_mse(claims, truths).sqrt()
    return sum(float(errors[claim, truth]) for truth, claim in wrong) / len(wrong)


def label_accuracy(reconstruction: Reconstruction, batch: Batch, pairing: Pairing | None) -> Score | None:
    """The share of examples whose class was claimed rightly; None for targets that are no classes.

    With a pairing of the images each claimed label is held against its example; details hold the share of the overlap
    of the two label counts too (`by_counts`), which does not depend on the images, and a note says so where it is larger:
    all labels of a batch can be known while no image is. Without a pairing (no image was claimed) the order of a batch
    means nothing, and the share is that of the overlap.

    Args:
        reconstruction: the claim; its targets are indices (b,) or one row of class weights an example (b, c).
        batch: the truth; targets are indices (b,) or probabilities (b, c).
        pairing: which claim belongs to which example, or None.

    Returns:
        A score with evidence "attack". Its value is None, never 0, where no label was claimed.
    """
    truth = class_indices(batch.targets)
    if truth is None:
        return None
    if reconstruction.outcome.has_value is False:
        return _score(None, reconstruction.outcome, note=reconstruction.note)
    if reconstruction.targets is None:
        return _score(None, Outcome.UNSUPPORTED, note="the attack claims no labels")
    targets = reconstruction.targets
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        return _score(None, Outcome.NOT_FINITE, note="the claimed labels hold NaN or infinite weights")
    claim = targets.argmax(dim=1) if targets.is_floating_point() and targets.dim() == 2 else targets
    if claim.dim() != 1 or claim.is_floating_point():
        shape = f"{tuple(claim.shape)} {str(claim.dtype).removeprefix('torch.')}"
        return _score(None, Outcome.UNSUPPORTED, note=f"the claimed targets ({shape}) are not class labels")
    names, claimed = truth.tolist(), claim.tolist()
    overlap = sum((Counter(names) & Counter(claimed)).values()) / len(names)
    if pairing is None:
        counts = {"aggregation": "share", "matching": "counts"}
        return _score(overlap, reconstruction.outcome, n=len(names), details=counts)
    right = [False if place is None else names[i] == claimed[place] for i, place in enumerate(pairing.claim_of)]
    share = sum(right) / len(right)
    note = f"as counts of the batch, whatever the images, {overlap:.0%} are right" if overlap > share else ""
    details = {"aggregation": "share", "matching": "paired", "per_example": right, "by_counts": overlap}
    return _score(share, reconstruction.outcome, n=len(right), note=note, details=details)


def class_indices(targets: Tensor) -> Tensor | None:
    """Class indices (b,) of integer targets or of rows of probabilities; None for regression targets.

    Args:
        targets: targets of a batch.
    """
    if not targets.is_floating_point():
        return targets if targets.dim() == 1 else None
    if targets.dim() != 2 or targets.shape[1] < 2:
        return None
    sums = targets.sum(dim=1)
    if bool((targets < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        return None
    return targets.argmax(dim=1)


def _score(
    value: float | None, outcome: Outcome, *, n: int = 1, note: str = "", details: Mapping[str, Any] | None = None
) -> Score:
    return Score(
        name="label_accuracy",
        value=value,
        unit="share",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ATTACK,
        n=n,
        outcome=outcome,
        note=note,
        details=details or {},
    )

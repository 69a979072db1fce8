"""Pairing of claims and examples: a batch gradient does not know the order of its examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.results import InputError

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
    rows, columns = linear_sum_assignment(errors[finite].cpu().numpy())
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

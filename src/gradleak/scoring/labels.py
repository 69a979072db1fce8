"""Claimed labels against true ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradleak.core import Batch, Reconstruction
from gradleak.results import Evidence, Leakier, Outcome, Score
from gradleak.scoring.pairing import Pairing


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

"""Cells of claimed rows of a table that are right: categories named, numbers within a tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.core import Batch, Domain, Reconstruction
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, median
from gradleak.scoring.pairing import Pairing, pair, scorable
from gradleak.scoring.reconstruction import pixels_of_truth

CELL_TOLERANCE = 0.05
"""A number this close to the true one counts as right, in units of its range."""


def score_cells(
    reconstruction: Reconstruction, batch: Batch, *, tolerances: float | Sequence[float] = CELL_TOLERANCE
) -> Score:
    """The share of a row's cells that a claim on a table has right; the value is the best row's, the worst for the client.

    Claims and rows are paired one to one first, by the squared error as in `score_images`. A category is right where its
    one largest entry is that of the row, a number where it is within the tolerance. `details` holds the `mean` over all
    cells of the batch, that of the `categories` and of the `numbers` (None where there are none), the share `by_column`,
    `per_example` in the order of the batch (None for a row without a claim, whose cells count as wrong in the shares) and
    the `tolerances`.

    Args:
        reconstruction: the claim, in model-input units.
        batch: the truth, whose domain states its columns.
        tolerances: of numbers, in units of the range: one for all, or one a column of the table (those of categories mean
            nothing).

    Returns:
        A score in shares with evidence "attack" and the outcome of the reconstruction; without a value where nothing was
        claimed.

    Raises:
        InputError: for a domain without columns, as many tolerances as no table has, or what `score_images` refuses.

    **Source**: Vero et al. 2023, whose tolerance is 0.319 standard deviations of the column over the data set.
    """
    truths, domain = pixels_of_truth(batch)
    limits = _limits(domain, tolerances)
    if reconstruction.inputs is None or reconstruction.outcome.has_value is False:
        return _score(None, reconstruction.outcome, note=reconstruction.note)
    claims = domain.to_pixels(reconstruction.inputs.detach().cpu().to(truths.dtype))
    if not bool(scorable(claims).any()):
        return _score(None, Outcome.NOT_FINITE, note="the claim holds NaN or infinite numbers and was not scored")
    pairing = pair(claims, truths)
    right = torch.zeros(len(truths), len(limits), dtype=torch.float64)
    for truth, claim in pairing.paired:
        right[truth] = right_cells(claims[claim], truths[truth], domain, limits)
    return _score(
        float(right.mean(dim=1).max()),
        reconstruction.outcome,
        n=len(pairing.paired),
        details={"aggregation": "worst for the client", **_details(right, pairing, domain), "tolerances": limits},
    )


def right_cells(claim: Tensor, truth: Tensor, domain: Domain, tolerances: Sequence[float]) -> Tensor:
    """1 for each column of a row that is right, 0 for the others, (columns,) float64.

    Args:
        claim: (d,) pixels scaled to [0, 1].
        truth: likewise.
        domain: with columns.
        tolerances: one a column.
    """
    assert domain.columns is not None
    cells = zip(claim.split(domain.columns), truth.split(domain.columns), tolerances, strict=True)
    return torch.tensor([_is_right(one, other, tolerance) for one, other, tolerance in cells], dtype=torch.float64)


def _is_right(claim: Tensor, truth: Tensor, tolerance: float) -> bool:
    if len(truth) == 1:
        return bool((claim - truth).abs() <= tolerance)
    named = claim.argmax()
    # Of several largest entries none is named.
    return bool(named == truth.argmax()) and int((claim == claim[named]).sum()) == 1


def _limits(domain: Domain, tolerances: float | Sequence[float]) -> list[float]:
    if domain.columns is None:
        raise InputError(
            "score_cells: expected a domain with columns, got none; state Domain(columns=...), or take rows of a Table"
        )
    limits = [float(tolerances)] * len(domain.columns) if isinstance(tolerances, float | int) else list(tolerances)
    if len(limits) != len(domain.columns) or not all(limit >= 0 for limit in limits):
        raise InputError(
            f"score_cells: expected one tolerance of at least 0, or one for each of {len(domain.columns)} columns, got "
            f"{tolerances}"
        )
    return limits


def _details(right: Tensor, pairing: Pairing, domain: Domain) -> Mapping[str, Any]:
    assert domain.columns is not None
    categories = torch.tensor([width > 1 for width in domain.columns])
    rows = right.mean(dim=1).tolist()
    per_example = [None if claim is None else row for row, claim in zip(rows, pairing.claim_of, strict=True)]
    return {
        "mean": float(right.mean()),
        "median": median([row for row in per_example if row is not None]),
        "categories": float(right[:, categories].mean()) if bool(categories.any()) else None,
        "numbers": float(right[:, ~categories].mean()) if not bool(categories.all()) else None,
        "by_column": right.mean(dim=0).tolist(),
        "per_example": per_example,
    }


def _score(
    value: float | None, outcome: Outcome, *, n: int = 1, note: str = "", details: Mapping[str, Any] | None = None
) -> Score:
    return Score(
        name="cell_accuracy",
        value=value,
        unit="share",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ATTACK,
        n=n,
        outcome=outcome,
        note=note,
        details=details or {},
    )

"""Perturbations of a release that move the reconstruction most, or least."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.operators import DENSE_LIMIT, GradientJacobian
from gradleak.results import InputError, Outcome, check_count
from gradleak.risk.measure import outcome_of


@dataclass(frozen=True, kw_only=True, eq=False)
class PerturbationDirections:
    """Unit perturbations of a release, in gradient space, with the error that each predicts.

    Attributes:
        vectors: (P, k), orthonormal columns uᵢ, flat in the order of the shared parameters.
        errors: (k,), 1/√λᵢ, the norm of the error of the L2-matching attacker under uᵢ, in model-input units.
        eigenvalues: (k,), λᵢ of AᵀA.
        outcome: converged; budget_spent; not_identifiable (fewer directions than asked for, all that there are);
            not_informative (A is zero, no direction); not_finite; unsupported (the small eigenvalues of a large d, or
            a derivative that differences contradict).
        note: one sentence on the outcome, or "".
    """

    vectors: Tensor
    errors: Tensor
    eigenvalues: Tensor
    outcome: Outcome
    note: str = ""


def perturbation_directions(
    operator: GradientJacobian, count: int, *, most: bool = True, dense_limit: int = DENSE_LIMIT
) -> PerturbationDirections:
    """The left singular vectors uᵢ = A vᵢ/√λᵢ of A as perturbations, from the most (or least) protective one on.

    A perturbation c·uᵢ moves the minimizer of the L2 matching loss by c/√λᵢ along vᵢ, to first order. What lies outside
    the range of A moves it nowhere: noise is wasted there against such an attacker.

    Assumptions: first order; an L2-matching attacker without prior or box, who does not know the direction. One who
    knows it projects it out, so a fixed direction is no defense.

    Args:
        operator: A of the release.
        count: how many directions, at least 1; the rank of A is the most that there are.
        most: True for the largest error at unit norm (the smallest non-zero λ first), False for the smallest error.
        dense_limit: largest d for the whole spectrum; beyond, only `most=False` is found, by block Lanczos.

    Raises:
        InputError: for count < 1, a negative dense_limit, or another operator.

    Cost: that of the spectrum of AᵀA, and `count` JVPs.

    Source: Zhang et al. 2023, section 5.1 (which speaks of eigenvectors of JJᵀ; those live in the input space, the
    perturbations are the left singular vectors of A = Jᵀ).
    """
    check_count("count", count)
    check_count("dense_limit", dense_limit, least=0)
    if not isinstance(operator, GradientJacobian):
        raise InputError(f"perturbation_directions: expected a GradientJacobian, got {type(operator).__name__}")
    if operator.check.refusal:
        return _nothing(operator, outcome_of(operator.check), operator.check.refusal)
    if operator.shape[1] <= dense_limit:
        spectrum = operator.spectrum
        kept = spectrum.values > spectrum.threshold
        values, vectors = spectrum.values[kept], spectrum.vectors[:, kept]
        if not most:
            values, vectors = values.flip(0), vectors.flip(1)
        outcome = Outcome.CONVERGED
    elif most:
        return _nothing(
            operator,
            Outcome.UNSUPPORTED,
            f"d = {operator.shape[1]} is above the limit of {dense_limit} for a whole spectrum; use most=False, or "
            "raise dense_limit",
        )
    else:
        found = operator.largest_eigenvalue(count=count)
        if found.outcome is Outcome.NOT_FINITE:
            return _nothing(operator, found.outcome, "the derivative of the release is not finite")
        # The rank is counted as from a whole spectrum: what lies below is round-off.
        kept = found.values > operator.shape[1] * torch.finfo(found.values.dtype).eps * found.values[0]
        values, vectors, outcome = found.values[kept], found.vectors[:, kept], found.outcome
    if values.numel() == 0:
        return _nothing(operator, Outcome.NOT_INFORMATIVE, "the derivative of the release is zero")
    values, vectors = values[:count], vectors[:, :count]
    images = operator.matmat(vectors.contiguous())
    sizes = images.norm(dim=0)  # √λᵢ, without the round-off of the largest eigenvalue
    note = ""
    if values.numel() < count:
        outcome = Outcome.NOT_IDENTIFIABLE
        note = f"A has rank {values.numel()}: there are no more directions that move the attacker"
    return PerturbationDirections(
        vectors=images / sizes,
        errors=1 / sizes,
        eigenvalues=values.clone(),
        outcome=outcome,
        note=note,
    )


def _nothing(operator: GradientJacobian, outcome: Outcome, note: str) -> PerturbationDirections:
    empty = torch.empty(0, dtype=operator.dtype, device=operator.device)
    vectors = torch.empty(operator.shape[0], 0, dtype=operator.dtype, device=operator.device)
    return PerturbationDirections(vectors=vectors, errors=empty, eigenvalues=empty, outcome=outcome, note=note)

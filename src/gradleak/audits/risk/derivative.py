"""The derivative of a release: whether it is right, what a record says of that, and lists of measures of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from gradleak.audits.base import Site, internal_example
from gradleak.core import Exposure, Objective, Release, Unchanged, derive_generator
from gradleak.operators import DerivativeCheck, check_derivative
from gradleak.results import Evidence, Leakier, Outcome, Score, Status
from gradleak.results.findings.risk import DERIVATIVE_ERROR, Confirmation, Derivative, RiskFinding

# Of one check of a derivative, in plain gradients: at most 11 values, a product and its graph.
CHECK_COST = 14.0

_CONFIRMATIONS = {
    Outcome.CONVERGED: Confirmation.CONFIRMED,
    Outcome.INCONSISTENT: Confirmation.WRONG,
    Outcome.NOT_FINITE: Confirmation.INFINITE,
}


def quiet(release: Release, objective: Objective) -> Release:
    """The release without defenses that add noise alone: what shares a mean map shares its derivative."""
    names = list(objective.params)
    return Release(release.protocol, [d for d in release.defenses if not isinstance(d.effect(names), Unchanged)])


def derivative_of(site: Site, exposure: Exposure, index: int) -> DerivativeCheck:
    """The check whether the derivative of a release at one batch is what differences of its values say."""
    exposure = replace(exposure, release=quiet(exposure.release, site.objective))
    generator = derive_generator(site.seed, "derivative", internal_example(index))
    return check_derivative(exposure, generator=generator, max_bytes=site.max_bytes)


def derivative_finding(blank: RiskFinding, check: DerivativeCheck) -> RiskFinding:
    """The finding whether closed-form scores rest on a derivative that was confirmed.

    Its score has the outcome *inconsistent* where the derivative is wrong, so that a verdict can tell without knowing of
    checks.

    Args:
        blank: the finding without a result.
        check: how it came out.
    """
    wrong = check.outcome is Outcome.INCONSISTENT
    note = check.refusal or check.note
    has_value = check.outcome is Outcome.CONVERGED and check.error is not None
    error = Score(
        name=DERIVATIVE_ERROR,
        value=check.error if has_value else None,
        unit="1",
        leakier=Leakier.NEITHER,
        evidence=Evidence.ESTIMATE,
        outcome=check.outcome,
        note=note,
        details={"relative_error": check.error, "route": check.route},
    )
    return blank.but(
        status=Status.REFUSED if wrong else Status.DONE,
        outcome=Outcome.UNSUPPORTED if wrong else check.outcome,
        note=note,
        scores=(error,),
        derivative=Derivative(
            check=_CONFIRMATIONS.get(check.outcome, Confirmation.UNCHECKED),
            relative_error=check.error,
            route=check.route,
        ),
    )


T = TypeVar("T")


def distinct(measures: Iterable[T]) -> list[T]:
    """The measures without repeats; those that hold tensors are told apart by identity."""
    kept: list[T] = []
    for measure in measures:
        if not any(_same(measure, other) for other in kept):
            kept.append(measure)
    return kept


def _same(first: object, second: object) -> bool:
    try:
        return first is second or bool(first == second)
    except RuntimeError:  # tensors of several entries do not compare to one truth value
        return False

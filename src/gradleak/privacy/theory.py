"""The epsilon that is known without trials: of the whole release by several conventions, and of one record exactly."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.accounting import classical_gaussian_epsilon, exact_gaussian_epsilon, mechanism_of, of_mechanism
from gradleak.core import NoGuarantee, Objective, Release, Unit
from gradleak.results import (
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Score,
    check_count,
    check_not_negative,
    check_positive,
    check_share,
)

PER_ATTRIBUTE = "per_attribute_epsilon"
PAIR = "pair_epsilon"


def per_attribute_epsilon(sensitivities: Sequence[float], std: float, delta: float) -> Score:
    """Epsilon of one record in one attribute under isotropic Gaussian noise, exactly: the largest over its other values.

    ε_a = maxⱼ ε(‖gⱼ − g₀‖/σ, δ), with g₀ the gradient of the record as it is released without noise (clipped), gⱼ that
    with another value of the attribute, and ε(μ, δ) the solution of Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) = δ.

    It is the truth that an audit of this record approaches from below. For two values both directions of the audit game
    have this epsilon; for more, the game mixes the alternatives, whose divergence is at most the largest of theirs (the
    hockey-stick divergence is convex). It holds for this record at these parameters: the supremum over records, which
    definition 7.1 asks for, is what canaries look for.

    Args:
        sensitivities: ‖gⱼ − g₀‖₂, one for each other value of the attribute.
        std: σ of the noise on every entry.
        delta: δ, between 0 and 1.

    Raises:
        InputError: for no value, or a number out of range.

    **Source**: Li et al. 2024, definitions 7.1 and 7.2, which call the sensitivity "not readily tractable" and take Δ for
    it; for a given record it is one gradient a value. Balle and Wang 2018, theorem 8, for the epsilon.

    Examples:
        >>> round(per_attribute_epsilon([0.0, 2.0], std=0.1, delta=1e-5).value, 2)
        284.39
    """
    return largest_gaussian_epsilon(
        PER_ATTRIBUTE, sensitivities, std, delta, note=note_of_attribute(len(sensitivities))
    )


def note_of_attribute(others: int) -> str:
    """Note on the scope of the per-attribute epsilon, for a record with so many other values."""
    note = "of this record at these parameters"
    return (
        f"{note}; the largest over its {others} other values, which their mixture does not exceed"
        if others > 1
        else note
    )


def largest_gaussian_epsilon(
    name: str, sensitivities: Sequence[float], std: float, delta: float, *, note: str = ""
) -> Score:
    """The largest epsilon of Gaussian mechanisms of these sensitivities, exactly; 0 where nothing moves.

    Args:
        name: of the score.
        sensitivities: at least one, not negative.
        std: σ, positive.
        delta: δ, between 0 and 1.
        note: for the reader.

    Raises:
        InputError: for none, or a number out of range.
    """
    if not sensitivities:
        raise InputError(f"{name}: expected at least one sensitivity, got none")
    for value in sensitivities:
        check_not_negative(f"{name}.sensitivities", value)
    check_positive(f"{name}.std", std)
    check_share(f"{name}.delta", delta)
    largest = max(sensitivities)
    details = {
        "delta": delta,
        "sensitivities": [float(value) for value in sensitivities],
        "std": std,
        "mu": largest / std,
    }
    if largest == 0:
        same = "the release has the same law under both hypotheses"
        return _score(name, 0.0, Evidence.EXACT, "; ".join(part for part in (same, note) if part), details)
    exact = exact_gaussian_epsilon(largest, std, delta)
    if exact.value is None:
        return Score(**{**vars(exact), "name": name, "details": details})
    return _score(name, exact.value, Evidence.EXACT, note, details)


def total_epsilons(
    release: Release, objective: Objective, *, examples: int, attributes: int | None, delta: float
) -> list[Score]:
    """Epsilon of one step of the release, by the paper's conventions and by better ones.

    - classical_gaussian_epsilon: Δ√(2 ln(1.25/δ))/σ, 96.90 at the paper's Δ = 2, σ = 0.1, δ = 1e-5; proven below 1 only.
    - gaussian_epsilon: exactly, for a contribution of norm Δ that is there or not (284.4).
    - replaced_gaussian_epsilon: exactly, for 2Δ. Another attribute puts another clipped gradient in the place of the
      first, and the two may point in opposite directions: this, not the one before, holds for every change of a record.
    - classical_epsilon_share and gaussian_epsilon_share: the first two divided by the number of attributes, as figure 9
      has it. A convention, that bounds nothing.

    Args:
        release: protocol and defenses.
        objective: the client's loss.
        examples: k of the release.
        attributes: N, by which the total is divided; None for no such numbers.
        delta: δ, between 0 and 1.

    Returns:
        The scores; each without a value, and with the reason, where the release has no epsilon that hides an example.

    **Source**: Li et al. 2024, sections 6.1 and 7; deviation: the exact values, and 2Δ.
    """
    check_share("total_epsilons.delta", delta)
    if attributes is not None:
        check_count("total_epsilons.attributes", attributes)
    names = ["classical_gaussian_epsilon", "gaussian_epsilon", "replaced_gaussian_epsilon"]
    if attributes is not None:
        names += ["classical_epsilon_share", "gaussian_epsilon_share"]
    mechanism = mechanism_of(release, objective, examples)
    if isinstance(mechanism, NoGuarantee) or mechanism.unit is not Unit.EXAMPLE or mechanism.steps > 1:
        reason = (
            mechanism.reason
            if isinstance(mechanism, NoGuarantee)
            else "the noise hides a client, not an example"
            if mechanism.unit is not Unit.EXAMPLE
            else "an update of several noisy steps has no epsilon of one step; see Accounting"
        )
        return [without_value(name, reason) for name in names]
    bound, std = mechanism.sensitivity, mechanism.std
    classical = of_mechanism(classical_gaussian_epsilon(bound, std, delta), mechanism)
    exact = of_mechanism(exact_gaussian_epsilon(bound, std, delta), mechanism)
    replaced = of_mechanism(exact_gaussian_epsilon(2 * bound, std, delta), mechanism)
    found = [
        classical,
        exact,
        _renamed(replaced, "replaced_gaussian_epsilon", "for one record in the place of another"),
    ]
    if attributes is not None:
        note = f"the total over {attributes} attributes, a convention of figure 9 that bounds nothing"
        for total, name in ((classical, "classical_epsilon_share"), (exact, "gaussian_epsilon_share")):
            if total.value is None:
                found.append(_renamed(total, name, note))
                continue
            details = {**total.details, "attributes": attributes, "total": total.value}
            found.append(_score(name, total.value / attributes, Evidence.ESTIMATE, note, details))
    return found


def _renamed(score: Score, name: str, note: str) -> Score:
    return Score(**{**vars(score), "name": name, "note": "; ".join(part for part in (score.note, note) if part)})


def _score(name: str, value: float, evidence: Evidence, note: str, details: dict[str, object]) -> Score:
    return Score(
        name=name, value=value, unit="epsilon", leakier=Leakier.HIGHER, evidence=evidence, note=note, details=details
    )


def without_value(name: str, reason: str, outcome: Outcome = Outcome.NOT_INFORMATIVE) -> Score:
    """An epsilon that there is none of, with the reason.

    Args:
        name: of the score.
        reason: a clause.
        outcome: how it ended.
    """
    return Score(
        name=name,
        value=None,
        unit="epsilon",
        leakier=Leakier.HIGHER,
        evidence=Evidence.UPPER_BOUND,
        outcome=outcome,
        note=f"none: {reason}",
    )

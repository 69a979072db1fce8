"""From the findings of privacy audits to verdicts: a lower bound on epsilon breaks a claim, and proves none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.privacy.lower_bounds import gaussian_dp_mu
from gradleak.results import Evidence, Grounds, Outcome, Score, Status, Verdict, VerdictKind, rounded_up
from gradleak.results.findings.privacy import ESTIMATOR, PAIR, STATISTIC, Claim, PrivacyFinding

NOUN = "privacy audits"
_BOUNDS = (Evidence.LOWER_BOUND, Evidence.EXACT)
_NO_CLAIM = Claim()


def judge_privacy(found: Sequence[PrivacyFinding], grounds: Grounds) -> list[Verdict]:
    """A verdict on every privacy audit of every scenario.

    *leaks* where a lower bound lies above the claimed epsilon (the claim is broken), where there is no noise and the two
    hypotheses give different updates, or where a lower bound lies above the plan's threshold; *bounded* where the guarantee
    of the release has an epsilon of at most that threshold and nothing contradicts it; else *inconclusive*. A lower bound
    alone, however small, bounds nothing.

    Args:
        found: the findings of privacy audits, controls among them.
        grounds: whose thresholds hold.
    """
    broken = {one.audit: one for one in reversed(found) if one.control is not None and one.control.passed is not True}
    allowed = grounds.thresholds.epsilon
    return [_judge(one, broken.get(one.audit), allowed) for one in found if one.control is None]


def _judge(found: PrivacyFinding, broken: PrivacyFinding | None, allowed: float) -> Verdict:
    if found.status is Status.FAILED:
        return _inconclusive(found, "item_failed", f"The audit could not be finished: {found.note}.")
    if found.status is not Status.DONE:
        return _inconclusive(found, "audit_refused", f"The privacy loss could not be measured: {found.note}")
    if broken is not None:
        wanted = broken.control.expects if broken.control and broken.status is Status.DONE else broken.note
        text = f"{broken.item} failed ({wanted}), so no bound of this audit can be read."
        return _inconclusive(found, "control_failed", text)
    bounds = [score for score in found.scores if ESTIMATOR in score.about and score.evidence in _BOUNDS]
    known = [score for score in bounds if score.value is not None]
    if not known:
        notes = [*(score.note for score in bounds), *(pair.note for pair in found.pairs), found.note]
        note = next((note for note in notes if note), "no bound has a value")
        reason = bounds[0].outcome.label if bounds else "no_score"
        return _inconclusive(found, reason, f"The audit has no bound: {note}")
    return _measured(found, max(known, key=_value), allowed)


def _measured(found: PrivacyFinding, best: Score, allowed: float) -> Verdict:
    value, claim = _value(best), found.claim or _NO_CLAIM
    claimed = claim.epsilon
    details = _details(found, best, allowed)
    if math.isinf(value):
        text = (
            "The release adds no noise, and its updates differ between the two hypotheses: whoever knows the rest tells them "
            f"apart without error, so no finite epsilon holds. {_broken_too(claim)}"
        )
        return _verdict(found, VerdictKind.LEAKS, "no_noise", text, details)
    if claimed is not None and value > claimed:
        text = (
            f"THE CLAIM IS BROKEN: epsilon is at least {value:.3g} at a confidence of {_confidence(found)} ({_by(best)}), and "
            f"{claimed:.3g} is claimed ({_terms(claim)}). The release loses more than it claims."
        )
        return _verdict(found, VerdictKind.LEAKS, "claim_broken", text, details)
    said = f"epsilon is at least {value:.3g} at a confidence of {_confidence(found)} ({_by(best)}{_ceiling(best)})"
    if value > allowed:
        text = (
            f"Whoever knows the rest tells the two hypotheses apart: {said}, above the limit of {allowed:g}. "
            f"{_beside(claim)}"
        )
        return _verdict(found, VerdictKind.LEAKS, "epsilon_above_threshold", text, details)
    if claimed is not None and claimed <= allowed and claim.proven:
        text = (
            f"Differential privacy bounds epsilon by {rounded_up(claimed):g} for one release ({_terms(claim)}; the limit is "
            f"{allowed:g}), and nothing contradicts it: {said if value > 0.0 else 'no lower bound above 0 was found'}. The "
            f"bound is the guarantee, not the measurement, and more releases lose more{_releases(claim, allowed)}."
        )
        margin = {"bound_margin": allowed / max(claimed, 1e-12)}
        return _verdict(found, VerdictKind.BOUNDED, "epsilon_bounded", text, details | margin)
    if value > 0.0:
        reason = "epsilon_within_claim" if claimed is not None else "epsilon_below_threshold"
        text = f"The two hypotheses are told apart: {said}. {_beside(claim)} A lower bound proves no guarantee."
        return _inconclusive(found, reason, text, details)
    text = (
        f"The two hypotheses were not told apart: the lower bound on epsilon is 0{_ceiling(best)}. {_beside(claim)} Another "
        "record, another statistic or more trials may do better: this is no evidence of safety."
    )
    return _inconclusive(found, "nothing_told_apart", text, details)


def _releases(claim: Claim, allowed: float) -> str:
    """Number of releases of the same data whose epsilon is at most the limit, in words.

    What is proven is of one Gaussian mechanism, whose μ grows with the root of the number (Dong, Roth and Su 2022).
    """
    if not claim.epsilon or not claim.delta:
        return ""
    room = (gaussian_dp_mu(allowed, claim.delta) / gaussian_dp_mu(claim.epsilon, claim.delta)) ** 2
    # Round-off must not take one away.
    most = math.floor(room * (1 + 1e-9))
    return f": up to {most} of the same data keep epsilon at most {allowed:g}" if most > 1 else ""


def _value(score: Score) -> float:
    assert score.value is not None
    return score.value


def _by(score: Score) -> str:
    statistic = str(score.about.get(STATISTIC)).replace("_", " ").replace("likelihood ratio", "log likelihood ratio")
    return f"{statistic}, {score.about.get(ESTIMATOR)}, {score.n} trials"


def _confidence(found: PrivacyFinding) -> str:
    return f"{found.confidence or 0.95:.3g}"


def _ceiling(score: Score) -> str:
    most = score.details.get("largest_certifiable")
    if most is None:
        return ""
    saturated = "saturated: " if score.outcome is Outcome.SATURATED else ""
    return f"; {saturated}so many trials certify {float(most):.3g} at most"


def _terms(claim: Claim) -> str:
    return claim.of if claim.delta is None else f"{claim.of}; δ = {claim.delta:g}"


def _beside(claim: Claim) -> str:
    if claim.epsilon is None:
        return f"No epsilon is claimed: {claim.reason or 'none is known'}."
    return f"The claimed epsilon is {claim.epsilon:.3g} ({_terms(claim)}); this does not contradict it."


def _broken_too(claim: Claim) -> str:
    return "" if claim.epsilon is None else f"THE CLAIM IS BROKEN: {claim.epsilon:.3g} is claimed ({claim.of})."


def _details(found: PrivacyFinding, score: Score, allowed: float) -> dict[str, Any]:
    claim = found.claim or _NO_CLAIM
    return {
        "best_attack": f"{score.about.get(ESTIMATOR)} on {score.about.get(STATISTIC)}",
        "epsilon": score.value,
        "claimed_epsilon": claim.epsilon,
        "delta": claim.delta,
        "threshold_epsilon": allowed,
        "pair": score.about.get(PAIR),
    }


def _inconclusive(found: PrivacyFinding, reason: str, text: str, details: Mapping[str, Any] | None = None) -> Verdict:
    return _verdict(found, VerdictKind.INCONCLUSIVE, reason, text, details or {})


def _verdict(
    found: PrivacyFinding, verdict: VerdictKind, reason: str, text: str, details: Mapping[str, Any]
) -> Verdict:
    return Verdict(
        item=found.item,
        audit=found.audit,
        scenario=found.scenario,
        verdict=verdict,
        reason=reason,
        explanation=text.strip(),
        details=details,
        noun=NOUN,
    )

"""Verdicts on privacy audits, from findings that were made up."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradleak.accounting import exact_gaussian_epsilon
from gradleak.auditing import record_of
from gradleak.audits.privacy.controls import TWICE
from gradleak.audits.privacy.verdict import judge_privacy
from gradleak.results import Evidence, Grounds, Leakier, Outcome, Score, Status, Thresholds, Verdict, VerdictKind
from gradleak.results.findings.privacy import Claim, PrivacyFinding

CLAIM = Claim(epsilon=2.0, delta=1e-5, of="a record replaced", proven=True)
NONE = Claim(delta=1e-5, reason="no noise with a guarantee is added")


def audited(
    *values: float | None, claim: Claim = CLAIM, evidence: str = "lower_bound", status: str = "done", **more: Any
) -> list[PrivacyFinding]:
    """A control, and an audit with a score a value."""
    scores = [
        Score(
            name="epsilon_lower_bound",
            value=value,
            unit="epsilon",
            leakier=Leakier.HIGHER,
            evidence=Evidence(evidence),
            outcome=Outcome.NOT_RESOLVABLE if value is None else Outcome.CONVERGED,
            n=1000,
            note="too few trials" if value is None else "",
            details={"largest_certifiable": 6.0},
            about={"pair": "p", "statistic": "distance", "estimator": "SplitThresholdEpsilon"},
        )
        for value in values
    ]
    control = PrivacyFinding(item="control/negative/a", audit="a", control=TWICE.but(passed=True))
    finding = PrivacyFinding(
        item="s/a",
        audit="a",
        scenario="s",
        status=Status(status),
        outcome=Outcome.CONVERGED,
        confidence=0.95,
        claim=claim,
        scores=tuple(scores),
        **more,
    )
    return [control, finding]


def judged(findings: list[PrivacyFinding], allowed: float = 1.0) -> Verdict:
    (found,) = judge_privacy(findings, Grounds(thresholds=Thresholds(epsilon=allowed)))
    return found


@pytest.mark.parametrize(
    ("given", "verdict", "reason"),
    [
        (audited(2.5), VerdictKind.LEAKS, "claim_broken"),
        (audited(0.4, 2.5), VerdictKind.LEAKS, "claim_broken"),
        (audited(1.5), VerdictKind.LEAKS, "epsilon_above_threshold"),
        (audited(1.5, claim=NONE), VerdictKind.LEAKS, "epsilon_above_threshold"),
        (audited(math.inf, evidence="exact"), VerdictKind.LEAKS, "no_noise"),
        (audited(0.5), VerdictKind.INCONCLUSIVE, "epsilon_within_claim"),
        (audited(0.5, claim=NONE), VerdictKind.INCONCLUSIVE, "epsilon_below_threshold"),
        (audited(0.0), VerdictKind.INCONCLUSIVE, "nothing_told_apart"),
        (audited(0.0, claim=NONE), VerdictKind.INCONCLUSIVE, "nothing_told_apart"),
        # A guarantee bounds; that a bound is small does not, nor what the plan merely states.
        (audited(0.5, claim=CLAIM.but(epsilon=0.9)), VerdictKind.BOUNDED, "epsilon_bounded"),
        (audited(0.0, claim=CLAIM.but(epsilon=0.9)), VerdictKind.BOUNDED, "epsilon_bounded"),
        (audited(0.5, claim=CLAIM.but(epsilon=0.9, proven=False)), VerdictKind.INCONCLUSIVE, "epsilon_within_claim"),
        (audited(0.95, claim=CLAIM.but(epsilon=0.9)), VerdictKind.LEAKS, "claim_broken"),
        # An estimate is no bound, however large.
        (audited(9.0, evidence="estimate"), VerdictKind.INCONCLUSIVE, "no_score"),
        (audited(None), VerdictKind.INCONCLUSIVE, "not_resolvable"),
        (audited(), VerdictKind.INCONCLUSIVE, "no_score"),
        (audited(status="refused", note="why"), VerdictKind.INCONCLUSIVE, "audit_refused"),
        (audited(status="failed", note="why"), VerdictKind.INCONCLUSIVE, "item_failed"),
    ],
)
def test_verdicts(given: list[PrivacyFinding], verdict: VerdictKind, reason: str) -> None:
    found = judged(given)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert (found.item, found.audit, found.scenario, found.noun) == ("s/a", "a", "s", "privacy audits")
    assert len(found.explanation) > 20


def test_a_broken_claim_is_said_loudly_with_both_numbers_and_its_terms() -> None:
    found = judged(audited(2.5))
    for part in (
        "THE CLAIM IS BROKEN",
        "at least 2.5",
        "2 is claimed",
        "a record replaced",
        "confidence of 0.95",
        "1000 trials",
    ):
        assert part in found.explanation


def test_no_noise_breaks_every_claim() -> None:
    found = judged(audited(math.inf, evidence="exact"))
    assert "THE CLAIM IS BROKEN: 2 is claimed" in found.explanation


def test_what_trials_can_certify_stands_beside_a_bound() -> None:
    found = judged(audited(0.0, claim=NONE))
    assert "so many trials certify 6 at most" in found.explanation
    assert "no evidence of safety" in found.explanation


@pytest.mark.parametrize("passed", [False, None])
def test_a_control_that_did_not_pass_takes_its_own_audit_out_alone(passed: bool | None) -> None:
    control, finding = audited(2.5)
    broken = control.but(control=TWICE.but(passed=passed))
    other = finding.but(item="s/b", audit="b")
    verdicts = {one.item: (one.verdict, one.reason) for one in record_of([broken, finding, other]).verdicts}
    assert verdicts["s/a"] == (VerdictKind.INCONCLUSIVE, "control_failed")
    assert verdicts["s/b"] == (VerdictKind.LEAKS, "claim_broken")
    assert verdicts["run"] == (VerdictKind.LEAKS, "claim_broken")


def test_a_broken_claim_is_worse_than_anything_else_of_a_run() -> None:
    mild = audited(math.inf, evidence="exact")[1].but(item="t/a", scenario="t")
    verdicts = {verdict.item: verdict for verdict in record_of([*audited(2.5), mild]).verdicts}
    assert verdicts["run"].reason == "claim_broken"
    assert verdicts["run"].details["worst"] == "s/a"
    assert "The only privacy audit leaks. Worst" in verdicts["s"].explanation
    assert "2 of 2 scenarios leak" in verdicts["run"].explanation


def test_the_threshold_is_one_of_the_plan() -> None:
    strict, lax = judged(audited(0.5, claim=NONE), 0.1), judged(audited(0.5, claim=NONE), 1.0)
    assert (strict.reason, lax.reason) == ("epsilon_above_threshold", "epsilon_below_threshold")
    assert strict.details["threshold_epsilon"] == 0.1


def test_a_bounded_release_says_how_many_of_them_stay_within_the_limit() -> None:
    """By the analytic Gaussian mechanism of √k times the sensitivity, which is another way to count."""
    one = exact_gaussian_epsilon(0.1, 1.0, 1e-5).value
    text = judged(audited(0.0, claim=CLAIM.but(epsilon=one))).explanation
    most = int(text.partition("up to ")[2].split()[0])
    assert text.endswith(f"lose more: up to {most} of the same data keep epsilon at most 1.")
    told = [exact_gaussian_epsilon(0.1 * math.sqrt(k), 1.0, 1e-5).value or 0.0 for k in (most, most + 1)]
    assert told[0] <= 1.0 < told[1]
    nearly = exact_gaussian_epsilon(0.25, 1.0, 1e-5).value
    assert judged(audited(0.0, claim=CLAIM.but(epsilon=nearly))).explanation.endswith("more releases lose more.")

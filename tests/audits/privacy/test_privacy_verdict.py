"""Verdicts on privacy audits, from lines that were made up."""

from __future__ import annotations

from typing import Any

import pytest
from gradleak.auditing.privacy_verdict import judge_privacy
from gradleak.auditing.verdict import Thresholds, judge

from gradleak.results import VerdictKind

Row = dict[str, Any]
CLAIM = {"epsilon": 2.0, "delta": 1e-5, "of": "a record replaced", "reason": "", "proven": True}
NONE = {"epsilon": None, "delta": 1e-5, "of": "", "reason": "no noise with a guarantee is added", "proven": False}


def rows(*values: float | str | None, claim: Row = CLAIM, evidence: str = "lower_bound", **item: Any) -> list[Row]:
    """A control, an audit, and a score a value."""
    control = {"type": "item", "item": "control/negative/a", "kind": "control", "passed": True, "audit_name": "a"}
    line = {"type": "item", "item": "s/a", "kind": "privacy", "scenario": "s", "audit_name": "a", "status": "done"}
    line |= {"outcome": "converged", "note": "", "confidence": 0.95, "claim": claim} | item
    scores = [
        {
            "type": "score",
            "item": "s/a",
            "statistic": "distance",
            "estimator": "SplitThresholdEpsilon",
            "name": "epsilon_lower_bound",
            "value": value,
            "evidence": evidence,
            "outcome": "converged" if value is not None else "not_resolvable",
            "n": 1000,
            "note": "" if value is not None else "too few trials",
            "details": {"largest_certifiable": 6.0},
        }
        for value in values
    ]
    return [control, line, *scores]


@pytest.mark.parametrize(
    ("given", "verdict", "reason"),
    [
        (rows(2.5), VerdictKind.LEAKS, "claim_broken"),
        (rows(0.4, 2.5), VerdictKind.LEAKS, "claim_broken"),
        (rows(1.5), VerdictKind.LEAKS, "epsilon_above_threshold"),
        (rows(1.5, claim=NONE), VerdictKind.LEAKS, "epsilon_above_threshold"),
        (rows("inf", evidence="exact"), VerdictKind.LEAKS, "no_noise"),
        (rows(0.5), VerdictKind.INCONCLUSIVE, "epsilon_within_claim"),
        (rows(0.5, claim=NONE), VerdictKind.INCONCLUSIVE, "epsilon_below_threshold"),
        (rows(0.0), VerdictKind.INCONCLUSIVE, "nothing_told_apart"),
        (rows(0.0, claim=NONE), VerdictKind.INCONCLUSIVE, "nothing_told_apart"),
        # A guarantee bounds; that a bound is small does not, nor what the plan merely states.
        (rows(0.5, claim=CLAIM | {"epsilon": 0.9}), VerdictKind.BOUNDED, "epsilon_bounded"),
        (rows(0.0, claim=CLAIM | {"epsilon": 0.9}), VerdictKind.BOUNDED, "epsilon_bounded"),
        (rows(0.5, claim=CLAIM | {"epsilon": 0.9, "proven": False}), VerdictKind.INCONCLUSIVE, "epsilon_within_claim"),
        (rows(0.95, claim=CLAIM | {"epsilon": 0.9}), VerdictKind.LEAKS, "claim_broken"),
        # An estimate is no bound, however large.
        (rows(9.0, evidence="estimate"), VerdictKind.INCONCLUSIVE, "no_score"),
        (rows(None), VerdictKind.INCONCLUSIVE, "not_resolvable"),
        (rows(), VerdictKind.INCONCLUSIVE, "no_score"),
        (rows(status="refused", note="why"), VerdictKind.INCONCLUSIVE, "audit_refused"),
        (rows(status="failed", note="why"), VerdictKind.INCONCLUSIVE, "item_failed"),
    ],
)
def test_verdicts(given: list[Row], verdict: VerdictKind, reason: str) -> None:
    (found,) = judge_privacy(given, 1.0)
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.details["audit"] == "a"
    assert len(found.explanation) > 20


def test_a_broken_claim_is_said_loudly_with_both_numbers_and_its_terms() -> None:
    (found,) = judge_privacy(rows(2.5), 1.0)
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
    (found,) = judge_privacy(rows("inf", evidence="exact"), 1.0)
    assert "THE CLAIM IS BROKEN: 2 is claimed" in found.explanation


def test_what_trials_can_certify_stands_beside_a_bound() -> None:
    (found,) = judge_privacy(rows(0.0, claim=NONE), 1.0)
    assert "so many trials certify 6 at most" in found.explanation
    assert "no evidence of safety" in found.explanation


@pytest.mark.parametrize("passed", [False, None])
def test_a_control_that_did_not_pass_takes_its_own_audit_out_alone(passed: bool | None) -> None:
    lines = rows(2.5)
    lines[0]["passed"] = passed
    other = [line | {"item": "s/b", "audit_name": "b"} for line in lines[1:]]
    verdicts = {verdict.item: (verdict.verdict, verdict.reason) for verdict in judge([*lines, *other], Thresholds())}
    assert verdicts["s/a"] == (VerdictKind.INCONCLUSIVE, "control_failed")
    assert verdicts["s/b"] == (VerdictKind.LEAKS, "claim_broken")
    assert verdicts["run"] == (VerdictKind.LEAKS, "claim_broken")


def test_a_broken_claim_is_worse_than_anything_else_of_a_run() -> None:
    mild = [line | {"item": "t/a", "scenario": "t"} for line in rows("inf", evidence="exact")[1:]]
    verdicts = {verdict.item: verdict for verdict in judge([*rows(2.5), *mild], Thresholds())}
    assert verdicts["run"].reason == "claim_broken"
    assert verdicts["run"].details["worst"] == "s/a"
    assert "The only privacy audit leaks. Worst" in verdicts["s"].explanation
    assert "2 of 2 scenarios leak" in verdicts["run"].explanation


def test_the_threshold_is_one_of_the_plan() -> None:
    (strict,), (lax,) = judge_privacy(rows(0.5, claim=NONE), 0.1), judge_privacy(rows(0.5, claim=NONE), 1.0)
    assert (strict.reason, lax.reason) == ("epsilon_above_threshold", "epsilon_below_threshold")
    assert strict.details["threshold_epsilon"] == 0.1

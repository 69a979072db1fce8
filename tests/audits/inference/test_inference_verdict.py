"""Verdicts on inference games, from findings that were made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gradleak.auditing import record_of
from gradleak.audits.inference.tasks import SHUFFLED
from gradleak.audits.inference.verdict import judge_games
from gradleak.results import Evidence, Finding, Grounds, Leakier, Outcome, Score, Status, Verdict, VerdictKind
from gradleak.results.findings.inference import InferenceFinding

STATIC = {"adversary": "static"}


def score(name: str, value: float, *, evidence: str = "attack", **more: Any) -> Score:
    about = more.pop("about", STATIC)
    return Score(
        name=name,
        value=value,
        unit="share",
        leakier=Leakier.HIGHER,
        evidence=Evidence(evidence),
        about=about,
        details={"blind": 0.5} | more.pop("details", {}),
        **more,
    )


def advantage(low: float) -> Score:
    return score("advantage", 0.2, details={"unclipped_interval": [low, 0.4]})


def control(passed: bool | None = True) -> InferenceFinding:
    return InferenceFinding(item="control/negative/g", audit="g", control=SHUFFLED.but(passed=passed))


def game(*scores: Score, status: str = "done", audit: str = "g") -> InferenceFinding:
    return InferenceFinding(
        item=f"s/{audit}",
        audit=audit,
        scenario="s",
        status=Status(status),
        outcome=Outcome.CONVERGED,
        observed=(0,),
        values=("a", "b"),
        adversaries=("static",),
        scores=scores,
    )


def judged(*findings: InferenceFinding) -> Verdict:
    (found,) = judge_games(findings, Grounds(findings=findings))
    return found


@pytest.mark.parametrize(
    ("low", "passed", "status", "verdict", "reason"),
    [
        (0.01, True, "done", VerdictKind.LEAKS, "advantage_above_zero"),
        (-0.01, True, "done", VerdictKind.INCONCLUSIVE, "no_advantage_found"),
        (0.01, False, "done", VerdictKind.INCONCLUSIVE, "control_failed"),
        (0.01, None, "done", VerdictKind.INCONCLUSIVE, "control_failed"),
        (0.01, True, "refused", VerdictKind.INCONCLUSIVE, "game_refused"),
        (0.01, None, "refused", VerdictKind.INCONCLUSIVE, "game_refused"),
        (0.01, True, "failed", VerdictKind.INCONCLUSIVE, "item_failed"),
    ],
)
def test_verdicts_on_games(low: float, passed: bool | None, status: str, verdict: VerdictKind, reason: str) -> None:
    found = judged(control(passed), game(advantage(low), status=status))
    assert (found.verdict, found.reason) == (verdict, reason)
    assert (found.item, found.audit, found.scenario, found.noun) == ("s/g", "g", "s", "games")


@pytest.mark.parametrize(
    ("evidence", "value", "low", "verdict"),
    [
        ("upper_bound", 0.03, -0.1, VerdictKind.BOUNDED),
        ("upper_bound", 0.06, -0.1, VerdictKind.INCONCLUSIVE),
        ("estimate", 0.0, -0.1, VerdictKind.INCONCLUSIVE),
        ("upper_bound", 0.03, 0.1, VerdictKind.LEAKS),
    ],
)
def test_fano_bounds_a_game_with_an_upper_bound_on_the_information_alone(
    evidence: str, value: float, low: float, verdict: VerdictKind
) -> None:
    estimate = score("fano_advantage", 0.0, evidence="estimate")
    found = judged(control(), game(advantage(low), estimate, score("fano_advantage", value, evidence=evidence)))
    assert found.verdict is verdict


def test_a_threshold_hides_no_order_and_a_bound_that_nearly_holds_is_told() -> None:
    auroc = score("auroc", 0.97, interval=(0.9, 0.99))
    found = judged(control(), game(advantage(-0.1), auroc, score("fano_advantage", 0.07, evidence="upper_bound")))
    assert found.verdict is VerdictKind.INCONCLUSIVE
    assert "ranks the batches correctly (AUROC 0.970" in found.explanation
    assert "an advantage of up to 0.07, above the limit of 0.05" in found.explanation


def test_a_round_alone_decides_nothing() -> None:
    alone = score("advantage", 0.9, about={**STATIC, "round": 0}, details={"unclipped_interval": [0.8, 1.0]})
    assert judged(game(alone, advantage(-0.1))).reason == "no_advantage_found"
    assert judged(game(alone)).reason == "converged"


@pytest.mark.parametrize(("use", "of"), [("UserGame", "users"), ("AttributeGame", "rows")])
def test_an_advantage_with_too_few_rows_is_said_and_is_no_leak(use: str, of: str) -> None:
    """Twelve users of whom half are told: 300 trials say so of these, and twelve users say nothing of others."""
    few = {
        "unclipped": 0.48,
        "unclipped_interval": [-0.02, 0.85],
        "unclipped_trial_interval": [0.4, 0.55],
        "blind": 0.2,
    }
    found = judged(game(score("advantage", 0.48, details=few)).but(game={"use": use}))
    assert (found.verdict, found.reason) == (VerdictKind.INCONCLUSIVE, "too_few_rows")
    assert f"Play it with more private {of}" in found.explanation
    assert "advantage 0.48, interval 0.4 to 0.55" in found.explanation
    assert f"over {of} and trials the interval is -0.02 to 0.85" in found.explanation
    nothing = few | {"unclipped_trial_interval": [-0.01, 0.55]}
    assert judged(game(score("advantage", 0.48, details=nothing))).reason == "no_advantage_found"


def test_a_failed_control_of_a_game_leaves_other_results_alone() -> None:
    findings: Sequence[Finding] = [
        control(passed=False),
        game(advantage(0.01)),
        game(advantage(0.01), audit="h"),
    ]
    verdicts = {verdict.item: verdict.verdict for verdict in record_of(findings).verdicts}
    assert verdicts == {
        "s/g": VerdictKind.INCONCLUSIVE, "s/h": VerdictKind.LEAKS, "s": VerdictKind.LEAKS, "run": VerdictKind.LEAKS,
    }  # fmt: skip

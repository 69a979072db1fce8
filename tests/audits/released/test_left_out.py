"""Releases whose attacks or controls a time budget left out: no bound makes them *bounded*."""

from __future__ import annotations

import pytest
from tests.audits.released.evidence import about, attack, chance, control, judged, planted, release

from gradleak.reporting.page import assemble
from gradleak.results import Finding, Outcome, Record, Status, Subject, VerdictKind

NO_TIME = {"status": Status.LEFT_OUT, "outcome": Outcome.BUDGET_SPENT, "note": "left out: it would take about 9 s"}
HOPELESS = {"status": Status.LEFT_OUT, "outcome": None, "note": "left out: the closed form leaves none a chance"}
BEGUN = attack(0.4, name="other", suffix="2")


@pytest.mark.parametrize(
    ("findings", "reason", "tested"),
    [
        ([attack(None, **NO_TIME), control("positive", passed=None, **NO_TIME)], "left_out_by_budget", False),
        ([attack(None, **NO_TIME), control("positive", passed=None, **HOPELESS)], "left_out_by_budget", False),
        ([attack(None, **HOPELESS), control("positive", passed=None, **HOPELESS)], "no_attack_had_a_chance", False),
        ([BEGUN, attack(None, **NO_TIME), planted(passed=True)], "left_out_by_budget", True),
        ([BEGUN, planted(passed=True), control("negative", passed=None, **NO_TIME)], "left_out_by_budget", True),
        ([BEGUN, control("positive", passed=None, **NO_TIME)], "control_failed", True),
    ],
)
def test_what_was_left_out_is_never_bounded(findings: list[Finding], reason: str, tested: bool) -> None:
    verdicts = judged(release(), about(chance()), *findings)
    assert {verdict.verdict for verdict in verdicts} == {VerdictKind.INCONCLUSIVE}
    assert [verdict.reason for verdict in verdicts] == [reason] * 3
    assert [verdict.tested for verdict in verdicts] == [tested] * 3
    if reason == "left_out_by_budget":
        assert all("he time budget left out" in verdict.explanation for verdict in verdicts)
        assert "The bound alone gives no verdict" in verdicts[0].explanation


def test_a_release_without_its_gate_has_a_verdict_in_every_scenario_and_nothing_else_is_bounded() -> None:
    gone = release().but(item="release/example 1", scenario=None, subject=Subject(noun="example", name="1"), **NO_TIME)
    planned = attack(None, **NO_TIME).but(item="undefended/example 1/gauss_newton", subject=gone.subject)
    verdicts = judged(release(), gone, about(chance()), BEGUN, planned, planted(passed=True))
    assert [(one.item, one.reason) for one in verdicts[:2]] == [
        ("undefended/example 0", "left_out_by_budget"),
        ("undefended/example 1", "left_out_by_budget"),
    ]
    assert "The time budget left out release/example 1." in verdicts[0].explanation
    assert verdicts[1].explanation == "The release was left out: it would take about 9 s."
    assert {verdict.verdict for verdict in verdicts} == {VerdictKind.INCONCLUSIVE}


def test_without_a_bound_the_budget_is_the_reason_too() -> None:
    verdict = judged(release(), attack(None, **NO_TIME))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "left_out_by_budget")


def test_the_report_counts_what_was_left_out() -> None:
    findings = [release(), attack(None, **NO_TIME), control("positive", passed=None, **HOPELESS)]
    (note,) = assemble(Record.of(findings, judged(*findings))).notes
    assert note.title == "2 tasks left out."
    assert "no time for 1 of them" in str(note.text)

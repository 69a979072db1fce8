"""Verdicts on releases from hand-written findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from tests.audits.released.evidence import (
    about,
    attack,
    bound,
    chance,
    control,
    judged,
    planted,
    refused,
    release,
    score,
    wrong_derivative,
)

from gradleak.auditing import Thresholds
from gradleak.results import Evidence, Finding, Outcome, PlanError, Score, Status, Subject, VerdictKind
from gradleak.results.findings.released import Gate
from gradleak.results.findings.risk import RiskFinding
from gradleak.risk.reconstruction_probability import success_bound


def test_an_attack_below_both_thresholds_leaks() -> None:
    verdicts = judged(release(), attack(0.01))
    assert [verdict.item for verdict in verdicts] == ["undefended/example 0", "undefended", "run"]
    assert {verdict.verdict for verdict in verdicts} == {VerdictKind.LEAKS}
    assert verdicts[0].details["best_attack"] == "gn"
    assert verdicts[0].details["threshold_pixel_rmse"] == 0.1


@pytest.mark.parametrize(("error", "baseline"), [(0.11, 0.3), (0.2, 0.1)])
def test_above_either_threshold_is_inconclusive(error: float, baseline: float) -> None:
    verdict = judged(release(baseline=baseline), attack(error))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.reason == "no_attack_reached_threshold"
    assert "no evidence of safety" in verdict.explanation


def test_one_example_of_a_batch_is_enough() -> None:
    assert judged(release(baseline=[0.3, 0.3]), attack([0.4, 0.02]))[0].verdict is VerdictKind.LEAKS
    # Example 0 has the small error but also the small baseline: each is compared with its own.
    assert judged(release(baseline=[0.03, 0.9]), attack([0.02, 0.4]))[0].verdict is VerdictKind.INCONCLUSIVE


def test_what_a_blind_guess_reaches_too_is_no_leak_and_no_failed_attack() -> None:
    for error, baseline in ((0.09, 0.15), (0.0, 0.0)):
        verdict = judged(release(baseline=baseline), attack(error))[0]
        assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_better_than_blind")


@pytest.mark.parametrize(
    ("errors", "leaks"),
    [
        # Small for one image, and what sixteen guesses reach by luck.
        ([0.05, 0.4, 0.4], False),
        ([0.005, 0.4, 0.4], True),
        # No single one tells, but three at once are more than luck.
        ([0.05, 0.06, 0.07], True),
        ([0.05, 0.06, 0.085], False),
        # What is above the threshold does not help.
        ([0.05, 0.4, 0.5], False),
    ],
)
def test_an_error_that_luck_reaches_is_no_leak(errors: list[float], leaks: bool) -> None:
    verdict = judged(release(batch_size=3, baseline=[0.3] * 3, luck=[0.01, 0.04, 0.08]), attack(errors))[0]
    assert (verdict.verdict is VerdictKind.LEAKS) is leaks
    assert verdict.details["chance_pixel_rmse"] == 0.01
    if not leaks:
        assert verdict.reason == "no_better_than_chance"
        assert "come as near to one of 3 such examples by luck" in verdict.explanation
        assert "only below 0.01" in verdict.explanation
    elif errors[0] == 0.005:
        assert (
            "to a pixel RMSE of 0.005, below the 0.01 that guesses without the update reach by luck. An error of up to 0.1 counts"
            in verdict.explanation
        )
    else:
        assert (
            "rebuilt 3 examples from the update alone, to a pixel RMSE of at most 0.07, which luck"
            in verdict.explanation
        )


def test_values_that_are_guessed_exactly_are_named() -> None:
    verdict = judged(release(batch_size=1, luck=[0.0]), attack(0.0))[0]
    assert verdict.reason == "no_better_than_chance"
    assert "as near to such an example by luck: such values are guessed exactly" in verdict.explanation


def test_luck_does_not_hide_that_the_model_has_learned_the_batch() -> None:
    verdict = judged(release(client_loss=0.001, luck=[0.01]), attack(0.05))[0]
    assert verdict.reason == "converged_model"
    assert (
        "Besides: gn ended at a pixel RMSE of 0.05, but guesses without the update come as near" in verdict.explanation
    )


def test_a_range_that_makes_an_example_look_constant_is_named() -> None:
    note = "all values lie in 0 to 1, 1/255 of the declared range 0 to 255"
    verdict = judged(release(range_note=note, baseline=0.001), attack(0.0009))[0]
    assert verdict.reason == "no_better_than_blind"
    assert f"almost constant in units of its range: {note})" in verdict.explanation


def reasons(*findings: Finding) -> dict[str, str]:
    return {verdict.item: verdict.reason for verdict in judged(*findings)}


def test_attacks_that_are_all_refused_are_the_reason_whatever_became_of_the_control() -> None:
    alone = judged(release(), refused("undefended"))
    for line in (planted(), planted(passed=False), planted(status=Status.FAILED, note="boom")):
        found = judged(line, release(), refused("undefended"))
        assert [(one.reason, one.explanation) for one in found] == [(one.reason, one.explanation) for one in alone]
    assert {one.reason for one in alone} == {"no_attack_finished"}
    assert "gn needs generator" in alone[-1].explanation
    assert "shown to leak" not in alone[-1].explanation  # nothing was tested


def test_a_planted_leak_that_was_refused_is_a_failed_control_where_its_attack_ran() -> None:
    findings = [planted(), release(), refused("undefended"), release("other"), attack(0.4, scenario="other")]
    found = reasons(*findings)
    assert found["undefended/example 0"] == "no_attack_finished"
    assert found["other/example 0"] == found["other"] == found["run"] == "control_failed"
    last = judged(*findings)[-1].explanation
    assert "control/positive could not be run (gn needs generator), so no result" in last
    assert "The only scenario that was tried" in last
    assert "1 not attacked" in last


def test_a_weak_attack_that_misses_the_planted_leak_is_named_with_its_steps() -> None:
    line = planted(passed=False).but(settings={"use": "InvertingGradients", "iterations": 1})
    said = judged(line, release(), attack(0.4))[0].explanation
    assert "control/positive failed: the plan's own gn (iterations = 1) did not find the planted leak" in said


@pytest.mark.parametrize("error", [0.01, 0.4])
def test_a_planted_leak_for_an_attack_that_never_runs_takes_nothing_from_the_others(error: float) -> None:
    rest = [release(), refused("undefended"), attack(error, name="ig")]
    verdict = judged(planted(), *rest)[0]
    assert verdict.reason == ("attack_reached_threshold" if error < 0.1 else "no_attack_reached_threshold")
    assert "No leak was planted, since gn, which was to find it, is refused everywhere" in verdict.explanation
    # Found nothing, though it could run, and a crash, are failures as before.
    for line in (planted(passed=False), planted("ig"), planted(status=Status.FAILED, note="boom")):
        assert judged(line, *rest)[0].reason == "control_failed"


def test_one_attack_that_finds_the_planted_leak_is_enough_and_none_is_not() -> None:
    second = planted("ig", passed=False).but(item="control/positive/ig")
    assert judged(planted(passed=True), second, release(), attack(0.01))[0].reason == "attack_reached_threshold"
    assert judged(planted(passed=False), second, release(), attack(0.01))[0].reason == "control_failed"
    found = second.but(control=planted(passed=True).control)
    assert judged(planted(passed=False), found, release(), attack(0.01))[0].reason == "attack_reached_threshold"


def test_a_scenario_whose_attacks_were_refused_is_none_that_does_not_leak() -> None:
    run = judged(release(), attack(0.01), release("other"), refused("other"))[-1]
    assert (run.verdict, run.details["leaking"], run.details["of"]) == (VerdictKind.LEAKS, 1, 1)
    assert "1 not attacked" in run.explanation
    failing = judged(release("other"), refused("other"), release(), attack(0.4))[-1]
    assert failing.reason == "no_attack_reached_threshold"


def test_names_of_attacks_cannot_stand_for_other_items() -> None:
    """The score of the validation routine, which starts from the truth, is never an attack's."""
    place = {"scenario": "undefended", "subject": Subject(noun="example", name="0")}
    near = attack(1e-9).scores
    perfect = RiskFinding(item="undefended/example 0/perfect_attacker", audit="risk", scores=near, **place)
    verdict = judged(release(), perfect, attack(0.5, name="perfect_attacker", suffix=" of a user"))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.details["pixel_rmse"] == 0.5


def test_a_leak_without_its_noise_control_is_not_believed() -> None:
    verdict = judged(control("negative", passed=None), release(), attack(0.0))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "control_not_run")


def test_the_noise_control_of_an_adversary_speaks_of_that_one() -> None:
    def own(passed: bool | None) -> Finding:
        return control("negative", passed=passed, suffix="/gn")

    def static(passed: bool | None) -> Finding:
        return control("negative", passed=passed, suffix="/gn/static", adversary="static")

    def verdict_of(adversary: str, *controls: Finding) -> str:
        return judged(*controls, release(), attack(0.0, adversary=adversary))[0].reason

    assert verdict_of("static", own(True), static(None)) == "control_not_run"
    assert verdict_of("adaptive", own(True), static(None)) == "attack_reached_threshold"
    # Where one control speaks of both.
    assert verdict_of("static", own(True)) == "attack_reached_threshold"
    assert verdict_of("static", own(None)) == "control_not_run"
    assert verdict_of("adaptive", own(True), static(False)) == "control_failed"


@pytest.mark.parametrize("name", ["positive", "negative"])
def test_a_failed_control_makes_everything_inconclusive(name: str) -> None:
    verdicts = judged(control(name, passed=False), release(), attack(0.0))
    assert {(verdict.verdict, verdict.reason) for verdict in verdicts} == {
        (VerdictKind.INCONCLUSIVE, "control_failed"),
    }
    assert f"control/{name}" in verdicts[0].explanation


def test_the_control_of_an_audit_that_attacks_no_release_says_nothing_of_releases() -> None:
    other = RiskFinding(item="control/other", audit="other", control=control("positive", passed=False).control)
    assert judged(other, release(), attack(0.01))[0].verdict is VerdictKind.LEAKS


def test_an_inconsistent_update_gets_no_verdict_but_causes() -> None:
    """U33."""
    gate = Gate(status="inconsistent", causes=("the sign is reversed",))
    verdict = judged(release(gate=gate), attack(0.0))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "inconsistent_update")
    assert "The sign is reversed" in verdict.explanation
    assert "gn came within a pixel RMSE of 0" in verdict.explanation


@pytest.mark.parametrize(
    ("findings", "reason"),
    [
        ([], "no_attack_ran"),
        ([attack(None, outcome=Outcome.NO_SIGNAL)], "no_signal"),
        (
            [attack(None, status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note="needs targets")],
            "no_attack_finished",
        ),
        ([attack(None, status=Status.FAILED, outcome=Outcome.FAILED, note="boom")], "no_attack_finished"),
        ([attack(None, outcome=Outcome.NOT_FINITE)], "no_attack_finished"),
    ],
)
def test_every_silence_has_its_own_reason(findings: list[Finding], reason: str) -> None:
    verdict = judged(release(), *findings)[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, reason)
    assert "safe" not in verdict.explanation.replace("evidence of safety", "")


def test_a_release_that_could_not_be_made_is_inconclusive() -> None:
    failed = release(item="release/example 0", scenario=None, status=Status.FAILED, note="boom")
    verdicts = judged(failed)
    assert [(one.item, one.reason) for one in verdicts] == [
        ("release/example 0", "item_failed"),
        ("run", "item_failed"),
    ]
    assert "could not be made: boom." in verdicts[0].explanation


def test_a_converged_model_is_not_low_risk() -> None:
    """U45."""
    verdict = judged(release(client_loss=1e-5), attack(0.4))[0]
    assert verdict.reason == "converged_model"
    assert "early round" in verdict.explanation


def test_a_model_that_lets_nothing_through_is_not_low_risk() -> None:
    """U70b."""
    note = "running_var of BatchNorm layer 1 is up to 1e+18"
    verdict = judged(release(model_note=note), attack(0.4))[0]
    assert verdict.reason == "model_out_of_scale"
    assert note in verdict.explanation
    assert judged(release(model_note=note), attack(0.01))[0].verdict is VerdictKind.LEAKS


def test_the_run_leaks_if_one_scenario_does() -> None:
    by_item = {verdict.item: verdict for verdict in judged(release(), attack(0.01), release("noisy"))}
    assert by_item["noisy"].verdict is VerdictKind.INCONCLUSIVE
    assert by_item["run"].verdict is VerdictKind.LEAKS
    assert by_item["run"].details["leaking"] == 1
    assert by_item["run"].details["of"] == 1
    assert "1 not attacked" in by_item["run"].explanation


@pytest.mark.parametrize(
    "wrong", [{"pixel_rmse": 0.0}, {"pixel_rmse": 2.0}, {"baseline_ratio": 0.0}, {"reconstruction_probability": 1.0}]
)
def test_thresholds_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="expected a number"):
        Thresholds(**wrong)


def test_a_bound_above_the_limit_is_bounded_and_says_what_it_rests_on() -> None:
    verdicts = judged(release(), about(bound()), attack(0.4))
    assert {verdict.verdict for verdict in verdicts} == {VerdictKind.BOUNDED}
    text = verdicts[0].explanation
    for part in ("0.2 on average over the stated prior", "at 95% confidence", "300 public examples", "std 0.1",
                 "the limit of 0.1", "not a worst case", "several releases"):  # fmt: skip
        assert part in text
    assert verdicts[0].reason == "bayesian_bound"
    assert verdicts[0].details["bound"] == 0.2
    assert [verdict.reason for verdict in verdicts[1:]] == ["all_bounded", "all_bounded"]
    assert text in verdicts[-1].explanation


def test_a_bound_needs_no_attack() -> None:
    assert judged(release(), about(bound()))[0].verdict is VerdictKind.BOUNDED


def test_the_weakest_bound_counts() -> None:
    verdict = judged(release(), about(bound(0.3), bound(0.09)))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.details["bound"] == 0.09


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (bound(0.1), "is not above the limit of 0.1"),
        (bound(None, note="the release carries no noise"), "has no value: the release carries no noise"),
        (bound(unit="input"), "state unit = 'pixel_rmse'"),
        (bound(evidence=Evidence.ESTIMATE), "an estimate, no bound"),
        (bound(details={"holds_for_release": False}), "more noise than the release carries"),
        (bound(details={"prior_error": 0.7}), "a prior wider than any data"),
    ],
)
def test_what_is_no_bound_above_the_limit_says_why(score: Score, reason: str) -> None:
    verdict = judged(release(), about(score), attack(0.4))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_attack_reached_threshold")
    assert reason in verdict.explanation


def test_no_bound_where_an_attack_leaks_or_comes_as_near() -> None:
    assert judged(release(), about(bound()), attack(0.01))[0].verdict is VerdictKind.LEAKS
    # Within the limit, but guessing does nearly as well: no leak, and no bound either.
    verdict = judged(release(baseline=0.15), about(bound()), attack(0.09))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_better_than_blind")
    assert "on this very example" in verdict.explanation


@pytest.mark.parametrize(("blind", "value"), [(0.05, 0.2), (0.12, 0.26)])
def test_no_bound_where_guessing_is_below_it(blind: float, value: float) -> None:
    verdict = judged(release(baseline=blind), about(bound(value)), attack(0.4))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "which a blind guess meets within" in verdict.explanation


def test_differential_privacy_that_leaves_no_fair_chance_is_bounded_and_says_what_it_rests_on() -> None:
    verdicts = judged(release(), about(chance()), attack(0.4))
    assert {verdict.verdict for verdict in verdicts} == {VerdictKind.BOUNDED}
    assert verdicts[0].reason == "dp_bound"
    text = verdicts[-1].explanation
    for part in ("an example to a pixel RMSE of 0.1 with a probability above 0.02", "the limit of 0.05", "κ = 0.005",
                 "ε = 1.9 at δ = 1e-05", "clipping to 1 with noise of std 2 on the sum", "900 public examples",
                 "κ at 95% confidence", "an average", "several releases"):  # fmt: skip
        assert part in text
    assert verdicts[0].details["reconstruction_probability"] == 0.02
    assert verdicts[0].details["threshold_reconstruction_probability"] == 0.05


def test_a_bounded_release_says_how_many_of_them_stay_within_the_limit() -> None:
    text = judged(release(), about(chance()), attack(0.4))[0].explanation
    assert text.endswith("Up to 3 such releases of the same data stay within the limit.")
    left = [float(success_bound(0.5 * math.sqrt(k), 0.005)) for k in (3, 4)]
    assert left[0] <= 0.05 < left[1]
    many = chance(details={"examples": 4, "rounds": 2, "kappa": 0.001})
    assert "Up to 5 such releases" in judged(release(), about(many), attack(0.4))[0].explanation
    assert 4 * success_bound(0.5 * math.sqrt(5 / 2), 0.001) <= 0.05 < 4 * success_bound(0.5 * math.sqrt(6 / 2), 0.001)
    client = chance(details={"hidden": "client", "examples": 4, "mu": 0.6})
    assert "Up to" not in judged(release(), about(client), attack(0.4))[0].explanation


def test_the_words_fit_a_batch_several_rounds_and_a_hidden_client() -> None:
    found = chance(details={"examples": 4, "rounds": 3, "hidden": "client"})
    text = judged(release(), about(found))[0].explanation
    assert "and sees 3 such releases of the same data, rebuilds any of the 4 examples" in text
    assert "the differential privacy of the whole client" in text
    assert "on the update" in text
    assert "so may who sees several" not in text


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (chance(0.06), "is above the limit of 0.05"),
        (
            chance(None, note="the release has no differential privacy: Prune: heuristic"),
            "no bound: the release has no",
        ),
        (chance(details={"within": 0.05}), "state within = 0.1"),
        (chance(evidence=Evidence.ESTIMATE), "an estimate, no bound"),
    ],
)
def test_what_leaves_more_than_the_stated_chance_says_why(score: Score, reason: str) -> None:
    verdict = judged(release(), about(score), attack(0.4))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_attack_reached_threshold")
    assert reason in verdict.explanation


def test_the_largest_chance_counts_and_the_limit_is_the_plan_s() -> None:
    findings = [release(), about(chance(0.01), chance(0.06))]
    assert judged(*findings)[0].verdict is VerdictKind.INCONCLUSIVE
    wide = Thresholds(reconstruction_probability=0.1)
    assert judged(*findings, thresholds=wide)[0].verdict is VerdictKind.BOUNDED
    # An error within a larger limit is at least as likely, so that its chance bounds this one's too.
    near = Thresholds(pixel_rmse=0.05)
    assert judged(release(), about(chance()), thresholds=near)[0].verdict is VerdictKind.BOUNDED


def test_an_attack_that_leaks_or_comes_as_near_wins_over_differential_privacy() -> None:
    assert judged(release(), about(chance()), attack(0.01))[0].verdict is VerdictKind.LEAKS
    assert judged(release(baseline=0.15), about(chance()), attack(0.09))[0].reason == "no_better_than_blind"
    verdict = judged(release(baseline=0.05), about(chance()), attack(0.4))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "a blind guess meets within 0.05" in verdict.explanation
    sent = release(given=True, gate=Gate(status="not_applicable", chi_square_z=40.0))
    verdict = judged(sent, about(chance()))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "not shown to carry" in verdict.explanation


def test_one_of_two_bounds_is_enough() -> None:
    verdict = judged(release(), about(bound(0.05), chance()))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.BOUNDED, "dp_bound")
    assert "van Trees" not in verdict.explanation
    verdict = judged(release(), about(bound(), chance(0.5)))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.BOUNDED, "bayesian_bound")
    assert "differential privacy" not in verdict.explanation
    verdict = judged(release(), about(bound(), chance()))[0]
    assert "van Trees" in verdict.explanation
    assert "differential privacy" in verdict.explanation
    verdict = judged(release(), about(bound(0.05), chance(0.5)))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "not above the limit" in verdict.explanation
    assert "above the limit of 0.05" in verdict.explanation


def test_the_narrowest_of_several_bounded_releases_is_named() -> None:
    for first, second, want in ((0.04, 0.3, "0.04"), (0.01, 0.101, "van Trees")):
        findings = [release(), about(chance(first)), release("other"), about(bound(second), scenario="other")]
        text = judged(*findings)[-1].explanation
        assert text.startswith("All 2 scenarios are bounded.")
        assert want in text


@pytest.mark.parametrize("name", ["positive", "negative"])
def test_no_bound_where_a_control_failed(name: str) -> None:
    verdict = judged(control(name, passed=False), release(), about(bound()), attack(0.4))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "control_failed")


@pytest.mark.parametrize(
    ("gate", "bounded"),
    [
        ({"status": "consistent"}, True),
        ({"status": "not_applicable", "chi_square_z": 1.2}, True),  # as much noise as stated, more than the signal
        ({"status": "not_applicable", "chi_square_z": -40.0}, False),
        ({"status": "not_applicable", "chi_square_z": None}, False),
        ({"status": "inconsistent"}, False),
    ],
)
def test_an_update_that_was_sent_has_to_carry_the_noise(gate: dict[str, Any], bounded: bool) -> None:
    verdict = judged(release(given=True, gate=Gate(**gate)), about(bound()))[0]
    assert (verdict.verdict is VerdictKind.BOUNDED) is bounded


def test_one_bounded_scenario_does_not_bound_the_run() -> None:
    noisy = [release("noisy"), about(bound(), scenario="noisy")]
    verdicts = {v.item: v for v in judged(release(), attack(0.4), *noisy)}
    assert verdicts["noisy"].verdict is VerdictKind.BOUNDED
    assert verdicts["run"].verdict is VerdictKind.INCONCLUSIVE
    assert "1 bounded" in verdicts["run"].explanation
    verdicts = {v.item: v for v in judged(release(), attack(0.01), *noisy)}
    assert verdicts["run"].verdict is VerdictKind.LEAKS
    assert "1 of 2 scenarios leaks (1 bounded)" in verdicts["run"].explanation
    verdicts = {v.item: v for v in judged(release(), attack(0.4))}
    assert verdicts["run"].explanation.startswith("The only scenario is not shown to leak, which is no proof")


def test_a_wrong_derivative_is_the_reason_why_an_attack_failed() -> None:
    verdict = judged(release(), wrong_derivative(), attack(0.4))[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "wrong_derivative")
    assert "closed-form scores are unsupported" in verdict.explanation
    assert judged(release(), wrong_derivative(), attack(0.01))[0].verdict is VerdictKind.LEAKS


def test_the_error_is_named_by_the_kind_of_the_data() -> None:
    verdict = judged(release(domain_kind="tabular"), attack(0.01))[0]
    assert "a feature RMSE of 0.01" in verdict.explanation
    assert "pixel" not in verdict.explanation


def both(adaptive: float | None, static: float | None, **more: Any) -> list[Finding]:
    """A defended release, attacked by either adversary."""
    findings: list[Finding] = [release()]
    for error, adversary in ((adaptive, "adaptive"), (static, "static")):
        suffix = "" if adversary == "adaptive" else "/static"
        findings.append(attack(error, suffix=suffix, adversary=adversary, **(more if error is None else {})))
    return findings


@pytest.mark.parametrize(("adaptive", "static", "who"), [(0.01, 0.25, "adaptive"), (0.25, 0.01, "static")])
def test_a_leak_by_either_adversary_counts(adaptive: float, static: float, who: str) -> None:
    verdict = judged(*both(adaptive, static))[0]
    assert verdict.verdict is VerdictKind.LEAKS
    assert verdict.details["adversary"] == who
    assert f"gn ({who} adversary) rebuilt" in verdict.explanation


def test_a_static_failure_beside_a_refusal_says_that_nobody_who_knows_was_tried() -> None:
    verdict = judged(*both(None, 0.25, status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note="it cannot"))[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "No adversary who knows the defenses could be tried: it cannot" in verdict.explanation
    assert "could be tried" not in judged(*both(0.25, 0.25))[0].explanation


@pytest.mark.parametrize(
    ("kind", "error", "guesses", "noted"),
    [
        ("tabular", 0.05, ("uniform",), True),
        ("signal", 0.05, (), True),
        ("tabular", 0.001, ("uniform",), False),
        ("tabular", 0.05, ("uniform", "public"), False),
        ("image", 0.05, (), False),
    ],
)
def test_a_leak_of_rows_says_where_nothing_tells_how_alike_they_are(
    kind: str, error: float, guesses: Sequence[str], noted: bool
) -> None:
    made = release(domain_kind=kind)
    if guesses:
        details = {"limits": [0.2], "guesses": list(guesses)}
        luck = score("chance_pixel_rmse", 0.2, details=details, evidence=Evidence.ESTIMATE)
        made = made.but(scores=(*made.scores, luck))
    verdict = judged(made, attack(error))[0]
    assert verdict.verdict is VerdictKind.LEAKS
    assert ("state public rows in the threat model" in verdict.explanation) is noted


@pytest.mark.parametrize(
    "note", ["no row of word.weight is above what noise of std 0.55 reaches", "every shared tensor is zero"]
)
def test_an_update_is_called_zero_only_where_the_attack_says_so(note: str) -> None:
    silent = [attack(None, name=name, outcome=Outcome.NO_SIGNAL, note=note) for name in ("rows", "spans")]
    found = judged(release(), *silent)[0].explanation
    assert found == (
        f"No attack found anything in the update to match: rows, spans: {note}. This is no evidence of safety."
    )
    assert "update is zero" not in Outcome.NO_SIGNAL.explanation

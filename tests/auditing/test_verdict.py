"""Verdicts from hand-written record lines."""

from __future__ import annotations

from typing import Any

import pytest

from gradleak.auditing import Thresholds, judge
from gradleak.results import PlanError, VerdictKind

Line = dict[str, Any]


def release(scenario: str = "undefended", example: int = 0, **more: Any) -> Line:
    return {
        "type": "item",
        "kind": "release",
        "item": f"{scenario}/example {example}",
        "scenario": scenario,
        "example": example,
        "status": "done",
        "gate": {"status": "consistent", "causes": []},
        "client_loss": 2.3,
        "loss_name": "cross_entropy",
    } | more


def attack(error: float | list[float] | None, *, outcome: str = "converged", **more: Any) -> list[Line]:
    item = {
        "type": "item",
        "kind": "attack",
        "item": "undefended/example 0/gn",
        "scenario": "undefended",
        "example": 0,
        "attack": "gn",
        "status": "done",
        "outcome": outcome,
        "note": "",
    } | more
    return [item] if error is None else [item, rmse("undefended/example 0/gn", error)]


def rmse(item: str, error: float | list[float]) -> Line:
    listed = error if isinstance(error, list) else [error]
    return {
        "type": "score",
        "item": item,
        "attack": None if item.endswith("baseline") else item.split("/")[-1],
        "name": "pixel_rmse",
        "value": min(listed),
        "details": {"per_example": listed},
    }


def control(name: str, passed: bool) -> Line:
    return {"type": "item", "kind": "control", "item": f"control/{name}", "passed": passed}


BASELINE = rmse("undefended/example 0/baseline", 0.3)


def test_an_attack_below_both_thresholds_leaks() -> None:
    verdicts = judge([release(), BASELINE, *attack(0.01)], Thresholds())
    assert [verdict.item for verdict in verdicts] == ["undefended/example 0", "undefended", "run"]
    assert {verdict.verdict for verdict in verdicts} == {VerdictKind.LEAKS}
    assert verdicts[0].details["best_attack"] == "gn"
    assert verdicts[0].details["threshold_pixel_rmse"] == 0.1


@pytest.mark.parametrize(("error", "baseline"), [(0.11, 0.3), (0.2, 0.1)])
def test_above_either_threshold_is_inconclusive(error: float, baseline: float) -> None:
    verdict = judge([release(), rmse("undefended/example 0/baseline", baseline), *attack(error)], Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.reason == "no_attack_reached_threshold"
    assert "no evidence of safety" in verdict.explanation


def test_one_example_of_a_batch_is_enough() -> None:
    lines = [release(), rmse("undefended/example 0/baseline", [0.3, 0.3]), *attack([0.4, 0.02])]
    assert judge(lines, Thresholds())[0].verdict is VerdictKind.LEAKS
    # Example 0 has the small error but also the small baseline: each is compared with its own.
    lines = [release(), rmse("undefended/example 0/baseline", [0.03, 0.9]), *attack([0.02, 0.4])]
    assert judge(lines, Thresholds())[0].verdict is VerdictKind.INCONCLUSIVE


def test_what_a_blind_guess_reaches_too_is_no_leak_and_no_failed_attack() -> None:
    for error, baseline in ((0.09, 0.15), (0.0, 0.0)):
        lines = [release(), rmse("undefended/example 0/baseline", baseline), *attack(error)]
        verdict = judge(lines, Thresholds())[0]
        assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_better_than_blind")


def luck(limits: list[float]) -> Line:
    item = "undefended/example 0/baseline"
    return {"type": "score", "item": item, "attack": None, "name": "chance_pixel_rmse", "details": {"limits": limits}}


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
    base = rmse("undefended/example 0/baseline", [0.3] * 3)
    lines = [release(batch_size=3), base, luck([0.01, 0.04, 0.08]), *attack(errors)]
    verdict = judge(lines, Thresholds())[0]
    assert (verdict.verdict is VerdictKind.LEAKS) is leaks
    assert verdict.details["chance_pixel_rmse"] == 0.01
    if not leaks:
        assert verdict.reason == "no_better_than_chance"
        assert "come as near to one of 3 such examples by luck" in verdict.explanation
        assert "only below 0.01" in verdict.explanation
    elif errors[0] == 0.005:
        assert "to a pixel RMSE of 0.005, below the 0.01 that luck reaches (limits: 0.1" in verdict.explanation
    else:
        assert (
            "rebuilt 3 examples from the update alone, to a pixel RMSE of at most 0.07, which luck"
            in verdict.explanation
        )


def test_values_that_are_guessed_exactly_are_named() -> None:
    lines = [release(batch_size=1), BASELINE, luck([0.0]), *attack(0.0)]
    verdict = judge(lines, Thresholds())[0]
    assert verdict.reason == "no_better_than_chance"
    assert "as near to such an example by luck: such values are guessed exactly" in verdict.explanation


def test_luck_does_not_hide_that_the_model_has_learned_the_batch() -> None:
    lines = [release(client_loss=0.001), BASELINE, luck([0.01]), *attack(0.05)]
    verdict = judge(lines, Thresholds())[0]
    assert verdict.reason == "converged_model"
    assert "Besides: gn ended at a pixel RMSE of 0.05, but blind guesses come as near" in verdict.explanation


def test_a_range_that_makes_an_example_look_constant_is_named() -> None:
    note = "all values lie in 0 to 1, 1/255 of the declared range 0 to 255"
    lines = [release(range_note=note), rmse("undefended/example 0/baseline", 0.001), *attack(0.0009)]
    verdict = judge(lines, Thresholds())[0]
    assert verdict.reason == "no_better_than_blind"
    assert f"almost constant in units of its range: {note})" in verdict.explanation


def refused(scenario: str, name: str = "gn", note: str = "gn needs generator") -> list[Line]:
    place = {"item": f"{scenario}/example 0/{name}", "scenario": scenario, "attack": name}
    return attack(None, status="refused", outcome="unsupported", note=note, **place)


def planted(name: str = "gn", *, passed: bool | None = None, note: str = "gn needs generator", **more: Any) -> Line:
    state = {"status": "refused" if passed is None else "done", "note": note, "attack": name}
    return control("positive", passed=True) | {"passed": passed} | state | more


def reasons(lines: list[Line]) -> dict[str, str]:
    return {verdict.item: verdict.reason for verdict in judge(lines, Thresholds())}


def test_attacks_that_are_all_refused_are_the_reason_whatever_became_of_the_control() -> None:
    alone = judge([release(), BASELINE, *refused("undefended")], Thresholds())
    for line in (planted(), planted(passed=False), planted(status="failed", note="boom")):
        found = judge([line, release(), BASELINE, *refused("undefended")], Thresholds())
        assert [(one.reason, one.explanation) for one in found] == [(one.reason, one.explanation) for one in alone]
    assert {one.reason for one in alone} == {"no_attack_finished"}
    assert "gn needs generator" in alone[-1].explanation
    assert "shown to leak" not in alone[-1].explanation  # nothing was tested


def test_a_planted_leak_that_was_refused_is_a_failed_control_where_its_attack_ran() -> None:
    other = [release("other"), rmse("other/example 0/baseline", 0.3)]
    ran = attack(0.4, item="other/example 0/gn", scenario="other")
    ran[1] |= {"item": "other/example 0/gn"}
    lines = [planted(), release(), BASELINE, *refused("undefended"), *other, *ran]
    found = reasons(lines)
    assert found["undefended/example 0"] == "no_attack_finished"
    assert found["other/example 0"] == found["other"] == found["run"] == "control_failed"
    last = judge(lines, Thresholds())[-1].explanation
    assert "control/positive could not be run (gn needs generator), so no result" in last
    assert "The only scenario that was tried" in last
    assert "1 not attacked" in last


@pytest.mark.parametrize("error", [0.01, 0.4])
def test_a_planted_leak_for_an_attack_that_never_runs_takes_nothing_from_the_others(error: float) -> None:
    lines = [planted(), release(), BASELINE, *refused("undefended")]
    ran = attack(error, item="undefended/example 0/ig", attack="ig")
    ran[1] |= {"item": "undefended/example 0/ig", "attack": "ig"}
    verdict = judge([*lines, *ran], Thresholds())[0]
    assert verdict.reason == ("attack_reached_threshold" if error < 0.1 else "no_attack_reached_threshold")
    assert "No leak was planted, since gn, which was to find it, is refused everywhere" in verdict.explanation
    # Found nothing, though it could run, and a crash, are failures as before.
    for line in (planted(passed=False), planted("ig"), planted(status="failed", note="boom")):
        assert judge([line, *lines[1:], *ran], Thresholds())[0].reason == "control_failed"


def test_a_scenario_whose_attacks_were_refused_is_none_that_does_not_leak() -> None:
    leaking = [release(), BASELINE, *attack(0.01)]
    found = judge([*leaking, release("other"), *refused("other")], Thresholds())
    run = found[-1]
    assert (run.verdict, run.details["leaking"], run.details["of"]) == (VerdictKind.LEAKS, 1, 1)
    assert "1 not attacked" in run.explanation
    failing = judge([release("other"), *refused("other"), release(), BASELINE, *attack(0.4)], Thresholds())[-1]
    assert failing.reason == "no_attack_reached_threshold"


def test_names_of_attacks_cannot_stand_for_other_items() -> None:
    """The score of the validation routine, which starts from the truth, is never an attack's."""
    perfect = rmse("undefended/example 0/perfect_attacker", 1e-9) | {"attack": None}
    named = attack(0.5)
    for row in named:
        row |= {"item": "undefended/example 0/perfect_attacker", "attack": "perfect_attacker"}
    verdict = judge([release(), BASELINE, perfect, *named], Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.details["pixel_rmse"] == 0.5


def test_a_leak_without_its_noise_control_is_not_believed() -> None:
    control = {"type": "item", "kind": "control", "item": "control/negative/gn", "attack": "gn", "passed": None}
    verdict = judge([control, release(), BASELINE, *attack(0.0)], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "control_not_run")


def test_the_noise_control_of_an_adversary_speaks_of_that_one() -> None:
    own = {"type": "item", "kind": "control", "item": "control/negative/gn", "attack": "gn", "passed": True}
    static = own | {"item": "control/negative/gn/static", "adversary": "static", "passed": None}

    def verdict_of(adversary: str, *controls: Line) -> str:
        return judge([*controls, release(), BASELINE, *attack(0.0, adversary=adversary)], Thresholds())[0].reason

    assert verdict_of("static", own, static) == "control_not_run"
    assert verdict_of("adaptive", own, static) == "attack_reached_threshold"
    # A record from before there was one of the static adversary.
    assert verdict_of("static", own) == "attack_reached_threshold"
    assert verdict_of("static", own | {"passed": None}) == "control_not_run"
    assert verdict_of("adaptive", own, static | {"passed": False}) == "control_failed"


@pytest.mark.parametrize("name", ["positive", "negative"])
def test_a_failed_control_makes_everything_inconclusive(name: str) -> None:
    verdicts = judge([control(name, passed=False), release(), BASELINE, *attack(0.0)], Thresholds())
    assert {(verdict.verdict, verdict.reason) for verdict in verdicts} == {
        (VerdictKind.INCONCLUSIVE, "control_failed"),
    }
    assert f"control/{name}" in verdicts[0].explanation


def test_an_inconsistent_update_gets_no_verdict_but_causes() -> None:
    """U33."""
    gate = {"status": "inconsistent", "causes": ["the sign is reversed"]}
    verdict = judge([release(gate=gate), BASELINE, *attack(0.0)], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "inconsistent_update")
    assert "The sign is reversed" in verdict.explanation
    assert "gn came within a pixel RMSE of 0" in verdict.explanation


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "no_attack_ran"),
        (attack(None, outcome="no_signal"), "no_signal"),
        (attack(None, status="refused", outcome="unsupported", note="needs targets"), "no_attack_finished"),
        (attack(None, status="failed", outcome="failed", note="boom"), "no_attack_finished"),
        (attack(None, outcome="not_finite"), "no_attack_finished"),
    ],
)
def test_every_silence_has_its_own_reason(lines: list[Line], reason: str) -> None:
    verdict = judge([release(), BASELINE, *lines], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, reason)
    assert "safe" not in verdict.explanation.replace("evidence of safety", "")


def test_a_converged_model_is_not_low_risk() -> None:
    """U45."""
    verdict = judge([release(client_loss=1e-5), BASELINE, *attack(0.4)], Thresholds())[0]
    assert verdict.reason == "converged_model"
    assert "early round" in verdict.explanation


def test_the_run_leaks_if_one_scenario_does() -> None:
    other = release("noisy", 0)
    verdicts = judge([release(), BASELINE, *attack(0.01), other], Thresholds())
    by_item = {verdict.item: verdict for verdict in verdicts}
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


def bound(value: float | None = 0.2, *, item: str = "undefended/example 0", **more: Any) -> Line:
    """A van Trees score as an audit writes it."""
    details = {
        "noise_std": 0.1,
        "release_noise_std": 0.1,
        "holds_for_release": True,
        "prior": {"origin": "Gaussian fitted to 300 public examples"},
        "prior_error": 0.27,
        "confidence": 0.95,
    }
    return {
        "type": "score", "item": f"{item}/setting", "attack": None, "name": "bayesian_cramer_rao", "value": value,
        "unit": "pixel_rmse", "evidence": "lower_bound", "note": "", "details": details,
    } | more  # fmt: skip


def detailed(**changed: Any) -> Line:
    row = bound()
    return row | {"details": row["details"] | changed}


def test_a_bound_above_the_limit_is_bounded_and_says_what_it_rests_on() -> None:
    verdicts = judge([release(), BASELINE, bound(), *attack(0.4)], Thresholds())
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
    assert judge([release(), BASELINE, bound()], Thresholds())[0].verdict is VerdictKind.BOUNDED


def test_the_weakest_bound_counts() -> None:
    verdict = judge([release(), BASELINE, bound(0.3), bound(0.09)], Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert verdict.details["bound"] == 0.09


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (bound(0.1), "is not above the limit of 0.1"),
        (bound(None, note="the release carries no noise"), "has no value: the release carries no noise"),
        (bound(unit="input"), "state unit = 'pixel_rmse'"),
        (bound(evidence="estimate"), "an estimate, no bound"),
        (detailed(holds_for_release=False), "more noise than the release carries"),
        (detailed(prior_error=0.7), "a prior wider than any data"),
    ],
)
def test_what_is_no_bound_above_the_limit_says_why(row: Line, reason: str) -> None:
    verdict = judge([release(), BASELINE, row, *attack(0.4)], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_attack_reached_threshold")
    assert reason in verdict.explanation


def test_no_bound_where_an_attack_leaks_or_comes_as_near() -> None:
    assert judge([release(), BASELINE, bound(), *attack(0.01)], Thresholds())[0].verdict is VerdictKind.LEAKS
    # Within the limit, but guessing does nearly as well: no leak, and no bound either.
    lines = [release(), rmse("undefended/example 0/baseline", 0.15), bound(), *attack(0.09)]
    verdict = judge(lines, Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_better_than_blind")
    assert "on this very example" in verdict.explanation


@pytest.mark.parametrize(("blind", "value"), [(0.05, 0.2), (0.12, 0.26)])
def test_no_bound_where_guessing_is_below_it(blind: float, value: float) -> None:
    lines = [release(), rmse("undefended/example 0/baseline", blind), bound(value), *attack(0.4)]
    verdict = judge(lines, Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "guessing blindly" in verdict.explanation


def chance(value: float | None = 0.02, *, item: str = "undefended/example 0", **more: Any) -> Line:
    """A score of reconstruction robustness as an audit writes it."""
    details = {
        "within": 0.1, "mu": 0.5, "kappa": 0.005, "each_example": 0.02, "examples": 1, "rounds": 1, "hidden": "example",
        "sensitivity": 1.0, "std": 2.0, "epsilon": 1.9, "delta": 1e-5,
        "prior": {"origin": "drawn like 900 public examples", "examples": 900, "confidence": 0.95},
    } | more.pop("details", {})  # fmt: skip
    return {
        "type": "score", "item": f"{item}/setting", "attack": None, "name": "reconstruction_probability", "value": value,
        "unit": "probability", "evidence": "upper_bound", "note": "", "details": details,
    } | more  # fmt: skip


def test_differential_privacy_that_leaves_no_fair_chance_is_bounded_and_says_what_it_rests_on() -> None:
    verdicts = judge([release(), BASELINE, chance(), *attack(0.4)], Thresholds())
    assert {verdict.verdict for verdict in verdicts} == {VerdictKind.BOUNDED}
    assert verdicts[0].reason == "dp_bound"
    text = verdicts[-1].explanation
    for part in ("an example to a pixel RMSE of 0.1 with a probability above 0.02", "the limit of 0.05", "κ = 0.005",
                 "ε = 1.9 at δ = 1e-05", "clipping to 1 with noise of std 2 on the sum", "900 public examples",
                 "κ at 95% confidence", "an average", "several releases"):  # fmt: skip
        assert part in text
    assert verdicts[0].details["reconstruction_probability"] == 0.02
    assert verdicts[0].details["threshold_reconstruction_probability"] == 0.05


def test_the_words_fit_a_batch_several_rounds_and_a_hidden_client() -> None:
    row = chance(details={"examples": 4, "rounds": 3, "hidden": "client"})
    text = judge([release(), BASELINE, row], Thresholds())[0].explanation
    assert "who sees 3 such releases of the same data rebuilds any of the 4 examples" in text
    assert "the differential privacy of the whole client" in text
    assert "on the update" in text
    assert "so may who sees several" not in text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (chance(0.06), "is above the limit of 0.05"),
        (
            chance(None, note="the release has no differential privacy: Prune: heuristic"),
            "no bound: the release has no",
        ),
        (chance(details={"within": 0.05}), "state within = 0.1"),
        (chance(evidence="estimate"), "an estimate, no bound"),
    ],
)
def test_what_leaves_more_than_the_stated_chance_says_why(row: Line, reason: str) -> None:
    verdict = judge([release(), BASELINE, row, *attack(0.4)], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_attack_reached_threshold")
    assert reason in verdict.explanation


def test_the_largest_chance_counts_and_the_limit_is_the_plan_s() -> None:
    lines = [release(), BASELINE, chance(0.01), chance(0.06)]
    assert judge(lines, Thresholds())[0].verdict is VerdictKind.INCONCLUSIVE
    assert judge(lines, Thresholds(reconstruction_probability=0.1))[0].verdict is VerdictKind.BOUNDED
    # An error within a larger limit is at least as likely, so that its chance bounds this one's too.
    assert judge([release(), BASELINE, chance()], Thresholds(pixel_rmse=0.05))[0].verdict is VerdictKind.BOUNDED


def test_an_attack_that_leaks_or_comes_as_near_wins_over_differential_privacy() -> None:
    assert judge([release(), BASELINE, chance(), *attack(0.01)], Thresholds())[0].verdict is VerdictKind.LEAKS
    lines = [release(), rmse("undefended/example 0/baseline", 0.15), chance(), *attack(0.09)]
    assert judge(lines, Thresholds())[0].reason == "no_better_than_blind"
    lines = [release(), rmse("undefended/example 0/baseline", 0.05), chance(), *attack(0.4)]
    verdict = judge(lines, Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "guessing blindly meets within 0.05" in verdict.explanation
    sent = release(given=True, gate={"status": "not_applicable", "chi_square_z": 40.0})
    verdict = judge([sent, BASELINE, chance()], Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "not shown to carry" in verdict.explanation


def test_one_of_two_bounds_is_enough() -> None:
    verdict = judge([release(), BASELINE, bound(0.05), chance()], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.BOUNDED, "dp_bound")
    assert "van Trees" not in verdict.explanation
    verdict = judge([release(), BASELINE, bound(), chance(0.5)], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.BOUNDED, "bayesian_bound")
    assert "differential privacy" not in verdict.explanation
    verdict = judge([release(), BASELINE, bound(), chance()], Thresholds())[0]
    assert "van Trees" in verdict.explanation
    assert "differential privacy" in verdict.explanation
    verdict = judge([release(), BASELINE, bound(0.05), chance(0.5)], Thresholds())[0]
    assert verdict.verdict is VerdictKind.INCONCLUSIVE
    assert "not above the limit" in verdict.explanation
    assert "above the limit of 0.05" in verdict.explanation


def test_the_narrowest_of_several_bounded_releases_is_named() -> None:
    other = [release("other"), rmse("other/example 0/baseline", 0.3)]
    for first, second, want in ((0.04, 0.3, "0.04"), (0.01, 0.101, "van Trees")):
        rows = [release(), BASELINE, chance(first), *other, bound(second, item="other/example 0")]
        text = judge(rows, Thresholds())[-1].explanation
        assert text.startswith("All 2 scenarios are bounded.")
        assert want in text


@pytest.mark.parametrize("name", ["positive", "negative"])
def test_no_bound_where_a_control_failed(name: str) -> None:
    verdict = judge([control(name, passed=False), release(), BASELINE, bound(), *attack(0.4)], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "control_failed")


@pytest.mark.parametrize(
    ("gate", "bounded"),
    [
        ({"status": "consistent"}, True),
        ({"status": "not_applicable", "chi_square_z": 1.2}, True),  # as much noise as stated, more than the signal
        ({"status": "not_applicable", "chi_square_z": -40.0}, False),
        ({"status": "not_applicable", "chi_square_z": None}, False),
        ({"status": "inconsistent", "causes": []}, False),
    ],
)
def test_an_update_that_was_sent_has_to_carry_the_noise(gate: Line, bounded: bool) -> None:
    verdict = judge([release(given=True, gate=gate), BASELINE, bound()], Thresholds())[0]
    assert (verdict.verdict is VerdictKind.BOUNDED) is bounded


def test_one_bounded_scenario_does_not_bound_the_run() -> None:
    noisy = [release("noisy"), rmse("noisy/example 0/baseline", 0.3), bound(item="noisy/example 0")]
    verdicts = {v.item: v for v in judge([release(), BASELINE, *attack(0.4), *noisy], Thresholds())}
    assert verdicts["noisy"].verdict is VerdictKind.BOUNDED
    assert verdicts["run"].verdict is VerdictKind.INCONCLUSIVE
    assert "1 bounded" in verdicts["run"].explanation
    verdicts = {v.item: v for v in judge([release(), BASELINE, *attack(0.01), *noisy], Thresholds())}
    assert verdicts["run"].verdict is VerdictKind.LEAKS
    assert "1 of 2 scenarios leaks (1 bounded)" in verdicts["run"].explanation
    verdicts = {v.item: v for v in judge([release(), BASELINE, *attack(0.4)], Thresholds())}
    assert verdicts["run"].explanation.startswith("The only scenario is not shown to leak, which is no proof")


def test_a_wrong_derivative_is_the_reason_why_an_attack_failed() -> None:
    check = {
        "type": "item", "kind": "derivative", "item": "undefended/example 0/derivative", "scenario": "undefended",
        "example": 0, "status": "refused", "check": "wrong",
    }  # fmt: skip
    verdict = judge([release(), BASELINE, check, *attack(0.4)], Thresholds())[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "wrong_derivative")
    assert "closed-form scores are unsupported" in verdict.explanation
    assert judge([release(), BASELINE, check, *attack(0.01)], Thresholds())[0].verdict is VerdictKind.LEAKS


def test_the_error_is_named_by_the_kind_of_the_data() -> None:
    verdict = judge([release(domain_kind="tabular"), BASELINE, *attack(0.01)], Thresholds())[0]
    assert "a feature RMSE of 0.01" in verdict.explanation
    assert "pixel" not in verdict.explanation

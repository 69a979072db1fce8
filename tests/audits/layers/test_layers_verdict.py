"""Verdicts on layers, from findings that were made up: what was not measured, what they leave out; misspelled groupings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import build_plan, run_plan
from gradleak.audits.layers import LayersAudit
from gradleak.reporting import words
from gradleak.results import Control, Evidence, Grounds, Leakier, Outcome, PlanError, Score, Verdict, VerdictKind
from gradleak.results.findings.layers import LAYER, LayersFinding

ROOT = Path(__file__).parents[3]
GROUPS = {"use": "tests.auditing.small_population:two_groups"}
NONE = (Outcome.UNSUPPORTED, "LayerNoise.std: expected names of layers")


def made(name: str, value: float | None, interval: tuple[float, float] | None = None, **details: Any) -> LayersFinding:
    score = Score(
        name=name,
        value=value,
        unit="nats",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ESTIMATE,
        n=60,
        interval=interval,
        outcome=Outcome.CONVERGED if value is not None else NONE[0],
        note="" if value is not None else NONE[1],
        details=details,
        about={LAYER: "0"},
    )
    told = {"told": "sensitive", "attribute": "gender"} if name == "latent_information" else {}
    place = {"item": f"plain/audit/{name}", "audit": "audit", "scenario": "plain"}
    return LayersFinding(**place, **told, measure=name, scores=(score,))


def judged(*findings: LayersFinding, before: Sequence[Verdict] = ()) -> list[Verdict]:
    return list(LayersAudit.judge(findings, Grounds(findings=findings, verdicts=before)))


def verdict_on(*findings: LayersFinding) -> Verdict:
    (verdict,) = judged(*findings)
    return verdict


def test_what_has_no_value_was_not_found_to_tell_nothing() -> None:
    verdict = verdict_on(made("latent_information", None), made("mean_sensitivity", 1.0))
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "not_judged")
    assert NONE[1] in verdict.explanation
    assert "In no layer was more told" not in verdict.explanation
    nothing = verdict_on(made("latent_information", 0.1, (-0.1, 0.3)))
    assert nothing.reason == "nothing_told"
    assert "hold for all layers together" in nothing.explanation


@pytest.mark.parametrize("attribute", [True, False])
def test_an_inversion_that_found_the_inputs_is_told_beside_a_verdict_that_does_not_read_it(attribute: bool) -> None:
    lines = [made("latent_information", 0.1, (-0.1, 0.3))] if attribute else []
    found = verdict_on(*lines, made("original_information", 19.7, (19.6, 19.7), against_blind=12.0))
    assert "This verdict is not about the inputs: an inversion that sees 0 alone reached 19.7 nats" in found.explanation
    for value, interval, blind in ((6.0, (-3.0, 15.0), 2.0), (6.0, (4.0, 8.0), -0.5)):
        unclear = verdict_on(*lines, made("original_information", value, interval, against_blind=blind))
        assert "inversion" not in unclear.explanation


def test_layers_that_were_compared_say_nothing_beside_what_was_attacked() -> None:
    compared = made("mean_sensitivity", 1.0)
    assert verdict_on(compared).reason == "layers_compared"
    tried = Verdict(item="plain/0", verdict=VerdictKind.INCONCLUSIVE, reason="x", explanation="", noun="releases")
    assert judged(compared, before=[tried]) == []
    assert [one.reason for one in judged(compared, before=[replace(tried, tested=False)])] == ["layers_compared"]
    assert len(judged(compared, made("latent_information", 0.1, (-0.1, 0.3)), before=[tried])) == 1


def test_a_measure_that_found_something_in_shuffled_attributes_is_not_read() -> None:
    told = made("latent_information", 0.5, (0.4, 0.6))
    broken = told.but(item="control", scores=(), control=Control(planted=False, passed=False, of=told.measure))
    assert verdict_on(told, broken).reason == "control_failed"


def test_the_next_step_of_layers_speaks_of_what_their_report_has() -> None:
    verdict = verdict_on(made("latent_information", 0.5, (0.4, 0.6)))
    assert verdict.verdict is VerdictKind.LEAKS
    step = words.next_step(verdict)
    assert "table below" not in step
    assert "the layers to protect first" in step
    assert words.reason("not_judged") == "whether the attribute is told was not found out"


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ({"consecutiv": 2}, "got 'consecutiv' = 2; did you mean 'consecutive'?"),
        ({"groups": {"head": ["2"]}}, "or groups of layers such as { head = [\"4\"] }, got 'groups' = {'head': ['2']}"),
        ({"head": "2"}, "got 'head' = '2'"),
    ],
)
def test_a_misspelled_grouping_says_what_was_expected(by: object, message: str) -> None:
    content = {
        "model": {"use": "mlp", "features": 6, "hidden": [8], "classes": 2},
        "layers": {
            "group": {
                "data": {"use": "tests.auditing.small_population:two_groups"},
                "by": by,
                "measures": [{"use": "Sensitivity"}],
            }
        },
        "scenarios": [{"name": "plain"}],
    }
    with pytest.raises(PlanError, match=r"layers\.group\.by: expected") as error:
        build_plan(content, folder=ROOT)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_layers_beside_releases_that_nobody_attacked_have_a_verdict_of_their_own(tmp_path: Path) -> None:
    section = {"data": GROUPS, "count": 40, "releases": 2, "measures": [{"use": "Sensitivity"}]}
    mine = build_plan(
        {
            "name": "compared",
            "model": {"use": "mlp", "features": 6, "hidden": [4], "classes": 2, "activation": "tanh"},
            "data": {"use": "tests.auditing.small_population:rows"},
            "layers": {"group": section},
            "scenarios": [{"name": "plain"}],
        },
        folder=ROOT,
    )
    record = run_plan(mine, tmp_path, jobs=1)
    by_item = {verdict.item: verdict.reason for verdict in record.verdicts}
    assert by_item["plain/group"] == by_item["plain"] == by_item["run"] == "layers_compared"
    assert [reason for item, reason in by_item.items() if "example" in item] == ["no_attack_ran"] * 3

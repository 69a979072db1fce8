from __future__ import annotations

import json
import math

import pytest

from gradleak.results import (
    Control,
    Evidence,
    Finding,
    Grounds,
    InputError,
    Leakier,
    NumberOrNone,
    Outcome,
    Score,
    Status,
    Subject,
    UnknownFinding,
    Verdict,
    VerdictKind,
    finding_class,
    kinds,
)

FIRST = Subject(noun="example", name="0")


class Own(Finding):
    kind: str = "own"
    loss: NumberOrNone = None
    history: tuple[float, ...] = ()


def score(name: str, value: float, evidence: Evidence = Evidence.EXACT, **about: str | int) -> Score:
    return Score(name=name, value=value, unit="1", leakier=Leakier.LOWER, evidence=evidence, about=about)


def test_a_finding_survives_json_with_infinities_outcomes_and_scores() -> None:
    finding = Own(
        item="a/b",
        audit="own",
        scenario="a",
        subject=FIRST,
        outcome=Outcome.BUDGET_SPENT,
        loss=math.inf,
        history=(1.0, -math.inf),
        scores=(score("error", 0.25, round=3),),
        control=Control(planted=True, passed=None, baseline=0.5),
    )
    line = json.loads(json.dumps(finding.to_dict(), allow_nan=False))
    assert line["loss"] == "inf"
    assert line["outcome"] == "budget_spent"
    assert Own.from_dict(line) == finding


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lost": 1}, "lost is wrong"),
        ({"loss": "much"}, "loss is wrong"),
        ({"outcome": "fine"}, "no outcome 'fine'"),
        ({"status": "lazy"}, "status is wrong"),
        ({"scores": [{"name": "x"}]}, "scores.0 is wrong"),
        ({"scores": 5}, "scores is wrong"),
        ({"item": None}, "item is wrong"),
        ({"control": {"planted": True, "extra": 1}}, "control.extra is wrong"),
    ],
)
def test_a_line_that_is_no_finding_of_its_kind_is_refused_in_one_line(change: dict[str, object], message: str) -> None:
    line = Own(item="a", audit="own").to_dict()
    with pytest.raises(InputError, match=message):
        Own.from_dict({**line, **change})


def test_a_kind_that_is_not_known_keeps_its_fields() -> None:
    assert finding_class("of another package") is UnknownFinding
    line = {**Own(item="a", audit="own", loss=1.5).to_dict(), "kind": "of another package"}
    found = UnknownFinding.from_dict(line)
    assert found.model_extra == {"loss": 1.5, "history": []}
    assert found.to_dict() == line


def test_every_kind_of_the_registry_has_a_finding_whose_further_fields_have_defaults() -> None:
    for name, kind in kinds().items():
        made = kind.load_finding()(item="a", audit="b")  # type: ignore[call-arg]  # the kind is a default of each
        assert made.kind == name
        assert made.but(status=Status.FAILED, outcome=Outcome.FAILED).status is Status.FAILED
        assert type(made).from_dict(made.to_dict()) == made


def test_scores_are_found_by_name_unit_and_what_they_are_about() -> None:
    finding = Own(item="a", audit="own", scores=(score("e", 1.0, round=1), score("e", 2.0, round=2), score("f", 3.0)))
    assert finding.value("e") == 1.0
    assert finding.value("e", round=2) == 2.0
    assert finding.value("f", "1") == 3.0
    assert finding.score("f", "dB") is None
    assert finding.value("g") is None


def test_grounds_answer_by_scenario_subject_name_and_evidence_and_leave_controls_out() -> None:
    attack = Own(item="1", audit="x", scenario="a", subject=FIRST, scores=(score("error", 0.5, Evidence.ATTACK),))
    bound = Own(item="2", audit="y", scenario="a", subject=FIRST, scores=(score("error", 0.1, Evidence.LOWER_BOUND),))
    other = Own(item="3", audit="y", scenario="b", subject=FIRST, scores=(score("error", 0.9),))
    control = Own(item="4", audit="x", scenario="a", subject=FIRST, control=Control(planted=False))
    grounds = Grounds(findings=[attack, bound, other, control])
    assert [finding.item for finding in grounds.about("a", FIRST)] == ["1", "2"]
    assert [found.value for _, found in grounds.scores("error", "a", FIRST)] == [0.5, 0.1]
    assert [finding.item for finding, _ in grounds.with_evidence(Evidence.LOWER_BOUND, "a", FIRST)] == ["2"]
    assert list(grounds.controls("x")) == [control]
    assert grounds.about("a") == ()
    verdict = Verdict(item="1", verdict=VerdictKind.LEAKS, reason="r", explanation="e")
    assert grounds.given([verdict]).verdicts == (verdict,)
    assert grounds.given([verdict]).about("b", FIRST) == [other]

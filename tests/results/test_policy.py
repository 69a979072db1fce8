"""Policy of a plan: references stay out, requirements hold scenarios to themselves, and nothing passes unjudged."""

from __future__ import annotations

from typing import Any

import pytest

from gradleak.results import RUN, Policy, Record, Requirement, Verdict, VerdictKind

LEAKS, BOUNDED, OPEN = VerdictKind.LEAKS, VerdictKind.BOUNDED, VerdictKind.INCONCLUSIVE


def verdict(item: str, kind: VerdictKind, *, scenario: str | None = None, audit: str | None = None) -> Verdict:
    return Verdict(item=item, verdict=kind, reason="r", explanation="e.", scenario=scenario, audit=audit)


def of(name: str, kind: VerdictKind) -> list[Verdict]:
    """The verdict on a scenario behind that of its only release."""
    return [verdict(f"{name}/0", kind, scenario=name, audit="release"), verdict(name, kind, scenario=name)]


def recorded(*scenarios: dict[str, Any]) -> Record:
    return Record(run={"plan": {"scenarios": list(scenarios)}})


@pytest.mark.parametrize(
    ("required", "kind", "met"),
    [
        ("bounded", BOUNDED, True),
        ("bounded", OPEN, False),
        ("bounded", LEAKS, False),
        ("bounded", None, False),
        ("not leaks", BOUNDED, True),
        ("not leaks", OPEN, True),
        ("not leaks", LEAKS, False),
        ("not leaks", None, False),
    ],
)
def test_a_requirement_is_met_by_verdicts_alone(required: str, kind: VerdictKind | None, met: bool) -> None:
    assert Requirement(required).met_by(kind) is met


def test_the_header_states_it() -> None:
    record = recorded(
        {"name": "a", "reference": True, "require": None},
        {"name": "b", "reference": False, "require": "not leaks"},
        {"name": "c", "require": "anything"},
        {"name": "d"},
    )
    policy = Policy.of(record)
    assert policy.references == {"a"}
    assert policy.required == {"b": Requirement.NOT_LEAKS}
    assert Policy.of(Record(run={"plan": "damaged"})) == Policy.of(Record(run={})) == Policy()


def test_without_a_policy_every_verdict_that_is_named_occurs() -> None:
    verdicts = [*of("plain", LEAKS), *of("noise", OPEN), verdict(RUN, LEAKS)]
    assert [one.item for one in Policy().breaches(verdicts, [LEAKS])] == ["plain/0", "plain", RUN]
    assert [one.item for one in Policy().breaches(verdicts, [OPEN])] == ["noise/0", "noise"]
    assert Policy().breaches(verdicts, [BOUNDED]) == Policy().breaches(verdicts) == []


def test_no_gate_counts_a_reference() -> None:
    verdicts = [*of("plain", LEAKS), *of("noise", OPEN), verdict(RUN, OPEN)]
    policy = Policy(references=frozenset({"plain"}))
    assert policy.breaches(verdicts, [LEAKS]) == []
    assert [one.item for one in policy.breaches(verdicts, [LEAKS, OPEN])] == ["noise/0", "noise", RUN]


def test_a_scenario_is_held_to_what_is_required_of_it() -> None:
    verdicts = [*of("formal", OPEN), *of("noise", OPEN), *of("free", OPEN), verdict(RUN, OPEN)]
    policy = Policy(required={"formal": Requirement.BOUNDED, "noise": Requirement.NOT_LEAKS})
    found = policy.breaches(verdicts, [LEAKS])
    assert [str(one) for one in found] == ["formal: required bounded, got inconclusive"]
    # "noise" may be inconclusive, since its own requirement says so; "free" may not.
    assert [one.item for one in policy.breaches(verdicts, [OPEN])] == ["formal", "free/0", "free"]


def test_a_scenario_that_nothing_judges_passes_no_gate() -> None:
    (found,) = Policy(required={"silent": Requirement.NOT_LEAKS}).breaches(of("loud", BOUNDED))
    assert str(found) == "silent: required not leaks, got no verdict"

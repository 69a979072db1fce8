"""The items of the papers: each is whole, names what exists, and stands on the page."""

from __future__ import annotations

import ast
import importlib
import re
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradleak.results import InputError
from studies.items import PAPERS, Checked, Item, Reading, Run, State, judge, keep, listing, page, read, records
from studies.items.kept import LARGEST, Kept
from studies.items.page import PAGE, changed, command, settings_of
from studies.items.rules import Above, Below, Between, Covers, Exceeds, Factor, Near, Size
from studies.runner import app, known_studies
from studies.study import Cost, Finding, StudyResult

ROOT = Path(__file__).parents[3]
ITEMS = [(paper.citation.key, item) for paper in PAPERS for item in paper.items]
RUNS = {run.record: run for _, item in ITEMS for run in item.runs}
KEPT = records()
SAID = re.compile(r"gradleak study (\w+)((?: --?\w+ (?:'[^']*'|\S+))*)")


def test_no_item_of_a_paper_is_missing() -> None:
    # As many as an independent reading of the papers listed; some rows hold several figures or equations.
    assert {paper.citation.key: len(paper.items) for paper in PAPERS} == {
        "zhang2023i2f": 32, "fang2024igims": 20, "li2024inference": 28, "hong2024lavp": 10, "mo2021leakage": 17,
    }  # fmt: skip


@pytest.mark.parametrize("item", [item for _, item in ITEMS], ids=[f"{key}, {item.number}" for key, item in ITEMS])
def test_an_item_says_what_decides_it(item: Item) -> None:
    assert item.says
    assert not item.says.endswith(".")
    assert not item.command or item.lacking
    assert all(run.readings for run in item.runs)
    state = judge(item, KEPT).state
    assert (state is State.NOTHING) == (not item.runs and not item.code and not item.lacking)


def test_every_public_object_and_test_exists() -> None:
    for checked in {checked for _, item in ITEMS for checked in item.code}:
        _found(checked.name)
        file, *_, name = checked.test.split("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, checked.test


def test_every_study_and_setting_exists() -> None:
    known = known_studies()
    for run in RUNS.values():
        settings = settings_of(known[run.study])
        assert set(run.settings) <= set(settings), run.record
    for _, item in ITEMS:
        for name, rest in SAID.findall(item.command):
            assert set(re.findall(r"--set '?(\w+)=", rest)) <= set(settings_of(known[name]))


def test_runs_of_one_record_agree_on_their_settings() -> None:
    for _, item in ITEMS:
        for run in item.runs:
            assert run.settings == RUNS[run.record].settings


def test_every_record_is_used_small_and_as_its_item_says() -> None:
    kept = KEPT
    assert set(kept) <= set(RUNS)
    for name, record in kept.items():
        assert (ROOT / "studies" / "records" / f"{name}.json").stat().st_size <= LARGEST
        assert "/" not in repr([value for value in record.settings.values() if isinstance(value, str)])
        described = settings_of(known_studies()[record.study])
        assert set(record.settings) <= set(described), name
        assert dict(RUNS[name].settings).items() <= changed(record, known_studies()).items(), name


def test_values_of_earlier_versions_stand_in_the_documentation() -> None:
    for _, item in ITEMS:
        for run in item.runs:
            lines = _page(run).splitlines() if run.page else []
            for reading in run.readings:
                if reading.printed and run.record not in KEPT:
                    reading.earlier()
                    assert any(reading.printed in line and reading.where in line for line in lines), reading


def test_pages_and_places_that_items_point_to_are_there() -> None:
    for run in RUNS.values():
        if run.page:
            _, _, anchor = run.page.partition("#")
            heads = {_slug(line.lstrip("# ")) for line in _page(run).splitlines() if line.startswith("#")}
            assert not anchor or anchor in heads, (run.page, sorted(heads))


def test_the_page_is_that_of_the_records() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(PAPERS, KEPT, known_studies()), "run `python -m studies.items`"
    assert all(f"| {item.number} |" in text for _, item in ITEMS)
    assert "explanation/what-holds.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_list_shows_every_item_with_its_state() -> None:
    lines = list(listing(PAPERS, KEPT))
    assert len(lines) == len(ITEMS) + len(PAPERS)
    told = CliRunner().invoke(app, ["--list"])
    assert told.exit_code == 0
    assert told.output.splitlines() == lines


# --- rules and states, on values made here


def finding(ours: float | None, interval: tuple[float, float] | None = None) -> Finding:
    return Finding(quantity="q", ours=ours, interval=interval)


@pytest.mark.parametrize(
    ("rule", "found", "agrees"),
    [
        (Near(1.0, 0.1), finding(1.1), True),
        (Near(1.0, 0.1), finding(1.11), False),
        (Near(1.0, 0.1), finding(None), None),
        (Size(-0.2, 0.02), finding(0.215), True),
        (Size(-0.2, 0.02), finding(-0.23), False),
        (Factor(10.0, 2.0), finding(5.0), True),
        (Factor(10.0, 2.0), finding(21.0), False),
        (Between(1.0, 2.0), finding(2.0), True),
        (Between(1.0, 2.0), finding(0.9), False),
        (Above(1.0), finding(1.0), True),
        (Above(1.0, surely=True), finding(2.0, (0.9, 3.0)), False),
        (Above(1.0, surely=True), finding(2.0), None),
        (Below(1.0), finding(1.5), False),
        (Below(1.0, surely=True), finding(0.5, (0.1, 0.9)), True),
        (Covers(1.0), finding(2.0, (0.5, 3.0)), True),
        (Covers(1.0), finding(1.0), None),
        (Exceeds("other", 2.0), finding(6.0), True),
        (Exceeds("other", 2.0), finding(5.9), False),
        (Exceeds("missing"), finding(5.9), None),
    ],
)
def test_rules(rule: Near, found: Finding, agrees: bool | None) -> None:
    assert rule.holds(found, {"other": finding(3.0)}.get) is agrees
    assert rule.text()


def record(**values: float | None) -> dict[str, Kept]:
    return {
        "s": Kept(study="s", settings={}, findings=[Finding(quantity=name, ours=one) for name, one in values.items()])
    }


@pytest.mark.parametrize(
    ("values", "lacking", "state"),
    [
        ({"a": 1.0, "b": 1.0}, "", State.AGREES),
        ({"a": 1.0, "b": 1.0}, "something", State.IN_PART),
        ({"a": 1.0, "b": 0.0}, "", State.IN_PART),
        ({"a": 1.0, "b": None}, "", State.IN_PART),
        ({"a": 0.0, "b": 0.0}, "", State.DIFFERS),
        ({"a": 0.0, "b": 0.0}, "something", State.DIFFERS),
    ],
)
def test_states_of_runs(values: dict[str, float | None], lacking: str, state: State) -> None:
    readings = [Reading(quantity=name, rule=Above(0.5)) for name in values]
    item = Item(number="1", says="x", runs=[Run(study="s", readings=readings)], lacking=lacking)
    assert judge(item, record(**values)).state is state
    assert judge(item, {}).state is State.NOT_RUN


def test_states_without_a_rule_or_a_run() -> None:
    shown = Run(study="s", readings=[Reading(quantity="a")])
    code = [Checked(name="gradleak.DPSGD", test="")]
    assert judge(Item(number="1", says="x", runs=[shown]), record(a=1.0)).state is State.SHOWN
    assert judge(Item(number="1", says="x", code=code), {}).state is State.TESTED
    assert judge(Item(number="1", says="x", code=code, lacking="y"), {}).state is State.IN_PART
    assert judge(Item(number="1", says="x"), {}).state is State.NOTHING
    assert judge(Item(number="1", says="x", lacking="y"), {}).state is State.NOT_RUN


def test_a_record_without_the_value_that_an_item_reads_is_refused() -> None:
    item = Item(number="1", says="x", runs=[Run(study="s", readings=[Reading(quantity="b")])])
    with pytest.raises(InputError, match="expected a record with the finding 'b'"):
        judge(item, record(a=1.0))


def test_a_printed_value_counts_until_there_is_a_record() -> None:
    reading = Reading(quantity="a", rule=Above(0.0), printed="−1,360 (−1.5e3 to −1)")
    item = Item(number="1", says="x", runs=[Run(study="s", readings=[reading])])
    earlier = reading.earlier()
    assert earlier is not None
    assert (earlier.ours, earlier.interval) == (-1360.0, (-1500.0, -1.0))
    assert judge(item, {}).state is State.DIFFERS
    assert judge(item, record(a=1.0)).state is State.AGREES
    with pytest.raises(InputError, match="expected a value such as"):
        Reading(quantity="a", printed="much").earlier()


def test_a_record_is_kept_without_details_and_folders(tmp_path: Path) -> None:
    result = StudyResult(
        study="unfairness",
        settings={
            "use": "Unfairness",
            "images": str(tmp_path / "x.npz"),
            "per_class": 2,
            "cells": str(tmp_path / "c"),
            "seed": 3,
        },
        findings=[
            Finding(quantity="a", ours=1.23456789, interval=(1.0, 2.0), paper="1"),
            Finding(quantity="b", ours=None),
        ],
        conclusion=["so"],
        details={"raw": list(range(1000))},
        cost=Cost(version="0.2.0", date="2026-11-30", core_seconds=61.0, seconds=70.0),
    )
    result.write(tmp_path)
    kept = read(keep((tmp_path / "unfairness.json").rename(tmp_path / "unfairness-two.json"), tmp_path / "kept"))
    assert dict(kept.settings) == {"images": "x.npz", "per_class": 2, "seed": 3}
    assert [one.ours for one in kept.findings] == [1.23457, None]
    assert kept.findings[0].interval == (1.0, 2.0)
    assert kept.cost == result.cost
    assert list(records(tmp_path / "kept")) == ["unfairness-two"]
    run = Run(study="unfairness", variant="two", readings=[])
    said = command(
        run, {"unfairness-two": Kept(study="unfairness", settings={"per_class": 2}, findings=[])}, known_studies()
    )
    assert said == "gradleak study unfairness --out runs/studies --set per_class=2"
    with pytest.raises(InputError, match=r"expected unfairness.json or unfairness-VARIANT.json, got other.json"):
        keep((tmp_path / "unfairness-two.json").rename(tmp_path / "other.json"), tmp_path / "kept")
    with pytest.raises(InputError, match="expected the JSON file that a study writes"):
        read(tmp_path / "none.json")


def _found(name: str) -> object:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def _page(run: Run) -> str:
    return (ROOT / "docs" / "explanation" / run.page.partition("#")[0]).read_text(encoding="utf-8")


def _slug(heading: str) -> str:
    """Anchor of a heading, as Python-Markdown makes it."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())

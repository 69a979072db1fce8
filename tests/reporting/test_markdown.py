from __future__ import annotations

from pathlib import Path

import pytest

from gradleak.reporting import write_markdown
from gradleak.reporting.markdown import escape, render_markdown
from gradleak.reporting.report import Report, build
from gradleak.results import Record


def test_the_order_is_that_of_the_page(report: Report) -> None:
    text = render_markdown(report)
    places = [
        text.index(part)
        for part in (
            "# digits: what",
            "**Leaks**",
            "**What to do next.**",
            "- Smallest pixel RMSE reached: 0 \\[attack\\]",
            "## By scenario",
            "## What the adversary was assumed to know",
            "## Predicted against reached error",
            "## Spectrum",
            "## Closed-form measures",
            "## Attacks, worst first",
            "## Controls",
            "## Failed and refused",
            "## How to read this",
            "## How it was made",
            "## Bibliography",
        )
    ]
    assert places == sorted(places)


def test_tables_have_even_rows(report: Report) -> None:
    widths: list[int] = []
    for line in render_markdown(report).splitlines():
        if line.startswith("|"):
            widths.append(line.replace("\\|", "").count("|"))
        elif widths:
            assert len(set(widths)) == 1
            widths = []


def test_the_same_record_gives_the_same_bytes(digits: Path, tmp_path: Path) -> None:
    assert write_markdown(digits, tmp_path / "a").read_bytes() == write_markdown(digits, tmp_path / "b").read_bytes()


def test_what_an_attack_says_of_its_claim_is_told() -> None:
    item = {"type": "item", "kind": "attack", "item": "plain/example 0/gias", "scenario": "plain", "example": 0}
    said = {
        "attack": "gias",
        "status": "done",
        "outcome": "budget_spent",
        "note": "contradicted: the prior invented it",
    }
    text = render_markdown(build(Record(run={}, lines=[item | said])))
    assert "budget spent (note 1) |" in text
    assert "\n1. contradicted: the prior invented it\n" in text


def test_an_empty_record_renders() -> None:
    assert "**No verdict.**" in render_markdown(build(Record(run={})))


def test_an_unfinished_run_says_so() -> None:
    assert "Unfinished run" in render_markdown(build(Record(run={"groups": ["a"]})))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>", "&lt;b&gt;"),
        ("a|b", "a\\|b"),
        ("[x](http://y)", "\\[x\\](http://y)"),
        ("a_b*c`d", "a\\_b\\*c\\`d"),
        ("two\nlines", "two lines"),
        ("# no heading", "\\# no heading"),
    ],
)
def test_text_is_shown_as_it_is(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_every_closed_form_measure_is_shown_with_its_evidence(report: Report) -> None:
    text = render_markdown(report).split("## Closed-form measures")[1].split("\n## ")[0]
    rows = [row for row in report.score_rows if row.closed_form]
    assert {row.item for row in rows} <= {row.item for row in report.score_rows}
    shown = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(shown) == min(len(rows), 40) > 0
    assert all("\\[" in line for line in shown if not line.endswith("| unsupported |"))

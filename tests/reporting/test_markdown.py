from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.reporting.sample_record import score

from gradleak.reporting import write_markdown
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import escape, render_markdown
from gradleak.reporting.report import Report, build
from gradleak.reporting.summary import summarize
from gradleak.results import Outcome, Record


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


def scored(range_note: str = "", **scores: Any) -> Record:
    """One attack on a batch of two with these scores: name = (value, further fields)."""
    place = {"scenario": "plain", "example": 0}
    about = {"batch_size": 2, "range_note": range_note}
    lines: list[Any] = [
        {"type": "item", "kind": "release", "item": "plain/example 0", **about, **place},
        {"type": "item", "kind": "attack", "item": "plain/example 0/ig", "attack": "ig", "status": "done", **place},
    ]
    for name, (value, fields) in scores.items():
        lines.append(score("plain/example 0/ig", lines[1], name, value, **fields))
    return Record(run={}, lines=lines)


def test_a_cell_without_a_number_has_its_reason_below() -> None:
    why = "SSIM is not defined at this size: 8x8 pixels, the window needs 11"
    missing = {"outcome": Outcome.UNSUPPORTED, "note": why}
    text = render_markdown(build(scored(pixel_rmse=(0.2, {}), ssim=(None, missing))))
    assert f"\n- SSIM, unsupported: {why}\n" in text
    assert "- SSIM" not in render_markdown(build(scored(pixel_rmse=(0.2, {}), ssim=(0.4, {}))))
    measure = scored(influence=(None, {"outcome": Outcome.UNSUPPORTED, "note": "no derivative"}))
    risk = {"type": "item", "kind": "risk", "item": "plain/example 0/ig"}
    measure = Record(run={}, lines=[*measure.lines, risk])
    assert "\n- influence, unsupported: no derivative\n" in render_markdown(build(measure))


def test_labels_of_a_batch_are_told_as_counts_too() -> None:
    details = {"matching": "paired", "by_counts": 1.0}
    made = build(scored(pixel_rmse=(0.2, {}), label_accuracy=(0.0, {"details": details})))
    assert "100 % \\[attack\\] as counts, 0 % \\[attack\\] by example" in render_markdown(made)
    assert "as counts" in render_html(made)
    assert ("labels found, as counts of the batch", 1.0) in [(row.name, row.quantity.value) for row in made.score_rows]
    worst = summarize(made)["worst"]
    assert (worst["label_accuracy"]["value"], worst["label_accuracy_by_counts"]) == (0.0, 1.0)
    for same in ({}, {"by_counts": 0.5}):
        made = build(scored(pixel_rmse=(0.2, {}), label_accuracy=(0.5, {"details": same})))
        assert "as counts" not in render_markdown(made) + render_html(made)
        assert summarize(made)["worst"]["label_accuracy_by_counts"] == 0.5


def test_a_range_that_is_hardly_used_is_said_once_and_first() -> None:
    said = "all values lie in 0 to 1, 1/255 of the declared range 0 to 255"
    for own in ("", "3.0% of the claimed pixels lie outside; "):
        made = build(scored(range_note=said, pixel_rmse=(0.001, {"note": f"{own}{said}"})))
        assert made.range_notes == (said,)
        assert list(made.notes) == ([own.removesuffix("; ")] if own else [])
        text = render_markdown(made)
        assert text.count("1/255") == 1
        assert text.index("> **Mind the range.** All values lie") < text.index("## Attacks")
        assert "Mind the range" in render_html(made)
        assert summarize(made)["range_notes"] == [said]


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

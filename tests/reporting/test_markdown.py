from __future__ import annotations

from pathlib import Path

import pytest
from tests.reporting import toy_kind

from gradleak.reporting import write_markdown
from gradleak.reporting.blocks import Column, Style, Table, Text
from gradleak.reporting.markdown import _blocks, escape, render_markdown
from gradleak.reporting.page import Report, assemble

pytestmark = pytest.mark.usefixtures("toy")


def test_the_order_is_that_of_the_page(report: Report) -> None:
    text = render_markdown(report)
    parts = (
        "# toy: what the shared updates give away",
        "**Leaks.** Dead units found. A unit of a/example 0 is dead.",
        "> **THE CLAIM IS BROKEN.**",
        "**What to do next.** Do not share",
        "## By scenario",
        "- Largest share: 25 % \\[exact\\] (of a layer)",
        "## Dead units (worst first)",
        "Units that **never** answer, by *layer*, in `code`.",
        "### A heading",
        "- one\n- two\n",
        "1. first note\n2. second note\n",
        "- dead: never answers",
        "- Model: a network",
        "By layer:",
        "**What is printed**",
        "### More",
        "## Controls",
        "## Failed and refused",
        "## How to read this",
        "## How it was made",
        "### Bibliography",
    )
    places = [text.replace("\N{NO-BREAK SPACE}", " ").index(part) for part in parts]
    assert places == sorted(places)


def test_tables_have_even_rows_even_with_hostile_names() -> None:
    for record in (toy_kind.record(), toy_kind.hostile()):
        widths: list[int] = []
        for line in render_markdown(assemble(record)).splitlines():
            if line.startswith("|"):
                widths.append(line.replace("\\|", "").count("|"))
            elif widths:
                assert len(set(widths)) == 1
                widths = []


def test_numbers_stand_with_their_evidence(report: Report) -> None:
    text = render_markdown(report).replace("\N{NO-BREAK SPACE}", " ")
    # A heading that tells it stands for its cells.
    assert "| Item | Dead share \\[exact\\] | Answers | Guarantee | End |" in text
    assert "| a/example 0/dead | 25 % (of 4) | unsupported | formal | ended |" in text
    assert "the number 25 % \\[exact\\]" in text
    assert "Dead share is exact \\[exact\\]: it is counted." in text


def test_a_cell_without_a_number_has_its_reason_below_once(report: Report) -> None:
    assert render_markdown(report).count("\n- Answers, unsupported: nobody \\*asked\\* it\n") == 1


def test_what_is_not_printed_is_left_out(report: Report) -> None:
    text = render_markdown(report)
    for part in (
        "What is not printed",
        "hidden",
        "BibTeX",
        "The resolved plan",
        "All 7 scores",
        "a drawing",
        "no picture",
    ):
        assert part not in text


def test_long_tables_end_after_forty_rows() -> None:
    text = render_markdown(assemble(toy_kind.record(*(toy_kind.found(place) for place in range(45)))))
    assert "| a/example 39/dead |" in text
    assert "| a/example 40/dead |" not in text
    assert "\n5 more layers stand in the record.\n" in text
    rows = [[str(place)] for place in range(45)]
    assert len(_blocks([Table(columns=[Column(label="all")], rows=rows)], 2)) == 48


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_markdown(toy_kind.record(), tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_hostile_text_never_becomes_markup(tmp_path: Path) -> None:
    text = write_markdown(toy_kind.hostile(), tmp_path / "r.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert "[c](" not in text
    assert "\n# e" not in text
    assert "**a**" not in text


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`a_b`", "`a_b`"),
        ("`a|b`", "a\\|b"),
        ("`<b>`", "&lt;b&gt;"),
        ("**a_b**", "**a\\_b**"),
        ("- no list", "\\- no list"),
        ("1. no list", "\\1. no list"),
        ("+ no list", "\\+ no list"),
        ("a - b", "a - b"),
    ],
)
def test_paragraphs_keep_their_marks_alone(text: str, expected: str) -> None:
    assert _blocks([Text(parts=[text])], 2)[0] == expected


def test_code_is_fenced_by_more_than_it_holds() -> None:
    lines = _blocks([Text(parts=["x\n````\n# y"], style=Style.CODE)], 2)
    assert lines == ["`````", "x", "````", "# y", "`````", ""]

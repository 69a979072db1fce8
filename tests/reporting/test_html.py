from __future__ import annotations

import base64
import re
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from tests.reporting import toy_kind
from tests.reporting.parsed import Page
from tests.reporting.toy_kind import HOSTILE

from gradleak.reporting import write_html
from gradleak.reporting.blocks import Column, Level, Note, Table, Tag, Text, Tile, Tiles
from gradleak.reporting.html import render_html
from gradleak.reporting.page import Report, assemble
from gradleak.results import InputError, Record

pytestmark = pytest.mark.usefixtures("toy")


def rendered(record: Record) -> Page:
    return Page(render_html(assemble(record)))


def test_the_page_is_written_and_its_path_returned(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert write_html(toy_kind.record(), target) == target
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert write_html(toy_kind.record(), tmp_path / "again.html").read_bytes() == target.read_bytes()


def test_a_missing_record_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a record"):
        write_html(tmp_path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_it_carries_everything_inside_itself(page: Page) -> None:
    assert page.names.isdisjoint({"link", "iframe", "object", "embed", "base", "form", "audio", "video"})
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), f"{tag} holds a script"
        for name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
            address = attributes.get(name)
            if address is not None:
                allowed = ("data:image/png;base64,",) if tag == "img" else ("#",)
                assert address.startswith(allowed), f"{tag} {name}={address[:60]}"
    (policy,) = [one["content"] for tag, one in page.tags if tag == "meta" and "http-equiv" in one]
    (script,) = page.by_tag["script"]
    print_ = base64.b64encode(sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{print_}'; base-uri 'none'; "
        "form-action 'none'"
    )
    # No place in it makes markup or code of a text.
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function|setTimeout|http", script)
    style = "".join(page.by_tag["style"])
    assert "@import" not in style
    assert "url(" not in style
    assert "http" not in style


def test_it_reads_in_the_dark_and_on_paper(page: Page) -> None:
    style = "".join(page.by_tag["style"])
    assert "@media (prefers-color-scheme: dark)" in style
    paper = style.split("@media print")[1]
    assert "details:not([open]):not(.print-open) { display: none; }" in paper
    assert "nav, .filter, .enlarge, .zoomed, form > p," in paper
    assert "prefers-reduced-motion" in style


def test_every_class_of_the_page_is_dressed(page: Page) -> None:
    style = "".join(page.by_tag["style"])
    used = {name for _, attributes in page.tags for name in (attributes.get("class") or "").split()}
    plain = {"callout-plain", "tiles-4", "badge-other", "badge-estimate"}
    assert not [name for name in sorted(used - plain) if not re.search(rf"\.{re.escape(name)}\b", style)]


def test_inner_links_and_ids_fit(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"].removeprefix("#") for _, a in page.tags if a.get("href")}  # type: ignore[union-attr]
    assert targets <= set(ids)
    assert {"verdict", "dead", "controls", "scores", "reading", "made"} <= targets


def test_headings_are_in_order_and_pictures_have_texts(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")


def test_the_verdict_comes_first_with_reason_and_next_step(page: Page) -> None:
    parts = (
        "Leaks Dead units found. A unit",
        "The claim is broken.",
        "What to do next.",
        "By scenario",
        "Largest share",
    )
    further = (
        "Units that never answer",
        "More No verdict of a part",
        "Checks of the audits",
        "These items gave no result.",
    )
    last = ("There is no verdict “safe”", "Run it again", "Bibliography", "Made by gradleak from a record")
    places = [page.text.index(part) for part in (*parts, *further, *last)]
    assert places == sorted(places)


def test_marks_become_elements(page: Page) -> None:
    assert "never" in page.by_tag["strong"]
    assert "layer" in page.by_tag["em"]
    assert "code" in page.by_tag["code"]


def test_numbers_stand_with_their_evidence(page: Page) -> None:
    text = render_html(assemble(toy_kind.record()))
    badge = '<span class="badge badge-exact" title="the quantity itself, computed without approximation">exact</span>'
    assert f'<th scope="col" class="n">Dead share {badge}</th>' in text
    # The heading tells it, so that the cells do not.
    assert '<td class="n"><data value="0.25">25\N{NO-BREAK SPACE}%</data> <small>of 4</small></td>' in text
    assert f'<dt>Largest share {badge}</dt><dd><data value="0.25">' in text
    assert f'<p>the number <data value="0.25">25\N{NO-BREAK SPACE}%</data> {badge}</p>' in text
    assert f'<p class="fine">Dead share is exact {badge}: it is counted.</p>' in text
    assert 0.25 in page.numbers


def test_a_number_that_could_not_be_had_says_why() -> None:
    text = render_html(assemble(toy_kind.record()))
    assert '<span class="absent" title="nobody *asked* it">unsupported</span>' in text
    assert 0.0 not in rendered(toy_kind.record()).numbers


def test_tags_hints_marks_and_chips() -> None:
    text = render_html(assemble(toy_kind.record()))
    for part in (
        '<span class="badge badge-bounded" title="with a proof">formal</span>',
        '<span title="it ended by itself">ended</span>',
        '<li class="known"><span class="mark" role="img" aria-label="known">●</span><span><strong>Model</strong><br>',
        '<li class="unknown"><span class="mark" role="img" aria-label="not known">○</span>',
        '<span class="chip chip-none">No verdict</span>',
        '<abbr title="how many">Answers</abbr>',
        "<div><dt>dead</dt><dd>never answers</dd></div>",
    ):
        assert part in text


def test_figures_are_drawn_where_there_is_something_to_draw(page: Page) -> None:
    assert len([tag for tag, _ in page.tags if tag == "svg"]) == 1
    assert "A drawing" in page.by_tag["figcaption"]


def test_pictures_are_embedded_or_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "unit.png").write_bytes(toy_kind.PNG)
    lines = [toy_kind.found(picture="unit.png"), toy_kind.found(1, picture="../unit.png")]
    page = rendered(toy_kind.record(*lines, path=tmp_path / "record.jsonl"))
    assert next(str(a["src"]) for tag, a in page.tags if tag == "img").startswith("data:image/png;base64,")
    assert page.text.count("no picture") == 1


def test_long_tables_and_galleries_are_folded_once() -> None:
    many = [toy_kind.found(place) for place in range(40)]
    text = render_html(assemble(toy_kind.record(*many)))
    assert '<details class="print-open"><summary>28 more layers</summary>' in text
    assert '<details class="print-open"><summary>31 more</summary>' in text
    # What lies in a fold is not folded again.
    assert "more scores" not in text
    few = render_html(assemble(toy_kind.record(*many[:12])))
    assert "more layers" not in few
    assert "more layers" not in render_html(assemble(toy_kind.record(*many[:15])))


def test_what_is_not_printed_stays_shut_on_paper() -> None:
    text = render_html(assemble(toy_kind.record()))
    assert "<details><summary>What is not printed</summary>" in text
    assert '<details class="print-open"><summary>What is printed</summary>' in text
    assert '<pre tabindex="0">```\n&lt;b&gt;</pre>' in text


@pytest.mark.parametrize(("count", "across"), [(1, 1), (3, 3), (4, 4), (6, 3), (8, 4)])
def test_tiles_fill_their_rows(count: int, across: int) -> None:
    from gradleak.reporting.html import _tiles

    assert _tiles(Tiles(tiles=[Tile(label="a", value="b")] * count).tiles).startswith(
        f'<dl class="tiles tiles-{across}">'
    )


def test_notes_have_a_level() -> None:
    from gradleak.reporting.html import _blocks

    notes = [Note(text="x", title="T.", level=level) for level in Level]
    plain, warn, loud = _blocks(notes, 3)
    assert plain == '<aside class="callout" role="note"><p><strong>T.</strong> x</p></aside>'
    assert "callout-warn" in warn
    assert "callout-loud" in loud


def test_tones_and_anchors_of_pages_are_no_markup() -> None:
    from gradleak.reporting.html import _blocks

    table = Table(columns=[Column(label=HOSTILE, hint=HOSTILE)], rows=[[Tag(HOSTILE, HOSTILE, HOSTILE)]])
    text = "".join(_blocks([table, Text(parts=[HOSTILE])], 3))
    assert "<script" not in text
    assert "<img" not in text
    Page(text)


def test_hostile_text_never_becomes_markup() -> None:
    text = render_html(assemble(toy_kind.hostile()))
    assert text.count("<script") == 1
    assert "<img src=x" not in text
    page = Page(text)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7*7 }}" in page.text
    # Asterisks and backticks of names stay what they are.
    assert "|**a**`b`[c]" in page.text


def test_a_notebook_shows_the_verdicts_and_no_picture(report: Report) -> None:
    shown = report.record._repr_html_()
    page = Page(f"<body>{shown}</body>")
    words = " ".join(page.texts)
    (verdict,) = (one for one in report.record.verdicts if one.item == "run")
    assert "run" in words
    assert verdict.explanation.split()[0] in words
    assert repr(report.record) in words
    assert {"img", "script", "style"} & set(page.by_tag) == set()
    nothing = "Record(&#x27;&#x27;, no verdict on the run, 0 findings, 0 verdicts)"
    assert Record(run={})._repr_html_() == f"<p><code>{nothing}</code></p>"

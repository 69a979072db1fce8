"""Reports on thousands of releases: the worst rows in full, the rest in a line, and everything in the record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.audits.released.evidence import attack, release, rmse, score
from tests.reporting.toy_kind import PNG

from gradleak.auditing import record_of
from gradleak.reporting.beyond import MOST_SCORES, Rows, beyond
from gradleak.reporting.blocks import MOST, Badge, Chip, Column, Small, Table, Words
from gradleak.reporting.context import Context
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.page import assemble
from gradleak.reporting.terminal import render_terminal
from gradleak.results import Evidence, Finding, Record, Subject, VerdictKind
from gradleak.results.findings.risk import RiskFinding

COLUMNS = (
    Column(label="Item"),
    Column(label="Error", numeric=True, evidence=Evidence.ATTACK),
    Column(label="Scenario"),
    Column(label="Outcome"),
    Column(label="Reason", why=True),
)


def many(count: int, *, scores: int = 0) -> Record:
    """The record of so many releases; the later one comes nearer to its example."""
    found: list[Finding] = []
    for place in range(count):
        subject, item = Subject(noun="example", name=str(place)), f"undefended/example {place}"
        reached = rmse(0.1 + 0.001 * (count - place), Evidence.ATTACK)
        found.append(release(item=item, subject=subject, baseline=5.0))
        found.append(attack(None, item=f"{item}/gn", subject=subject, scores=(reached,)))
        further = tuple(score(f"measure_{number}", 1.0, unit="1") for number in range(scores))
        risk = RiskFinding(item=f"{item}/risk", audit="risk", scenario="undefended", subject=subject, scores=further)
        found += [risk] if further else []
    return record_of(sorted(found, key=lambda one: one.audit))


@pytest.fixture(scope="module")
def record() -> Record:
    return many(450, scores=5)


def test_the_worst_rows_stand_on_the_page_and_the_others_in_a_line(record: Record) -> None:
    html, markdown = render_html(assemble(record)), render_markdown(assemble(record))
    for text in (html, markdown.replace("\\", "")):
        attacks = text.split("Attacks, example by example", 1)[1].split("Every number of the record", 1)[0]
        shown = [int(place) for place in re.findall(r'(?:\n\| |<th scope="row">)example (\d+)', attacks)]
        assert shown == list(range(449, 249, -1))
        rest = re.sub(r"<[^>]+>|\*", "", attacks)
        assert "250 more attacks stand in the record, in short:" in " ".join(rest.split())
    assert re.search(r"Pixel RMSE[^|]* 0\.301 to 0\.55", " ".join(re.sub(r"<[^>]+>", " ", html).split()))


def test_scores_are_those_of_the_worst_releases(record: Record) -> None:
    html = render_html(assemble(record))
    table = html.split('id="scores"', 1)[1]
    items = re.findall(r"undefended/example (\d+)", table.split("</section>", 1)[0])
    assert len(items) == MOST_SCORES
    # Seven scores a release.
    assert set(map(int, items)) == set(range(449, 449 - -(-MOST_SCORES // 7), -1))
    assert f"{450 * 7 - MOST_SCORES:,} more scores" in table
    assert f"All {450 * 7} scores" in table


def test_a_page_of_more_rows_is_no_longer() -> None:
    sizes = {count: len(render_html(assemble(many(count)))) for count in (1050, 1400)}
    assert sizes[1400] < 1.01 * sizes[1050]
    lengths = {count: len(render_terminal(assemble(many(count)))) for count in (3, 300)}
    assert lengths[300] < lengths[3] + 100


def test_json_has_every_row_where_it_is_asked_for_them(record: Record) -> None:
    document = summarize(assemble(record), per_record=True)
    assert len(document["findings"]) == 450 * 3
    assert len(document["verdicts"]) == len(record.verdicts) == 452
    tables = [block for section in document["sections"] for block in blocks_of(section) if block["block"] == "table"]
    assert sorted(len(table["rows"]) for table in tables)[-2:] == [450, 450 * 7]
    brief = summarize(assemble(record))
    (scenario,) = brief["scenarios"]
    (reached,) = (one for one in scenario["scores"] if (one["score"], one["evidence"]) == ("pixel_rmse", "attack"))
    assert (reached["count"], reached["smallest"], reached["largest"]) == (450, 0.101, 0.55)


def blocks_of(section: dict) -> list[dict]:  # type: ignore[type-arg]
    found = [*section["blocks"], *(block for part in section["sections"] for block in blocks_of(part))]
    return [inner for block in found for inner in (block, *block.get("blocks", []))]


def test_few_rows_all_stand_there() -> None:
    html = render_html(assemble(many(MOST)))
    assert "more attacks stand" not in html
    assert len(re.findall(r'<th scope="row">example \d+', html.split("Attacks, example by example", 1)[1])) == MOST


def test_verdicts_of_many_releases_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging was quadratic: every verdict was looked up among the others."""

    def compared(self: object, other: object) -> bool:
        raise AssertionError("a verdict was compared with another one")

    monkeypatch.setattr("gradleak.results.Verdict.__eq__", compared)
    scenario, run = many(60).verdicts[-2:]
    assert scenario.verdict is run.verdict is VerdictKind.INCONCLUSIVE
    assert scenario.details["of"] == 60


def test_rows_are_made_when_they_are_shown() -> None:
    made: list[int] = []

    def make(one: int) -> Sequence[Words]:
        made.append(one)
        return [str(one), Quantity(value=float(one), text=f"{one}.0"), "undefended", "converged", "why"]

    rows = Rows(range(1000), make)
    table = Table(columns=COLUMNS, rows=rows, folded="more rows", most=10, rest="stand in the record.")
    assert (len(rows), made) == (1000, [])
    told = beyond(table)
    assert told is not None
    assert made == []
    assert [row[0] for row in table.rows[: table.most]] == [str(one) for one in range(10)]
    assert made == list(range(10))
    assert rows[999][0] == "999"


def test_a_line_tells_ranges_of_numbers_and_counts_of_words() -> None:
    rows = [["first", Quantity(value=-1.0, text="-1"), "x", "converged", "w"]] + [
        [
            f"item {place}",
            [Quantity(value=None if place == 3 else 0.5 * place, text=f"{0.5 * place}"), Badge(Evidence.ATTACK)],
            ["undefended", Small("aside")] if place % 3 else "noisy",
            Chip(VerdictKind.LEAKS),
            f"reason {place}",
        ]
        for place in range(1, 10)
    ]
    told = beyond(Table(columns=COLUMNS, rows=rows, folded="more attacks", most=1))
    assert told is not None
    assert told.parts == [
        [
            "**9 more attacks**",
            "stand in the record, in short:",
            *("Error", "0.5 to 4.5", Badge(Evidence.ATTACK), "(1 without)", ";"),
            *("Scenario", "undefended (6), noisy (3)", ";"),
            *("Outcome", "leaks (9)"),
            ".",
        ]
    ]
    assert beyond(Table(columns=COLUMNS, rows=rows, most=10)) is None
    assert beyond(Table(columns=COLUMNS, rows=rows, most=None)) is None


def test_words_of_many_kinds_are_counted_only() -> None:
    columns = (Column(label="Reason"), Column(label="Item"))
    rows = [[f"kind {place % 7}", f"item {place}"] for place in range(50)]
    told = beyond(Table(columns=columns, rows=rows, most=20))
    assert told is not None
    assert told.parts == [["**30 more**", "stand in the record, in short:", "Reason", "of 7 kinds", "."]]


def test_pictures_of_the_worst_alone_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Finding] = []
    for place in range(MOST + 5):
        subject = Subject(noun="example", name=str(place))
        about = {"item": f"undefended/example {place}", "subject": subject}
        found.append(release(**about))
        name = f"{place}.png"
        (tmp_path / name).write_bytes(PNG)
        own = {"item": f"undefended/example {place}/gn", "subject": subject, "picture": name}
        found.append(attack(0.1 + 0.001 * place, **own))
    record = Record.load(record_of(sorted(found, key=lambda one: one.audit)).save(tmp_path / "record.jsonl"))
    read: list[str] = []
    picture = Context.picture

    def watched(self: Context, path: str | None) -> str | None:
        read.extend([path] if path else [])
        return picture(self, path)

    monkeypatch.setattr(Context, "picture", watched)
    html = render_html(assemble(record))
    # The worst one stands on the first screen, too.
    assert list(dict.fromkeys(read)) == [f"{place}.png" for place in range(MOST)]
    assert len(read) <= MOST + 2
    assert "5 more, not as near, stand in the record, and their pictures beside it." in html
    monkeypatch.setattr("gradleak.reporting.pages.reconstruction.LARGEST_GALLERY", 20 * len(PNG))
    few = render_html(assemble(record))
    assert few.count("data:image/png") < 30
    assert re.search(r"19\d more, not as near", few)


def test_releases_without_an_attack_come_by_their_prediction() -> None:
    def predicted(place: int, value: float | None) -> RiskFinding:
        found = score("inversion_influence", value)
        subject = Subject(noun="example", name=str(place))
        return RiskFinding(item=f"a/{place}", audit="risk", scenario="a", subject=subject, scores=(found,))

    findings = [predicted(0, 0.3), predicted(1, None), predicted(2, 0.1), predicted(3, 0.2)]
    about = {"scenario": "a", "subject": Subject(noun="example", name="1")}
    context = Context(record=Record.of([*findings, attack(0.9, item="a/1/gn", **about)]))
    assert [one.item for one in context.worst_first(findings)] == ["a/1", "a/2", "a/3", "a/0"]

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.reporting import toy_kind
from tests.reporting.parsed import Page

from gradleak.reporting import write_json
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.page import Report, assemble
from gradleak.results import Leakier, Record

pytestmark = pytest.mark.usefixtures("toy")


def written(record: Record, folder: Path, **options: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(write_json(record, folder / "r.json", **options).read_text())
    return made


def test_the_document_holds_verdict_reason_and_thresholds(tmp_path: Path) -> None:
    document = written(toy_kind.record(), tmp_path)
    assert document["verdict"]["verdict"] == "leaks"
    assert document["verdict"]["reason"] == "dead_units_found"
    assert document["verdict"]["what_to_do_next"].startswith("Do not share")
    assert document["thresholds"] == {"pixel_rmse": 0.1, "epsilon": 1.0}
    assert (document["complete"], document["missing"], document["unreadable_lines"]) == (True, [], 0)
    assert [one["verdict"] for one in document["scenarios"]] == ["leaks", "bounded"]
    assert [one["passed"] for one in document["controls"]] == [True, True, True]
    assert document["controls"][0]["dead_share"] == 0.5
    assert {one["status"] for one in document["problems"]} == {"refused", "failed"}


def test_the_leakiest_value_of_a_scenario_is_that_of_the_record(tmp_path: Path) -> None:
    def lower(place: int, value: float) -> Any:
        score = toy_kind.score("pixel_rmse", value, leakier=Leakier.LOWER)
        return toy_kind.found(place, scores=(score, toy_kind.score(value=value), toy_kind.answers()))

    document = written(toy_kind.record(lower(0, 0.3), lower(1, 0.1), lower(2, 0.2), *toy_kind.controls()), tmp_path)
    scores = {one["score"]: one for one in document["scenarios"][0]["scores"]}
    assert scores["pixel_rmse"]["leakiest"] == 0.1
    assert scores["dead_share"]["leakiest"] == 0.3
    assert (scores["dead_share"]["smallest"], scores["dead_share"]["largest"]) == (0.1, 0.3)
    assert (scores["dead_share"]["evidence"], scores["dead_share"]["count"]) == ("exact", 3)
    assert (scores["answers"]["leakiest"], scores["answers"]["without_value"]) == (None, 3)


def test_single_examples_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    short = written(toy_kind.record(), tmp_path)
    blocks = [block["block"] for block in short["sections"][0]["blocks"]]
    assert "gallery" not in blocks
    assert "table" not in blocks
    assert not [one for one in short["findings"] if one["subject"]]
    assert not [one for one in short["verdicts"] if one["subject"]]
    assert short["scenarios"][0]["scores"]
    full = written(toy_kind.record(), tmp_path, per_record=True)
    assert {"gallery", "table"} <= {block["block"] for block in full["sections"][0]["blocks"]}
    assert [one["item"] for one in full["findings"] if one["subject"]] == ["a/example 0/dead", "b/example 0/dead"]


def test_sections_are_blocks_with_numbers_and_their_evidence(report: Report) -> None:
    section = summarize(report, per_record=True)["sections"][0]
    assert (section["anchor"], section["title"]) == ("dead", "Dead units")
    by_type = {block["block"]: block for block in section["blocks"]}
    assert set(by_type) == {"text", "table", "figure", "gallery", "fold"}
    assert section["blocks"][0]["parts"] == ["Units that never answer, by layer, in code."]
    table = by_type["table"]
    assert table["columns"][1] == {"label": "Dead share", "evidence": "exact"}
    number, small = table["rows"][0][1]
    assert (number["value"], number["evidence"], number["outcome"], small) == (0.25, "exact", "converged", "of 4")
    assert table["rows"][0][2]["value"] is None
    assert table["rows"][0][2]["outcome"] == "unsupported"


def test_page_and_document_agree(report: Report) -> None:
    document, values = summarize(report), Page(render_html(report)).numbers
    for scenario in document["scenarios"]:
        for score in scenario["scores"]:
            assert score["leakiest"] is None or score["leakiest"] in values
    (fold,) = [block for block in document["front"] if block["block"] == "fold"]
    (tiles,) = [block for block in fold["blocks"] if block["block"] == "tiles"]
    assert tiles["tiles"][0]["value"]["value"] in values


def test_infinities_are_words(tmp_path: Path) -> None:
    infinite = toy_kind.found(scores=(toy_kind.score("psnr", float("inf"), unit="dB"),))
    document = written(toy_kind.record(infinite), tmp_path)
    assert document["scenarios"][0]["scores"][0]["leakiest"] == "inf"


def test_the_same_record_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_json(toy_kind.record(), tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("run", [{}, {"groups": ["a"]}])
def test_an_empty_record_gives_a_document(run: dict[str, object], tmp_path: Path) -> None:
    document = written(Record(run=run), tmp_path)
    assert document["verdict"]["verdict"] is None
    assert document["findings"] == []
    assert document["complete"] is not bool(run)


def test_hostile_text_is_text(tmp_path: Path) -> None:
    document = written(toy_kind.hostile(), tmp_path, per_record=True)
    assert document["name"] == toy_kind.HOSTILE
    assert summarize(assemble(toy_kind.hostile()), per_record=True) == document

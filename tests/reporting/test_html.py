from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.reporting.parsed import Page
from tests.reporting.sample_record import SampleRecord, digits_audit

from gradleak.reporting import write_html, write_json, write_markdown
from gradleak.reporting.html import render_html
from gradleak.reporting.report import Report, build
from gradleak.results import InputError, Record

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}$\\frac$"


def render(record: Record) -> Page:
    return Page(render_html(build(record)))


def item(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "item", "group": "g", "line": 0, "of": 1, "item": name, "kind": kind, "status": "done", **fields}


def test_the_page_is_written_and_its_path_returned(digits: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert write_html(digits, target) == target
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert write_html(digits.parent, tmp_path / "from_folder.html").read_bytes() == target.read_bytes()


def test_the_same_record_gives_the_same_bytes(digits: Path, report: Report, tmp_path: Path) -> None:
    first = write_html(digits, tmp_path / "a.html").read_bytes()
    assert write_html(Record.load(digits), tmp_path / "b.html").read_bytes() == first
    assert render_html(report).encode() == first


def test_two_records_of_the_same_run_give_the_same_page(digits: Path, tmp_path: Path) -> None:
    again = digits_audit(tmp_path / "again")
    assert write_html(again, tmp_path / "a.html").read_bytes() == write_html(digits, tmp_path / "b.html").read_bytes()


def test_it_carries_everything_inside_itself(page: Page) -> None:
    assert page.names.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form", "audio", "video"})
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), f"{tag} holds a script"
        for name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
            address = attributes.get(name)
            if address is not None:
                allowed = ("data:image/png;base64,",) if tag == "img" else ("#",)
                assert address.startswith(allowed), f"{tag} {name}={address[:60]}"
    style = "".join(page.by_tag["style"])
    assert "@import" not in style
    assert "url(" not in style
    assert "http" not in style


def test_inner_links_and_ids_fit(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"].removeprefix("#") for _, a in page.tags if a.get("href")}  # type: ignore[union-attr]
    assert targets <= set(ids)


def test_headings_are_in_order_and_pictures_have_texts(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    drawings = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(drawings) == 2
    assert all(attributes.get("role") == "img" and attributes.get("aria-labelledby") for attributes in drawings)


def test_the_verdict_comes_first_with_reason_and_next_step(page: Page) -> None:
    text = page.text
    places = [
        text.index("Leaks An attack rebuilt an example."),
        text.index("What to do next."),
        text.index("Smallest pixel RMSE"),
        text.index("By scenario"),
        text.index("What the adversary was assumed to know"),
        text.index("Original beside reconstruction"),
        text.index("Predicted against reached error"),
        text.index("Which directions the update shows"),
        text.index("Attacks, example by example"),
        text.index("Positive control"),
        text.index("Failed and refused"),
        text.index("There is no verdict “safe”"),
        text.index("Run it again"),
        text.index("Bibliography"),
    ]
    assert places == sorted(places)


def test_the_setting_is_told(page: Page) -> None:
    for part in (
        "loss cross_entropy, eval mode, 17,038 shared numbers in 6 tensors",
        "image of 1 × 28 × 28, values from 0 to 1",  # noqa: RUF001
        "Parameters: 6 shared, 0 frozen, 0 tied, 2 renamed",
        "module.0.weight",
        "GaussianNoise",
        "heuristic",
        "forward-mode JVP in blocks of 64",
        "consistent; cosine at least 1.0000",
    ):
        assert part in page.text
    assert "Disclosed truth" not in page.text


def test_every_score_stands_there_with_its_evidence(digits: Path, page: Page) -> None:
    record = Record.load(digits)
    assert f"All {len(record.scores)} scores" in page.text
    for evidence in {score.evidence.value for _, score in record.scores}:
        assert evidence.replace("_", " ") in page.by_tag["span"]
    values = page.numbers
    for name, score in record.scores:
        if score.value is not None:
            assert score.value in values, f"{name} {score.name}"


def test_page_and_document_agree(digits: Path, page: Page, tmp_path: Path) -> None:
    document = json.loads(write_json(digits, tmp_path / "r.json").read_text())
    values = page.numbers
    for scenario in document["scenarios"]:
        for name in ("pixel_rmse", "baseline_pixel_rmse"):
            assert scenario["worst"][name]["value"] in values
        assert scenario["name"] in page.text
    for level in document["prediction"]["levels"]:
        for value in level["median_pixel_rmse"].values():
            assert value is None or value in values
    assert document["prediction"]["median_relative_difference"] in values
    assert f"{document['exact_hits']['hits']} of {document['exact_hits']['attacked']}" in page.text
    assert document["verdict"]["explanation"] in page.text


def test_pictures_are_embedded_or_said_to_be_off(page: Page, tmp_path: Path) -> None:
    pictures = [a["src"] for tag, a in page.tags if tag == "img"]
    assert len(pictures) > 20
    without = render(Record.load(digits_audit(tmp_path, pictures=False)))
    assert "img" not in without.names
    assert "Pictures are off" in without.text


@pytest.mark.parametrize(
    ("support", "said"),
    [
        ("supported", "borne out by the update"),
        ("contradicted", "invented, in part at least, by the prior"),
        ("undecided", "may be invented by the prior"),
        (HOSTILE, ""),
    ],
    ids=["supported", "contradicted", "undecided", "hostile"],
)
def test_a_picture_of_a_generator_says_beside_it_whether_it_was_invented(
    support: str, said: str, tmp_path: Path
) -> None:
    file = digits_audit(tmp_path)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    (claim, *_) = [row for row in rows if row.get("kind") == "attack" and row.get("picture")]
    claim["details"] = {"support": {"support": support}}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = render_html(build(Record.load(file)))
    captions = [part for part in re.findall(r"<figcaption>(.*?)</figcaption>", page) if part.count("<br>") == 3]
    assert [part.rsplit("<br>")[-1] for part in captions] == [said] * bool(said)


def test_an_infinite_psnr_is_shown_as_such(page: Page) -> None:
    assert "∞" in page.text
    assert math.inf in page.numbers


def test_long_tables_are_folded(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    lines = [row for place in range(40) for row in sample.attempt("s", place, "dlg", 0.1 + 0.01 * place)]
    assert "28 more attacks" in render(Record(run={}, lines=lines)).text
    few = [row for row in lines if row.get("example", 0) < 15]
    assert "more attacks" not in render(Record(run={}, lines=few)).text


def test_a_failed_control_is_loud(tmp_path: Path) -> None:
    page = render(Record.load(digits_audit(tmp_path, controls_pass=False, pictures=False)))
    assert "Inconclusive A control failed." in page.text
    assert "What that means" in page.text
    assert "Look at the controls first." in page.text


def test_an_unfinished_run_has_a_banner(tmp_path: Path) -> None:
    digits_audit(tmp_path)
    rows = (tmp_path / "record.jsonl").read_text().splitlines(keepends=True)
    for keep in (1, 8, 40, len(rows) - 1):
        (tmp_path / "record.jsonl").write_text("".join(rows[:keep]) + '{"type": "sco')
        page = render(Record.load(tmp_path))
        assert "Unfinished run." in page.text
    assert "Unfinished run." not in render(Record.load(digits_audit(tmp_path))).text


@pytest.mark.parametrize("run", [{}, {"name": None, "groups": []}, {"plan": None, "citations": None, "thresholds": []}])
def test_an_empty_record_renders(run: dict[str, Any]) -> None:
    page = render(Record(run={"type": "run", **run}))
    assert "No verdict" in page.text
    assert "No attack stands in the record." in page.text
    assert "Unfinished run." not in page.text


def test_a_record_of_failures_only_renders() -> None:
    failed = item("attack", "a/example 0/dlg", scenario="a", example=0, attack="dlg", outcome="failed", note="broke")
    lines = [{**failed, "status": "failed", "traceback": "Traceback ..."}, item("release", "a/example 0")]
    page = render(Record(run={"type": "run"}, lines=lines))
    assert "Failed and refused" in page.text
    assert "broke" in page.text


def test_bare_items_of_every_kind_render() -> None:
    kinds = ("release", "risk", "attack", "perfect_attacker", "baseline", "control", "novelty")
    lines = [item(kind, f"x/{kind}") for kind in kinds]
    lines += [
        item("risk", "y/risk", eigenvalues=[], rank="many", P=None),
        item("risk", "z/risk", eigenvalues=[0.0, 0.0]),
    ]
    lines += [item("release", "y", knowledge=[], release="x", defenses={}, gate=None, noise_std="loud")]
    page = render(Record(run={"type": "run", "citations": [{}, None, {"text": "t"}]}, lines=lines))
    assert "No verdict" in page.text


def test_lines_that_cannot_be_read_are_counted() -> None:
    lines = [{"type": "score", "item": "a", "name": "psnr"}, {"type": "verdict", "item": "run", "verdict": "safe"}]
    page = render(Record(run={"type": "run"}, lines=lines))
    assert "2 lines of the record could not be read" in page.text


def test_scores_without_values_show_their_outcome(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    row = {"scenario": "a", "example": 0, "attack": "dlg"}
    lines = [item("release", "a/example 0", **row), item("attack", "a/example 0/dlg", **row, outcome="no_signal")]
    score = {"name": "pixel_rmse", "value": None, "unit": "pixel_rmse", "leakier": "lower", "evidence": "attack"}
    lines.append({"type": "score", "item": "a/example 0/dlg", **row, **score, "outcome": "no_signal"})
    page = render(Record(run=sample.run_line(), lines=lines))
    assert "no signal" in page.text
    assert page.numbers.count(0.0) == 0


def test_a_disclosed_truth_is_printed_loudly(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    release = item("release", "a/example 0", scenario="a", example=0, knowledge=sample.knowledge([], disclosed=True))
    page = render(Record(run=sample.run_line(), lines=[release]))
    assert "Disclosed truth. The true labels of the private examples were given to the adversary." in page.text
    assert any("callout-loud" in (a.get("class") or "") for _, a in page.tags)


def test_an_inconsistent_update_names_its_causes(tmp_path: Path) -> None:
    gate = {"status": "inconsistent", "cosine": 0.64, "chi_square_z": None, "causes": ["the client ran in train mode"]}
    release = item("release", "a/example 0", scenario="a", example=0, gate=gate)
    page = render(Record(run={"type": "run"}, lines=[release]))
    assert "not what the stated model, protocol and defenses produce" in page.text
    assert "the client ran in train mode" in page.text


def hostile_record(folder: Path) -> Record:
    """The digits record with a hostile text wherever a text stands."""
    file = digits_audit(folder, pictures=False)
    kept = {"type", "kind", "status", "outcome", "evidence", "leakier", "verdict", "unit", "picture", "value"}

    def poison(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            made = {name: poison(entry, name) for name, entry in value.items()}
            return (
                made
                if key not in ("shared", "renamed", "versions", "host")
                else {f"{HOSTILE}{n}": v for n, v in made.items()}
            )
        if isinstance(value, list):
            return [poison(entry, key) for entry in value]
        return HOSTILE + value if isinstance(value, str) and key not in kept else value

    rows = [poison(json.loads(line)) for line in file.read_text().splitlines()]
    for row in rows:
        if row["type"] == "verdict":
            row["item"] = row["item"].removeprefix(HOSTILE)
    return Record(run=rows[0], lines=rows[1:])


def test_hostile_text_never_becomes_markup(tmp_path: Path) -> None:
    record = hostile_record(tmp_path)
    text = render_html(build(record))
    assert "<script" not in text
    assert "<img src=x" not in text
    page = Page(text)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert(1)</script>" in page.text
    assert "{{ 7*7 }}" in page.text
    markdown = write_markdown(record, tmp_path / "r.md").read_text()
    assert "<script" not in markdown
    assert "<img" not in markdown


def test_hostile_numbers_are_text(tmp_path: Path) -> None:
    attack = item("attack", "a", scenario="a", example=HOSTILE, attack=HOSTILE, iterations=HOSTILE, history=HOSTILE)
    release = item("release", "a", scenario=HOSTILE, example=HOSTILE, noise_std=HOSTILE)
    spectrum = item("risk", HOSTILE, example=HOSTILE, eigenvalues=[1.0, 2.0, HOSTILE], rank=HOSTILE)
    text = render_html(build(Record(run={"type": "run", "seed": HOSTILE}, lines=[attack, release, spectrum])))
    Page(text)
    assert "<script" not in text


def test_a_missing_record_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a record"):
        write_html(tmp_path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()

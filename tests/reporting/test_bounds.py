"""Kinds of data and number formats in a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gradleak.reporting.report import build
from tests.reporting.parsed import Page
from tests.reporting.sample_record import Row, SampleRecord

from gradleak.reporting import write_json, write_markdown
from gradleak.reporting.html import render_html
from gradleak.reporting.words import precision
from gradleak.results import Record


def item(kind: str, name: str, **fields: Any) -> Row:
    return {"type": "item", "group": "g", "line": 0, "of": 1, "item": name, "kind": kind, "status": "done", **fields}


def record(*lines: Row) -> Record:
    release = item("release", "noisy/example 0", scenario="noisy", example=0, noise_std=0.1)
    return Record(run={"type": "run", "name": "b"}, lines=[release, *lines])


@pytest.mark.parametrize(("kind", "noun"), [("tabular", "feature"), ("signal", "sample"), ("image", "pixel")])
def test_the_error_is_named_by_the_kind_of_the_data(kind: str, noun: str, tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    rows = sample.attempt("s", 0, "dlg", 0.1)
    release = item("release", "s/example 0", scenario="s", example=0, domain_kind=kind)
    control = item("control", "control/positive", passed=True)
    made = Record(run={"thresholds": {"pixel_rmse": 0.1}}, lines=[release, *rows, control])
    page = Page(render_html(build(made)))
    assert f"Smallest {noun} RMSE" in page.text
    assert f"{noun}s scaled to [0, 1]" in page.text
    assert f"mean squared {noun} error" in page.text
    text = write_markdown(made, tmp_path / "r.md").read_text()
    assert f"Smallest {noun} RMSE reached" in text
    assert json.loads(write_json(made, tmp_path / "r.json").read_text())["data"] == kind
    if kind != "image":
        for word in ("pixel", "picture", "mid-gray"):
            assert word not in page.text.replace("have no pictures", "").replace("Pictures", "").lower()
            assert word not in text.replace("resolved plan", "").lower()


def test_the_plan_states_the_kind_before_there_is_a_release() -> None:
    assert build(Record(run={"plan": {"data": [{"domain": {"kind": "tabular"}}]}})).error == "feature RMSE"
    assert build(Record(run={"plan": {"data": [None]}})).error == "pixel RMSE"


def test_half_precision_is_told_with_the_worst_tensors(tmp_path: Path) -> None:
    tensors = {f"layer{place}.weight": {"zero": place / 10, "subnormal": 0.05} for place in range(6)}
    facts = {
        "dtype": "float16",
        "made_in": None,
        "zero": 0.25,
        "subnormal": 0.125,
        "non_finite": 0.0,
        "tensors": tensors,
    }
    release = item("release", "s/example 0", scenario="s", example=0, precision=facts)
    made = Record(run={}, lines=[release])
    page = Page(render_html(build(made)))
    for part in ("the update came in float16", "38", "55", "of layer5.weight", "and more"):
        assert part in page.text
    assert "of layer1.weight" not in page.text
    assert "the update came in float16" in write_markdown(made, tmp_path / "r.md").read_text()


def test_number_formats_in_words() -> None:
    wide = {"dtype": "float32", "made_in": None, "zero": 0.4, "subnormal": 0.0, "non_finite": 0.0, "tensors": {}}
    assert precision(wide) == ""
    assert precision({}) == ""
    made = precision(wide | {"made_in": "float16"})
    assert "few digits of float16, in which they were made" in made
    assert "are NaN or infinite." in precision(wide | {"non_finite": 0.5})

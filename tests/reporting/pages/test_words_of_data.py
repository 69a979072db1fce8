"""Words of a report go by the kind of the data, and number formats are told in words."""

from __future__ import annotations

import pytest
from tests.audits.released.evidence import attack, control, release, rmse, score
from tests.reporting.parsed import Page

from gradleak.reporting.context import Context
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.reporting.pages.released import knowledge, precision
from gradleak.results import Evidence, Record
from gradleak.results.findings.released import TensorPrecision, UpdatePrecision


@pytest.mark.parametrize(("kind", "noun"), [("tabular", "feature"), ("signal", "sample"), ("image", "pixel")])
def test_the_error_is_named_by_the_kind_of_the_data(kind: str, noun: str) -> None:
    squared = score("mse", 0.01, unit="pixel_mse", evidence=Evidence.ATTACK)
    tried = attack(None, scores=(rmse(0.1, Evidence.ATTACK), squared))
    record = Record.of([release(), tried, control("positive", passed=True)])
    plan = {"data": [{"domain": {"kind": kind}}]}
    report = assemble(Record(run={**record.run, "plan": plan, "thresholds": {"pixel_rmse": 0.1}}, lines=record.lines))
    page, text = Page(render_html(report)).text, render_markdown(report)
    for shown in (page, text):
        assert f"Smallest {noun} RMSE" in shown
    assert f"{noun}s scaled to [0, 1]" in page
    assert f"mean squared {noun} error" in page
    assert summarize(report)["data"] == kind
    if kind != "image":
        for word in ("pixel", "picture", "mid-gray", "psnr", "ssim"):
            assert word not in page.replace("pixel rmse 0.1", "").lower()
            assert word not in text.replace("pixel rmse 0.1", "").lower()


def test_the_plan_states_the_kind_before_there_is_a_release() -> None:
    def error(plan: object) -> str:
        return Context(record=Record(run={"plan": plan})).error

    assert error({"data": [{"domain": {"kind": "tabular"}}]}) == "feature RMSE"
    assert error({"data": [None]}) == "pixel RMSE"
    assert error(None) == "pixel RMSE"


def test_half_precision_is_told_with_the_worst_tensors() -> None:
    tensors = {
        f"layer{place}.weight": TensorPrecision(dtype="float16", entries=10, zero=place / 10, subnormal=0.05)
        for place in range(6)
    }
    told = precision(UpdatePrecision(dtype="float16", zero=0.25, subnormal=0.125, tensors=tensors))
    for part in ("the update came in float16", "38", "55", "of layer5.weight", "and more"):
        assert part in told
    assert "of layer1.weight" not in told


def test_number_formats_in_words() -> None:
    wide = UpdatePrecision(dtype="float32", zero=0.4)
    assert precision(wide) == ""
    made = precision(wide.model_copy(update={"made_in": "float16"}))
    assert "few digits of float16, in which they were made" in made
    assert "are NaN or infinite." in precision(wide.model_copy(update={"non_finite": 0.5}))


def test_public_data_are_counted() -> None:
    card = {"use": "Batch", "inputs": "int64[1200, 24]", "targets": "int64[1200]"}
    assert knowledge("public", card) == "1,200 examples"
    assert knowledge("public", "a table") == "a table"

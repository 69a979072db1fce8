"""Bounds of a setting, kinds of data and number formats in a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gradleak.reporting.report import build
from tests.reporting.parsed import Page
from tests.reporting.sample_record import Row, SampleRecord, score

from gradleak.reporting import write_json, write_markdown
from gradleak.reporting.html import render_html
from gradleak.reporting.words import precision
from gradleak.results import Record

PRIOR = "Gaussian fitted to 300 public examples, Ledoit-Wolf shrinkage 0.05"
HOSTILE = "<script>alert(1)</script>"


def item(kind: str, name: str, **fields: Any) -> Row:
    return {"type": "item", "group": "g", "line": 0, "of": 1, "item": name, "kind": kind, "status": "done", **fields}


def bound(example: int, value: float | None, **fields: Any) -> list[Row]:
    row = item("setting", f"noisy/example {example}/setting", scenario="noisy", example=example)
    details = {
        "noise_std": 0.1, "holds_for_release": True, "prior": {"origin": PRIOR, "entries": 64, "trace": 4.2},
        "prior_error": 0.2675, "plug_in": 0.3,
    } | fields.pop("details", {})  # fmt: skip
    made = {"evidence": "lower_bound", "note": "average over the stated prior", "details": details, **fields}
    return [row, score(str(row["item"]), row, "bayesian_cramer_rao", value, **made)]


def record(*lines: Row) -> Record:
    release = item("release", "noisy/example 0", scenario="noisy", example=0, noise_std=0.1)
    return Record(run={"type": "run", "name": "b"}, lines=[release, *lines])


def test_the_weakest_bound_of_a_scenario_stands_with_its_prior_and_its_words(tmp_path: Path) -> None:
    made = record(*bound(0, 0.1875), *bound(1, 0.15625))
    page = Page(render_html(build(made)))
    assert {0.15625, 0.2675} <= set(page.numbers)
    for part in ("What no attacker does better than, on average", PRIOR, "not a worst case", "lower bound"):
        assert part in page.text
    view = json.loads(write_json(made, tmp_path / "r.json").read_text())["bounds"]
    assert view == [{
        "scenario": "noisy", "value": 0.15625, "evidence": "lower_bound", "unit": "pixel_rmse", "prior": PRIOR,
        "prior_error": 0.2675, "noise_std": 0.1, "holds_for_release": True, "note": "average over the stated prior",
    }]  # fmt: skip
    text = write_markdown(made, tmp_path / "r.md").read_text()
    assert "## What no attacker does better than, on average" in text
    assert "0.156 \\[lower bound\\]" in text


def chance(example: int, value: float | None, **fields: Any) -> list[Row]:
    row = item("setting", f"noisy/example {example}/setting", scenario="noisy", example=example)
    details = {
        "within": 0.1, "mu": 0.5, "kappa": 0.0078125, "each_example": 0.03125, "rounds": 4, "epsilon": 1.875, "delta": 1e-5,
        "prior": {"origin": "one of 128 candidates, each as likely, any two more than 0.2 apart"},
    } | fields.pop("details", {})  # fmt: skip
    made = {"evidence": "upper_bound", "unit": "probability", "note": "the stated prior", "details": details, **fields}
    return [row, score(str(row["item"]), row, "reconstruction_probability", value, **made)]


def test_the_largest_chance_of_a_scenario_stands_with_its_prior_and_its_privacy(tmp_path: Path) -> None:
    made = record(*chance(0, 0.03125), *chance(1, 0.0625))
    page = Page(render_html(build(made)))
    assert {0.0625, 0.0078125, 0.03125} <= set(page.numbers)
    for part in ("How often any attacker can rebuild an example", "one of 128 candidates", "μ = 0.5", "ε = 1.88",
                 "an average over that prior", "upper bound"):  # fmt: skip
        assert part in page.text
    [view] = json.loads(write_json(made, tmp_path / "r.json").read_text())["chances"]
    assert (view["value"], view["evidence"], view["rounds"], view["blind"]) == (0.0625, "upper_bound", 4, 0.0078125)
    text = write_markdown(made, tmp_path / "r.md").read_text()
    assert "## How often any attacker can rebuild an example" in text
    assert "0.0625 \\[upper bound\\]" in text
    assert "What no attacker does better than" not in page.text


def test_a_chance_without_a_value_says_why() -> None:
    note = f"the release has no differential privacy {HOSTILE}"
    lines = chance(0, None, outcome=_outcome("not_informative"), note=note, details={"mu": None, "prior": HOSTILE})
    html = render_html(build(record(*lines)))
    assert "no differential privacy" in Page(html).text
    assert "<script" not in html
    [view] = build(record(*lines)).chances
    assert (view.value.value, view.value.outcome.label, view.prior) == (None, "not_informative", "")


def test_what_is_no_bound_says_so() -> None:
    lines = bound(0, 0.2, evidence="estimate", note="no bound: the release jumps", details={"holds_for_release": False})
    page = Page(render_html(build(record(*lines))))
    assert "no bound: the release jumps" in page.text
    [missing] = build(record(*bound(0, None, outcome=_outcome("not_informative"), details={"prior": None}))).bounds
    assert (missing.value.value, missing.value.outcome.label, missing.prior) == (None, "not_informative", "")


def _outcome(label: str) -> Any:
    from gradleak.results import Outcome

    return Outcome.from_label(label)


def test_no_section_without_a_bound(page: Page) -> None:
    assert "What no attacker does better than" not in page.text


def test_hostile_priors_are_text() -> None:
    lines = bound(0, 0.2, note=HOSTILE, details={"prior": {"origin": HOSTILE}, "noise_std": HOSTILE})
    assert "<script" not in render_html(build(record(*lines)))


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


def test_a_derivative_that_could_not_be_checked_is_told() -> None:
    place = {"scenario": "noisy", "example": 0}
    line = item("derivative", "noisy/example 0/derivative", **place, check="not checked", note="too many kinks")
    assert (
        "could not be checked by differences of values: too many kinks." in Page(render_html(build(record(line)))).text
    )
    done = item("derivative", "noisy/example 0/derivative", **place, check="confirmed")
    assert "could not be checked" not in Page(render_html(build(record(done)))).text

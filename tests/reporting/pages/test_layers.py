"""The section on where a release leaks, from lines that were made up: nothing is measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from gradleak.reporting.reading import read
from gradleak.reporting.report import build
from gradleak.reporting.summary import summarize
from tests.reporting.layer_lines import LAYERS, Row, advice, digits, layer_score, profile, record
from tests.reporting.parsed import Page

from gradleak.reporting.html import render_html
from gradleak.reporting.layers_plots import heat_map, heat_maps
from gradleak.reporting.layers_view import LayerMap, layer_maps, leading_maps
from gradleak.reporting.markdown import render_markdown
from gradleak.results import Leakier, Outcome, Record
from gradleak.risk import LayerProfile

HOSTILE = "<script>alert(1)</script>.$x$ | *a*_b"


def maps(*groups: Sequence[Mapping[str, Any]]) -> list[LayerMap]:
    return layer_maps(read(record(*groups)))


def colors(one: LayerMap, column: int = 0) -> list[float | None]:
    return [cell.color for cell in one.columns[column].cells.values()]


def standings(one: LayerMap, column: int = 0) -> list[str]:
    return [cell.standing for cell in one.columns[column].cells.values()]


def test_layers_stand_in_the_order_of_the_model_and_inputs_before_attributes() -> None:
    (one,) = maps(digits())
    assert (one.title, list(one.layers)) == ("digits · by layer", list(LAYERS))
    assert [column.label for column in one.columns] == [
        "original information",
        "sensitivity",
        "latent information",
        "subspace distance",
    ]
    assert [column.about for column in one.columns] == ["original", "original", "latent", "latent"]
    drawn = [text.strip() for text in Page(heat_map(one)).by_tag["text"]]
    assert [text for text in drawn if text in LAYERS] == list(LAYERS)
    assert {"15.2", "0.31", "0.41", "2.1\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10⁻⁷"} <= set(drawn)  # noqa: RUF001


def test_color_is_the_share_of_the_largest_value_of_the_measure_alone() -> None:
    (one,) = maps(
        profile("latent_information", [0.1, 0.4, 0.0, -0.2]), profile("mine_information", [3.0, 6.0, 1.5, 0.0])
    )
    assert colors(one, 0) == pytest.approx([0.25, 1.0, 0.0, 0.0])
    assert colors(one, 1) == pytest.approx([0.5, 1.0, 0.25, 0.0])


def test_where_lower_leaks_more_it_is_turned_round() -> None:
    lower = {"unit": "pixel_rmse", "leakier": Leakier.LOWER}
    values = [0.2, (0.05, 0.04, 0.09), float("inf"), (0.1, 0.08, 0.12)]
    (one,) = maps(profile("gaussian_reconstruction_error", values, **lower))
    assert colors(one) == pytest.approx([0.25, 1.0, 0.0, 0.5])
    assert standings(one) == ["untested", "leakiest", "untested", "reaches"]
    assert [cell.layer for cell in one.columns[0].ranked] == ["body.3", "head", "body.0", "body.6"]
    assert "lower leaks more" in heat_map(one)
    assert "Lower leaks more" in render_markdown(build(record(profile("x", values, **lower))))


@pytest.mark.parametrize(
    ("values", "leakier", "shares"),
    [
        ([0.0, 0.0, 0.0, 0.0], Leakier.HIGHER, [0.0, 0.0, 0.0, 0.0]),
        ([float("inf"), 5.0, 1.0, 0.0], Leakier.HIGHER, [1.0, 0.0, 0.0, 0.0]),
        ([0.0, 5.0, 1.0, 0.0], Leakier.LOWER, [1.0, 0.0, 0.0, 1.0]),
        ([-1.0, -2.0, -3.0, -0.5], Leakier.HIGHER, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_colors_of_odd_values(values: list[float], leakier: Leakier, shares: list[float]) -> None:
    (one,) = maps(profile("x", values, leakier=leakier))
    assert colors(one) == shares


def test_rivals_are_those_of_the_profile() -> None:
    """The view goes by the same rule as `LayerProfile` where the record does not say more."""
    given = [(0.5, 0.4, 0.6), (0.45, 0.35, 0.55), (0.1, 0.05, 0.2), 0.3]
    scores = {name: layer_score("latent_information", one) for name, one in zip(LAYERS, given, strict=True)}
    known = LayerProfile(measure="latent_information", scores=scores, groups=LAYERS)
    lines = [{"type": "item", "kind": "layers", "setting": "s", **line} for line in known.lines("i")]
    for line in lines:
        line.pop("rival", None)
    (one,) = maps(lines)
    column = one.columns[0]
    assert column.leakiest is not None
    assert column.leakiest.layer == known.leakiest
    assert [cell.layer for cell in column.rivals] == known.rivals()
    assert [cell.layer for cell in column.ranked] == known.ranked
    assert [line["rank"] for line in lines] == [cell.place for cell in column.cells.values()]


def test_what_the_record_says_of_rivals_counts_more_than_intervals() -> None:
    lines = profile("latent_information", [(0.5, 0.4, 0.6), (0.45, 0.35, 0.55), (0.1, 0.0, 0.2), 0.3])
    for line, rival in zip(lines, (False, False, True, False), strict=True):
        line["rival"] = rival
    assert standings(maps(lines)[0]) == ["leakiest", "below", "reaches", "below"]


def test_layers_are_compared_by_effect_size_where_all_have_one() -> None:
    (one,) = maps(digits())
    column = one.columns[-1]
    assert column.by_effect
    # The largest distance is that of body.3.
    assert column.leakiest is not None
    assert (column.leakiest.layer, column.leakiest.score.value) == ("body.6", 1.4)
    assert colors(one, 3) == pytest.approx([0.4 / 6, 2.5 / 6, 1.0, 1.0 / 6])
    assert "compared by effect size" in heat_map(one)
    assert "effect 2.5" in heat_map(one)


def test_cells_without_a_value_are_hatched_and_named() -> None:
    lost = (Outcome.NOT_INFORMATIVE, "two entries alone")
    (one,) = maps(profile("subspace_distance", [lost, lost, 0.4, 0.2]))
    svg = heat_map(one)
    page = Page(svg)
    drawn = [text.strip() for text in page.by_tag["text"]]
    assert drawn.count("not informative") == 2
    # Two hatched cells and the one of the key.
    assert len(re.findall(r"fill: url\(#layers-h", svg)) == 3
    assert colors(one)[:2] == [None, None]
    assert "Without a value: body.0 (not informative), body.3 (not informative)." in " ".join(page.by_tag["desc"])
    text = render_markdown(build(record(profile("subspace_distance", [lost, lost, 0.4, 0.2]))))
    assert "| body.0 | not informative |" in text
    assert "not informative: two entries alone" in text


def test_the_alternative_text_names_the_leakiest_and_its_rivals() -> None:
    (text,) = Page(heat_map(maps(digits())[0])).by_tag["desc"]
    assert "4 rows in the order of the model (by layer) by 4 measures" in text
    assert "original information: body.0 leaks most, 15.2 nats, not told from body.3." in text


def test_the_same_maps_give_the_same_figures_in_the_colors_of_the_page() -> None:
    svg = heat_map(maps(digits())[0])
    assert svg == heat_map(maps(digits())[0])
    assert re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]+\)", "", svg)) == []


@pytest.mark.parametrize("count", [1, 20])
def test_few_and_many_layers_are_drawn_with_their_whole_names(count: int) -> None:
    names = [f"features.denseblock{place // 5}.denselayer{place % 5}.convolution" for place in range(count)]
    layers = {name: (f"{name}.weight",) for name in names}
    (one,) = maps(profile("latent_information", [0.1 + place for place in range(count)], layers=layers))
    drawn = "".join(text.strip() for text in Page(heat_map(one)).by_tag["text"])
    assert all(name in drawn for name in names)


def test_a_name_without_end_keeps_both_ends_and_its_place_in_the_model() -> None:
    names = [f"a{'x' * 500}{end}" for end in "yz"]
    (one,) = maps(profile("m", [1.0, 2.0], layers=dict.fromkeys(names, ())))
    drawn = "".join(text.strip() for text in Page(heat_map(one)).by_tag["text"])
    assert "no. 1:axxx" in drawn
    assert "no. 2:axxx" in drawn
    assert names[1] in render_markdown(build(record(profile("m", [1.0, 2.0], layers=dict.fromkeys(names, ())))))


def test_more_than_six_measures_stand_in_several_figures() -> None:
    several = maps(*(profile(f"measure_{place}", [1.0, 2.0, 3.0, 4.0]) for place in range(8)))
    (figures,) = heat_maps(several)
    assert len(figures) == 2
    ids = [a["id"] for svg in figures for _, a in Page(svg).tags if "id" in a]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (LAYERS, "by layer"),
        ({name: (name,) for name in ("a", "b")}, "by layer"),
        ({name: (name,) for name in ("a.weight", "a.bias")}, "by tensor"),
        ({"a + b": ("a.weight", "b.weight"), "b + c": ("b.weight", "c.weight")}, "sets of 2 consecutive layers"),
        ({"body": ("a.weight", "b.weight"), "end": ("c.weight",)}, "named groups"),
        ({"everything": ("a.weight", "c.bias"), "last bias": ("c.bias",)}, "what is visible"),
    ],
)
def test_groupings_have_a_map_each(layers: dict[str, tuple[str, ...]], words: str) -> None:
    values = [1.0 + place for place in range(len(layers))]
    found = maps(digits(), profile("original_information", values, layers=layers, setting="other"))
    assert found[1].grouping == words
    if words == "what is visible":
        assert leading_maps(found) == found[:1]
        assert found[1].noun == "Visible set"


def test_scenarios_have_maps_of_their_own_and_advice_stays_with_its_own() -> None:
    first, second = (
        [line | {"scenario": name, "item": f"{name}/digits"} for line in digits()] for name in ("plain", "noisy")
    )
    found = maps(first, second)
    assert [one.title for one in found] == ["plain · digits · by layer", "noisy · digits · by layer"]
    assert [len(one.advice) for one in found] == [1, 1]


def test_a_second_profile_of_a_measure_has_a_name_of_its_own() -> None:
    twice = [profile("latent_information", values) for values in ([1.0, 0, 0, 0], [0, 2.0, 0, 0])]
    (one,) = maps(*twice)
    assert [column.label for column in one.columns] == ["latent information", "latent information (2)"]
    for lines, attribute in zip(twice, ("sex", "age"), strict=True):
        for line in lines:
            line |= {"attribute": attribute, "item": attribute}
    (one,) = maps(*twice)
    assert [column.label for column in one.columns] == ["latent information: sex", "latent information: age"]


def test_advice_is_ranked_in_plain_words_with_what_it_does_not_say() -> None:
    report = build(record(digits()))
    (view,) = maps(digits())[0].advice
    assert [row.layer for row in view.chosen] == ["body.6", "body.0", "body.3"]
    assert view.share == pytest.approx(0.1)
    assert view.rows[1].why == "leaks most by original information, sensitivity."
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert "Leaks most by latent information, subspace distance." in text
        assert "What the advice does not say: that it is enough" in text
        assert "guarantees nothing" in text
    markdown = render_markdown(report)
    assert "| 3 | head | not chosen | 54,000 | 90\N{NO-BREAK SPACE}% | Has no value by original information" in markdown


def test_the_top_of_a_report_names_the_leakiest_layers_and_what_to_protect() -> None:
    report = build(record(digits()))
    page, text = Page(render_html(report)), render_markdown(report)
    assert page.text.index("Leaks most about the inputs") < page.text.index("A release is made of layers")
    assert "- Leaks most about the inputs: body.0, 15.2 \\[attack\\] (nats by original information" in text
    assert "- Leaks most about an attribute: body.6, 0.41 \\[estimate\\]" in text
    assert (
        "- To protect first, within the budget: body.6, body.0, body.3 (10\N{NO-BREAK SPACE}% of all parameters); no guarantee"
        in text
    )
    assert ("a", {"href": "#layers"}) in page.tags
    for shown in (page.text, text):
        assert "Measures of layers alone: the measures are the defender's" in shown
        for absent in ("RMSE", "lind baseline", "No reconstruction was tried", "Attacks, "):
            assert absent not in shown


def test_a_leakier_layer_that_does_not_fit_is_named_beside_the_chosen_ones() -> None:
    ranked = [("head", 0.9, False, "leaks most"), ("body.0", 0.003, True, "leaks less")]
    report = build(record(profile("latent_information", [0.1, 0.2, 0.3, 0.4]), advice(ranked)))
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert text.lower().count("ahead of it, but too large for the budget: head") == 2
    assert maps(digits())[0].advice[0].passed == ""


def test_tables_hold_interval_number_evidence_rank_and_what_chance_gives() -> None:
    text = render_markdown(build(record(digits())))
    assert (
        "| 2 | body.3 | 2 | 7.4 \\[attack\\] | 4 to 14.1 | 12 | yes, not told apart | SSIM 0.5, blind attacker "
        "0.11; beyond the blind attacker 7 | converged |"
    ) in text
    assert "right in 90 %, blind guess 70 %" in text
    assert "random groups 1.1; p = 0.01" in text
    shuffled = profile("latent_information", [0.4, 0.3, 0.2, 0.1])
    for line in shuffled:
        line["null"] = layer_score("latent_information", (0.01, -0.02, 0.03)).to_dict()
    assert "shuffled: 0.01 (−0.02 to 0.03)" in render_markdown(build(record(shuffled)))  # noqa: RUF001


def test_every_number_is_in_the_document_for_machines() -> None:
    (entry,) = summarize(build(record(digits())))["layers"]
    assert entry["grouping"] == "by layer"
    first = entry["profiles"][0]
    assert (first["measure"], first["leakiest"], first["may_be_leakiest"]) == (
        "original_information",
        "body.0",
        ["body.3"],
    )
    assert (
        first["scores"][0] | {"layer": "body.0", "value": 15.2, "evidence": "attack", "rank": 1} == first["scores"][0]
    )
    assert (first["scores"][3]["value"], first["scores"][3]["outcome"]) == (None, "unsupported")
    assert entry["advice"][0]["protect"] == ["body.6", "body.0", "body.3"]
    json.dumps(entry, allow_nan=False)


def test_a_failed_control_is_told_beside_the_numbers() -> None:
    control: Row = {
        "type": "item",
        "kind": "control",
        "item": "control/negative/a",
        "layers_name": "digits",
        "control_of": "a",
    }
    lines = profile("latent_information", [0.4, 0.3, 0.2, 0.1], item="a")
    report = build(record(lines, [control | {"passed": False, "note": "found something in head"}]))
    assert "control FAILED" in heat_map(layer_maps(report.reading)[0])
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert "The negative control of this measure failed" in text
        assert "Negative control of where it leaks: a shuffled attribute, a" in text
        assert "something beyond chance" in text
    passed = build(record(lines, [control | {"passed": True}]))
    assert "control FAILED" not in heat_map(layer_maps(passed.reading)[0])
    assert [entry["passed"] for entry in summarize(passed)["controls"]] == [True]


def test_refused_measures_have_a_column_and_one_line_among_the_refused() -> None:
    lost = (Outcome.UNSUPPORTED, "the model mixes examples")
    lines = profile(
        "original_information", [lost] * 4, fields={"status": "refused", "note": lost[1], "outcome": "unsupported"}
    )
    bare = {"type": "item", "kind": "layers", "setting": "digits", "item": "x", "measure": "mine_information"}
    report = build(record(lines, [bare | {"status": "failed", "outcome": "failed", "note": "out of memory"}]))
    assert [problem.note for problem in report.problems] == ["the model mixes examples", "out of memory"]
    (one,) = layer_maps(report.reading)
    assert not one.valued
    assert [len(column.cells) for column in one.columns] == [4, 0]
    assert Page(heat_map(one)).by_tag["text"].count("failed") == 4
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert "No layer has a value by any measure" in text
        assert "out of memory" in text


def test_hostile_names_are_text() -> None:
    layers = {HOSTILE: (HOSTILE,), "b": ("b.weight",)}
    words = {"attribute": HOSTILE, "settings": HOSTILE, "grouping": HOSTILE}
    lines = profile(HOSTILE, [2.0, (Outcome.FAILED, HOSTILE)], layers=layers, setting=HOSTILE, fields=words)
    told = advice([(HOSTILE, 0.1, True, HOSTILE)], layers=layers, setting=HOSTILE, note=HOSTILE, profiles=[HOSTILE])
    report = build(record(lines, told))
    html = render_html(report)
    page = Page(html)
    assert "<script" not in html
    assert "<script>alert(1)</script>.$x$" in page.text
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script" not in render_markdown(report)


@pytest.mark.parametrize("name", ["b\x00\x1b[1m\n", "", "层 · слой", "$\\frac$"])
def test_odd_names_are_drawn(name: str) -> None:
    page = Page(heat_map(maps(profile("m", [1.0, 2.0], layers={name: (), "b": ()}))[0]))
    assert any(tag in ("svg", "img") for tag, _ in page.tags)


def test_a_record_cut_short_or_bent_is_read_as_far_as_it_goes() -> None:
    lines = digits()
    for end in (0, 1, 3, 6, len(lines) - 2):
        report = build(record(lines[:end]))
        render_markdown(report)
        assert len(layer_maps(report.reading)) == (1 if end else 0)
    bent = [{"type": "item", "kind": "layers", "layer": "a", "score": score} for score in (None, 3, {}, {"value": "x"})]
    odd = [
        {"type": "item", "kind": "layer_advice", "layer": "a", "rank": "first", "share": [], "why": None, "profiles": 3}
    ]
    report = build(record(bent, odd, [{"type": "item", "kind": "layers"}, {"type": "item", "kind": "layer_advice"}]))
    assert report.unreadable == 4
    Page(render_html(report))
    render_markdown(report)
    json.dumps(summarize(report), allow_nan=False)


def test_records_without_such_lines_say_nothing_of_layers(report: Any) -> None:
    assert summarize(report)["layers"] == []
    assert "Where it leaks" not in render_markdown(report)
    empty = render_html(build(Record(run={"type": "run"})))
    assert "Where it leaks" not in empty
    assert 'id="layers"' not in empty


def test_what_is_not_beyond_chance_is_not_said_to_leak_most() -> None:
    by_effect = [
        {"effect_size": -4.0, "p_value": 1.0},
        {"effect_size": 2.7, "p_value": 0.05},
        {"effect_size": 2.3, "p_value": 0.005},
        {"effect_size": -0.6, "p_value": 0.7},
    ]
    (one,) = maps(profile("subspace_distance", [0.9, 1.4, 1.8, 1.0], details=by_effect))
    assert [cell.may_lead for cell in one.columns[0].ranked] == [
        "leaks most",
        "not tested, no interval",
        "not beyond chance",
        "not beyond chance",
    ]
    assert [cell.layer for cell in one.columns[0].rivals] == ["body.6"]

    nothing = profile("latent_information", [(0.1, -0.1, 0.3), (0.0, -0.1, 0.1), (0.02, -0.1, 0.2), (0.0, -0.3, 0.1)])
    page = render_markdown(build(record(nothing)))
    assert "| body.0 | ° 0.1 |" in page
    assert "first, but not beyond chance" in page
    assert "nats by latent information, −0.1 to 0.3; not beyond chance" in page  # noqa: RUF001
    assert "first, but not beyond chance" in render_html(build(record(nothing)))
    assert ", not beyond chance, not told from" in heat_map(maps(nothing)[0])


def test_errors_are_in_the_unit_of_the_data() -> None:
    for kind, unit in (("image", "pixel RMSE"), ("tabular", "feature RMSE"), (None, "entry RMSE")):
        fields = {} if kind is None else {"data_kind": kind}
        lower = {"unit": "pixel_rmse", "leakier": Leakier.LOWER}
        (one,) = maps(profile("linearized_posterior_error", [0.1, 0.2, 0.3, 0.4], fields=fields, **lower))
        assert one.columns[0].unit == unit

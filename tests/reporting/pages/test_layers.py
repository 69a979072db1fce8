"""The section on where a release leaks, from findings that were made up: nothing is measured."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.reporting.pages.made_up_layers import LAYERS, Given, advice, digits, layer_score, profile, record, shuffled
from tests.reporting.parsed import Page

from gradleak.reporting.blocks import Figure
from gradleak.reporting.context import Context
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import Report, assemble
from gradleak.reporting.pages.layers import page as page_of
from gradleak.reporting.pages.layers import plots
from gradleak.reporting.pages.layers.view import (
    LayerMap,
    chosen,
    chosen_share,
    layer_maps,
    leading_maps,
    left_told,
    passed_over,
)
from gradleak.results import Finding, Leakier, Outcome, Status
from gradleak.results.findings.layers import VISIBLE, LayersFinding
from gradleak.risk import LayerProfile

HOSTILE = "<script>alert(1)</script>.$x$ | *a*_b"


def maps(*findings: LayersFinding) -> list[LayerMap]:
    return layer_maps(findings)


def heat_map(one: LayerMap) -> str:
    return plots.heat_map(one, one.columns, prefix="layers")


def build(*findings: Finding) -> Report:
    return assemble(record(*findings))


def colors(one: LayerMap, column: int = 0) -> list[float | None]:
    return [one.columns[column].color(layer) for layer in one.layers]


def standings(one: LayerMap, column: int = 0) -> list[str]:
    return [one.columns[column].standing(layer) for layer in one.layers]


def test_layers_stand_in_the_order_of_the_model_and_inputs_before_attributes() -> None:
    (one,) = maps(*digits())
    assert (one.title, list(one.layers)) == ("digits · by layer", list(LAYERS))
    assert [column.label for column in one.columns] == [
        "original information",
        "sensitivity",
        "latent information",
        "subspace distance",
    ]
    assert [column.finding.about for column in one.columns] == ["original", "original", "latent", "latent"]
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
    lower: dict[str, Any] = {"unit": "pixel_rmse", "leakier": Leakier.LOWER}
    values: list[Given] = [0.2, (0.05, 0.04, 0.09), float("inf"), (0.1, 0.08, 0.12)]
    (one,) = maps(profile("gaussian_reconstruction_error", values, **lower))
    assert colors(one) == pytest.approx([0.25, 1.0, 0.0, 0.5])
    assert standings(one) == ["untested", "leakiest", "untested", "reaches"]
    assert list(one.columns[0].ranked) == ["body.3", "head", "body.0", "body.6"]
    assert "lower leaks more" in heat_map(one)
    assert "; lower leaks more" in render_markdown(build(profile("x", values, **lower)))


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
    given: list[Given] = [(0.5, 0.4, 0.6), (0.45, 0.35, 0.55), (0.1, 0.05, 0.2), 0.3]
    scores = {name: layer_score("latent_information", one) for name, one in zip(LAYERS, given, strict=True)}
    known = LayerProfile(measure="latent_information", scores=scores, groups=LAYERS)
    (one,) = maps(profile("latent_information", given))
    column = one.columns[0]
    assert column.leakiest == known.leakiest
    assert column.rivals == known.rivals()
    assert list(column.ranked) == known.ranked
    assert [column.rank(layer) for layer in known.ranked] == [1, 2, 3, 4]


def test_what_the_record_says_of_rivals_counts_more_than_intervals() -> None:
    values: list[Given] = [(0.5, 0.4, 0.6), (0.45, 0.35, 0.55), (0.1, 0.0, 0.2), 0.3]
    found = profile("latent_information", values, rivals=(False, False, True, False))
    assert standings(maps(found)[0]) == ["leakiest", "below", "reaches", "below"]


def test_layers_are_compared_by_effect_size_where_all_have_one() -> None:
    (one,) = maps(*digits())
    column = one.columns[-1]
    assert column.by_effect
    # The largest distance is that of body.3.
    assert column.leakiest == "body.6"
    assert column.scores["body.6"].value == 1.4
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
    text = render_markdown(build(profile("subspace_distance", [lost, lost, 0.4, 0.2])))
    assert "| body.0 | not informative |" in text
    assert "not informative (two entries alone)" in text


def test_the_alternative_text_names_the_leakiest_and_its_rivals() -> None:
    (text,) = Page(heat_map(maps(*digits())[0])).by_tag["desc"]
    assert "4 rows in the order of the model (by layer) by 4 measures" in text
    assert "original information: body.0 leaks most, 15.2 nats; body.3 may leak as much." in text


def test_the_same_maps_give_the_same_figures_in_the_colors_of_the_page() -> None:
    svg = heat_map(maps(*digits())[0])
    assert svg == heat_map(maps(*digits())[0])
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
    assert names[1] in render_markdown(build(profile("m", [1.0, 2.0], layers=dict.fromkeys(names, ()))))


def test_more_than_six_measures_stand_in_several_figures() -> None:
    several = [profile(f"measure_{place}", [1.0, 2.0, 3.0, 4.0]) for place in range(8)]
    section = page_of(several, Context(record=record(*several)))
    assert section is not None
    figures = [block.draw() for block in section.sections[0].blocks if isinstance(block, Figure)]
    assert len(figures) == 2
    ids = [a["id"] for svg in figures for _, a in Page(svg).tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_groupings_and_scenarios_have_a_map_each_and_advice_stays_with_its_own() -> None:
    sets = {"everything": ("a.weight", "c.bias"), "last bias": ("c.bias",)}
    fields = {"grouping": VISIBLE, "item": "visible"}
    seen = profile("original_information", [1.0, 2.0], layers=sets, scenario="plain", fields=fields)
    found = maps(*digits(scenario="plain"), seen, *digits(scenario="noisy"))
    assert [one.title for one in found] == [
        "plain · digits · by layer",
        "plain · digits · what is visible",
        "noisy · digits · by layer",
    ]
    assert [one.advice is not None for one in found] == [True, False, True]
    assert leading_maps(found) == [found[0], found[2]]
    assert (found[1].noun, found[1].source, list(found[1].layers)) == ("Visible set", "plan", list(sets))
    assert [column.finding.measure for column in found[1].columns] == ["original_information"]


def test_what_tells_two_of_a_measure_apart_stays_behind_its_name() -> None:
    names = ("latent_information", "latent_information (2)", "mean_sensitivity (inf)")
    (one,) = maps(*(profile(name, [1.0, 0.0, 0.0, 0.0]) for name in names))
    labels = [column.label for column in one.columns]
    assert labels == ["sensitivity (inf)", "latent information", "latent information (2)"]


def test_advice_is_ranked_in_plain_words_with_what_it_does_not_say() -> None:
    report = build(*digits())
    told = maps(*digits())[0].advice
    assert told is not None
    assert [layer.name for layer in chosen(told)] == ["body.6", "body.0", "body.3"]
    assert chosen_share(told) == pytest.approx(0.1)
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert "Leaks most by latent information, subspace distance." in text
        assert "What the advice does not say: that it is enough" in text
        assert "guarantees nothing" in text
    markdown = render_markdown(report)
    assert "| 3 | head | not chosen | 54,000 | 90 % | Has no value by original information" in markdown


def test_the_top_of_a_report_names_the_leakiest_layers_and_what_to_protect() -> None:
    report = build(*digits())
    page, text = Page(render_html(report)), render_markdown(report)
    assert page.text.index("Leaks most about the inputs") < page.text.index("A release is made of layers")
    assert "- Leaks most about the inputs: body.0 \\[attack\\] (15.2 nats by original information" in text
    assert "- Leaks most about an attribute: body.6 \\[estimate\\] (0.41 nats by latent information" in text
    assert "- To protect first, within the budget: body.6, body.0, body.3 (10 % of all parameters; NOT ENOUGH: " in text
    assert text.count("beside them, head alone still tells 0.38 nats") == 2
    assert ("a", {"href": "#layers"}) in page.tags
    for shown in (page.text, text):
        assert "it never sees the private examples" in shown
        for absent in ("RMSE", "lind baseline", "No reconstruction was tried", "Attacks, "):
            assert absent not in shown


def test_a_leakier_layer_that_does_not_fit_is_named_beside_the_chosen_ones() -> None:
    ranked = [("head", 0.9, False, "leaks most"), ("body.0", 0.003, True, "leaks less")]
    told = advice(ranked)
    report = build(profile("latent_information", [0.1, 0.2, 0.3, 0.4]), told)
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert text.lower().count("ahead of it, but too large for the budget: head") == 2
    assert told.advice is not None
    assert passed_over(told.advice) == ["head"]
    assert passed_over(told.advice.but(layers=told.advice.layers[1:])) == []


def test_tables_hold_interval_number_evidence_rank_and_what_chance_gives() -> None:
    text = render_markdown(build(*digits()))
    assert (
        "| 2 | body.3 | 2 | 7.4 | 4 to 14.1 | 12 | yes, not distinguishable | SSIM 0.5, blind attacker "
        "0.11; beyond the blind attacker 7 | converged |"
    ) in text
    assert "Score \\[attack\\]" in text
    assert "right in 90 %, blind guess 70 %" in text
    assert "random groups 1.1; p = 0.01" in text
    latent = profile("latent_information", [0.4, 0.3, 0.2, 0.1])
    assert "shuffled: 0.01 (−0.02 to 0.03)" in render_markdown(build(latent, shuffled(latent)))  # noqa: RUF001


def test_every_number_is_in_the_document_for_machines() -> None:
    document = summarize(build(*digits()))
    first, *_, last = document["findings"]
    assert (first["measure"], first["grouping"]) == ("original_information", "by layer")
    best = first["scores"][0]
    assert (best["about"], best["value"], best["evidence"]) == ({"layer": "body.0"}, 15.2, "attack")
    assert (first["scores"][3]["value"], first["scores"][3]["outcome"]) == (None, "unsupported")
    protected = [layer["name"] for layer in last["advice"]["layers"] if layer["chosen"]]
    assert protected == ["body.6", "body.0", "body.3"]
    json.dumps(document, allow_nan=False)


def test_a_failed_control_is_told_beside_the_numbers() -> None:
    latent = profile("latent_information", [0.4, 0.3, 0.2, 0.1])
    failed = [latent, shuffled(latent, False, note="found something in head")]
    assert "control FAILED" in heat_map(maps(*failed)[0])
    report = build(*failed)
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert "The negative control of this measure failed" in text
        assert "Negative control of where it leaks: a shuffled attribute" in text
        assert "Found something in head" in text
    passed = [latent, shuffled(latent)]
    assert "control FAILED" not in heat_map(maps(*passed)[0])
    assert [entry["passed"] for entry in summarize(build(*passed))["controls"]] == [True]


def test_refused_measures_have_a_column_and_one_line_among_the_refused() -> None:
    lost = (Outcome.UNSUPPORTED, "the model mixes examples")
    refused = {"status": Status.REFUSED, "note": lost[1], "outcome": Outcome.UNSUPPORTED}
    failed = {"status": Status.FAILED, "note": "out of memory", "outcome": Outcome.FAILED, "layers": (), "scores": ()}
    found = [
        profile("original_information", [lost] * 4, fields=refused),
        profile("mine_information", [1.0] * 4, fields=failed),
    ]
    (one,) = maps(*found)
    assert not one.valued
    assert [len(column.scores) for column in one.columns] == [4, 0]
    assert Page(heat_map(one)).by_tag["text"].count("failed") == 4
    report = build(*found)
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert "No layer has a value by any measure" in text
        assert "the model mixes examples" in text
        assert "out of memory" in text
    assert [entry["note"] for entry in summarize(report)["problems"]] == [lost[1], "out of memory"]


def test_hostile_names_are_text() -> None:
    layers = {HOSTILE: (HOSTILE,), "b": ("b.weight",)}
    words = {"attribute": HOSTILE, "settings": HOSTILE, "grouping": HOSTILE, "about": "latent"}
    made = profile(HOSTILE, [2.0, (Outcome.FAILED, HOSTILE)], layers=layers, audit=HOSTILE, fields=words)
    told = advice([(HOSTILE, 0.1, True, HOSTILE)], layers=layers, audit=HOSTILE, note=HOSTILE, profiles=[HOSTILE])
    report = build(made, told)
    html = render_html(report)
    page = Page(html)
    assert html.count("<script") == 1  # of the page itself
    assert "<script>alert(1)</script>.$x$" in page.text
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script" not in render_markdown(report)


@pytest.mark.parametrize("name", ["b\x00\x1b[1m\n", "", "层 · слой", "$\\frac$"])
def test_odd_names_are_drawn(name: str) -> None:
    page = Page(heat_map(maps(profile("m", [1.0, 2.0], layers={name: (), "b": ()}))[0]))
    assert any(tag in ("svg", "img") for tag, _ in page.tags)


def test_a_record_cut_short_is_read_as_far_as_it_goes() -> None:
    found = digits()
    for end in (1, 3, len(found) - 1):
        report = build(*found[:end])
        render_markdown(report)
        Page(render_html(report))
        assert len(maps(*found[:end])) == 1
    assert maps() == []


def test_advice_alone_and_records_of_other_kinds_say_nothing_of_where_it_leaks(report: Report) -> None:
    alone = digits()[-1:]
    assert page_of(alone, Context(record=record(*alone))) is None
    assert "Where it leaks" not in render_markdown(report)
    assert 'id="layers"' not in render_html(report)


def test_what_is_not_beyond_chance_is_not_said_to_leak_most() -> None:
    by_effect = [
        {"effect_size": -4.0, "p_value": 1.0},
        {"effect_size": 2.7, "p_value": 0.05},
        {"effect_size": 2.3, "p_value": 0.005},
        {"effect_size": -0.6, "p_value": 0.7},
    ]
    (one,) = maps(profile("subspace_distance", [0.9, 1.4, 1.8, 1.0], details=by_effect))
    assert [one.columns[0].may_lead(layer) for layer in one.columns[0].ranked] == [
        "leaks most",
        "not tested, no interval",
        "not beyond chance",
        "not beyond chance",
    ]
    assert one.columns[0].rivals == ["body.6"]

    nothing = profile("latent_information", [(0.1, -0.1, 0.3), (0.0, -0.1, 0.1), (0.02, -0.1, 0.2), (0.0, -0.3, 0.1)])
    page = render_markdown(build(nothing))
    assert "| body.0 | ° 0.1 |" in page
    assert "first, but not beyond chance" in page
    assert "nats by latent information; −0.1 to 0.3; not beyond chance" in page  # noqa: RUF001
    assert "first, but not beyond chance" in render_html(build(nothing))
    assert ", not beyond chance; " in heat_map(maps(nothing)[0])


def test_errors_are_in_the_unit_of_the_data() -> None:
    for kind, unit in (("image", "pixel RMSE"), ("tabular", "feature RMSE"), (None, "entry RMSE")):
        fields = {} if kind is None else {"data_kind": kind}
        lower: dict[str, Any] = {"unit": "pixel_rmse", "leakier": Leakier.LOWER}
        (one,) = maps(profile("linearized_posterior_error", [0.1, 0.2, 0.3, 0.4], fields=fields, **lower))
        assert one.columns[0].unit == unit


def test_what_is_told_with_the_advised_layers_hidden_stands_beside_the_advice() -> None:
    shares = [{"accuracy": 0.93, "blind_accuracy": 0.69}] * 2
    sets = {"body.0 hidden": LAYERS["body.3"] + LAYERS["head"], "all": sum(map(tuple, LAYERS.values()), ())}
    seen = profile(
        "latent_information",
        [(0.4, 0.3, 0.5), (0.6, 0.5, 0.7)],
        layers=sets,
        details=shares,
        fields={"grouping": VISIBLE, "item": "visible"},
    )
    whole = profile("latent_information", [(0.6, 0.5, 0.7), (0.0, -0.1, 0.1), (0.0, -0.1, 0.1), (0.0, -0.1, 0.1)])
    told = advice([("body.0", 0.1, True, "leaks most")])
    with_set, without = maps(whole, seen, told), maps(whole, told)
    assert left_told(with_set[0], with_set) == (
        "NOT ENOUGH: with it hidden (body.0 hidden), still told: 0.4 nats; right in 93\N{NO-BREAK SPACE}%, blind guess "
        "69\N{NO-BREAK SPACE}%"
    )
    assert left_told(without[0], without).startswith("in the other layers, each alone, nothing beyond chance was found")
    assert left_told(with_set[1], with_set) == ""
    assert "sees body.3.weight, body.3.bias, head.weight and 1 more" in render_markdown(build(whole, seen, told))


def test_a_measure_that_does_not_count_the_noise_of_the_release_says_so_beside_its_numbers() -> None:
    text = render_markdown(build(profile("sensitivity", [1.0, 2.0, 3.0, 4.0], fields={"assumed_noise": "no noise"})))
    assert "sensitivity, nats; as if there were no noise" in text

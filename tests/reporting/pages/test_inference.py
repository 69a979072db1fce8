"""The section on inference, from lines that were made up: no game is played."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gradleak.reporting.inference_plots import (
    advantage_utility_plot,
    batch_size_plot,
    inference_plots,
    roc_plot,
    round_plot,
    shadow_size_plot,
)
from gradleak.reporting.inference_view import (
    BOTH,
    InferenceView,
    RoundPoint,
    _hints,
    defense_rows,
    inferences,
    merged,
    noted,
    warnings,
)
from gradleak.reporting.reading import read
from gradleak.reporting.report import Report, build
from gradleak.reporting.summary import summarize
from tests.reporting.parsed import Page

from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.results import Evidence, Leakier, Outcome, Record, Score
from gradleak.scoring import score_posteriors

Row = dict[str, Any]
SIGN, PRUNE = {"use": "Sign"}, {"use": "Prune", "ratio": 0.99}


def score_line(
    place: Mapping[str, Any], rounds: Sequence[int] | None, name: str, value: float | None, **more: Any
) -> Row:
    score = Score(
        name=name,
        value=value,
        unit=more.pop("unit", "share"),
        leakier=Leakier.HIGHER,
        evidence=Evidence(more.pop("evidence", "attack")),
        n=more.pop("n", 2000),
        **more,
    )
    where = {} if rounds is None else {"rounds": list(rounds)}
    return {"type": "score", **place, **where, **score.to_dict()}


def played(
    scenario: str,
    attack: str,
    advantage: float,
    *,
    game: str = "gender",
    defenses: Sequence[Mapping[str, Any]] = (),
    batch_size: int = 16,
    public_rows: int = 1000,
    utility: float | None = None,
    rounds: int = 3,
) -> list[Row]:
    """The lines of one game and one adversary, all rounds together and by round."""
    place = {"item": f"{scenario}/{game}", "scenario": scenario, "attack": attack, "game_name": game}
    observed = list(range(rounds))
    item = {
        "type": "item",
        "kind": "inference",
        **place,
        "status": "done",
        "outcome": "converged",
        "note": "",
        "observed": observed,
        "values": ["Female", "Male"],
        "runs": [{"seed": 0}],
        "game": {
            "use": "PropertyGame",
            "batch_size": batch_size,
            "public_rows": public_rows,
            "release": {"use": "Release", "defenses": list(defenses)},
        },
    }
    lines: list[Row] = [item]
    if utility is not None:
        lines.append(score_line(place, None, "test_auroc", utility, unit="auroc", evidence="estimate"))
    for seen, reach in ((observed, advantage), *(([number], 0.8 * advantage) for number in observed)):
        low, high = reach - 0.05, min(reach + 0.05, 1.0)
        details = {"unclipped": reach, "unclipped_interval": [low, high], "blind": 0.6625}
        roc = {"of": 1, "fpr": [0.0, 0.001, 0.1, 1.0], "tpr": [0.0, 0.3, 0.9, 1.0]}
        auroc = 0.5 + reach / 2
        lines += [
            score_line(place, seen, "attack_success_rate", 0.6625 + 0.3375 * reach, interval=(0.6, 1.0)),
            score_line(place, seen, "auroc", auroc, unit="auroc", interval=(auroc - 0.01, 1.0), details={"roc": roc}),
            score_line(place, seen, "advantage", reach, interval=(max(low, 0.0), high), details=details),
            score_line(place, seen, "tpr_at_fpr", 0.4321, interval=(0.31, 0.52), details={"false_positive_rate": 0.01}),
        ]
    return lines


def record(*groups: Sequence[Mapping[str, Any]]) -> Record:
    return Record(run={"type": "run", "name": "games"}, lines=tuple(line for group in groups for line in group))


def views(*groups: Sequence[Mapping[str, Any]]) -> list[InferenceView]:
    return inferences(read(record(*groups)))


@pytest.fixture
def two_defenses() -> list[list[Row]]:
    return [
        played("undefended", "static", 0.94, utility=0.91),
        played("undefended", "adaptive", 0.94),
        played("pruning $99$ %", "static", 0.03, defenses=[PRUNE], utility=0.88),
        played("pruning $99$ %", "adaptive", 0.78, defenses=[PRUNE]),
    ]


def test_a_row_holds_what_the_scores_say(two_defenses: list[list[Row]]) -> None:
    first, *_, last = views(*two_defenses)
    assert (first.label, first.adversary, first.game, first.defenses) == (
        "undefended, property gender",
        "static",
        "property gender",
        "none",
    )
    assert last.defenses == "Prune(ratio = 0.99)"
    assert (last.advantage.value, last.auroc.text, last.tpr.text) == (0.78, "0.89", "0.4321")
    assert last.intervals["tpr"] == "0.31 to\N{NO-BREAK SPACE}0.52"
    assert (last.blind, last.trials, last.false_positive_rate) == ("0.662", 2000, 0.01)
    assert [point.advantage for point in last.rounds] == pytest.approx([0.624] * 3)
    # What the model is worth stands with one adversary and counts for both.
    assert (last.utility, last.metric) == (0.88, "AUROC")


def test_more_than_chance_is_read_from_the_interval_before_clipping(two_defenses: list[list[Row]]) -> None:
    assert [view.above_chance for view in views(*two_defenses)] == [True, True, False, True]
    assert [view.verdict for view in views(*two_defenses)][2:] == ["not above chance", "above chance"]


def test_static_and_adaptive_stand_side_by_side(two_defenses: list[list[Row]]) -> None:
    rows = defense_rows(views(*two_defenses))
    assert len(rows) == 2
    assert rows[1].static is not None
    assert rows[1].adaptive is not None
    assert (rows[1].static.advantage.value, rows[1].adaptive.advantage.value) == (0.03, 0.78)
    assert defense_rows(views(two_defenses[0])) == []


def test_the_page_and_the_text_hold_the_same_numbers(two_defenses: list[list[Row]]) -> None:
    report = build(record(*two_defenses))
    page, text = Page(render_html(report)), render_markdown(report)
    for number in (0.94, 0.03, 0.78, 0.4321, 0.91, 0.88):
        assert any(math.isclose(number, found) for found in page.numbers), number
        assert str(number) in text
    for words in ("not above chance", "Prune(ratio = 0.99)", "What a defense buys"):
        assert words in page.text
        assert words.split("(")[0] in text
    assert '<a href="#inference">' in render_html(report)
    assert "## Inference" in text
    assert "no evidence of safety" in page.text


def test_a_run_of_games_alone_says_nothing_of_pictures(two_defenses: list[list[Row]], report: Report) -> None:
    html = render_html(build(record(*two_defenses)))
    assert "Largest advantage" in html
    for absent in ('id="pictures"', 'id="noise"', 'id="spectrum"', "Exact hits"):
        assert absent not in html
        assert absent in render_html(report)
    assert 'id="inference"' not in render_html(report)
    assert "## Inference" not in render_markdown(report)


def test_tables_of_the_text_have_even_rows(two_defenses: list[list[Row]]) -> None:
    lines = render_markdown(build(record(*two_defenses))).splitlines()
    width = 0
    for line in lines:
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line


def test_machines_read_the_same_numbers(two_defenses: list[list[Row]]) -> None:
    rows = summarize(build(record(*two_defenses)))["inference"]
    assert [row["advantage"]["value"] for row in rows] == [0.94, 0.94, 0.03, 0.78]
    assert [row["above_chance"] for row in rows] == [True, True, False, True]
    assert rows[0]["blind"] == 0.6625
    assert rows[3]["tpr_at_fpr"] == {"value": 0.4321, "evidence": "attack", "outcome": "converged"}
    assert rows[3]["information_bound"] == {"value": None, "evidence": None, "outcome": None}


def test_what_could_not_be_told_is_a_word() -> None:
    place = {"item": "dp/gender", "scenario": "dp", "attack": "adaptive", "game_name": "gender"}
    item: Row = {
        "type": "item",
        "kind": "inference",
        **place,
        "status": "done",
        "outcome": "converged",
        "observed": [0],
    }
    few = score_line(place, [0], "tpr_at_fpr", None, outcome=Outcome.NOT_RESOLVABLE, note="334 negatives leave 3.34")
    refused: Row = {
        "type": "item",
        "kind": "inference",
        "item": "x/gender",
        "scenario": "x",
        "status": "refused",
        "outcome": "unsupported",
        "note": "the model mixes examples",
        "game_name": "gender",
    }
    shown, missing = views([item, few], [refused])
    assert (shown.tpr.text, shown.tpr.value, shown.above_chance) == ("not resolvable", None, None)
    assert (missing.auroc.text, missing.auroc.outcome, missing.verdict) == (
        "unsupported",
        Outcome.UNSUPPORTED,
        "unsupported",
    )
    report = build(record([item, few], [refused]))
    page = Page(render_html(report)).text
    for text in (page, render_markdown(report)):
        assert "not resolvable" in text
        assert "334 negatives leave 3.34" in text
        assert "the model mixes examples" in text
        assert "nan" not in text.lower().replace("finance", "")
    assert inference_plots([shown, missing]) == {}


def test_bounds_and_estimates_keep_apart() -> None:
    lines = played("dp", "adaptive", 0.2)
    place = {key: lines[0][key] for key in ("item", "scenario", "attack", "game_name")}
    lines += [
        score_line(place, [0, 1, 2], "information_bound", 0.5, unit="nat", evidence="upper_bound"),
        score_line(place, [0, 1, 2], "fano_advantage", 0.87, evidence="upper_bound"),
        score_line(place, [0, 1, 2], "information_estimate", 0.1, unit="nat", evidence="estimate"),
        score_line(place, [0, 1, 2], "fano_advantage", 0.31, evidence="estimate"),
    ]
    (view,) = views(lines)
    assert [q.value for q in (view.information, view.fano_bound, view.estimate, view.fano_estimate)] == [
        0.5,
        0.87,
        0.1,
        0.31,
    ]
    assert (view.fano_bound.evidence, view.fano_estimate.evidence) == ("upper_bound", "estimate")
    report = build(record(lines))
    assert "0.87 \\[upper bound\\]" in render_markdown(report)
    assert "What any adversary could reach" in Page(render_html(report)).text
    assert "What any adversary could reach" not in render_html(build(record(played("dp", "adaptive", 0.2))))


def test_equal_notes_stand_once() -> None:
    groups = [played("a", "static", 0.5), played("a", "adaptive", 0.5), played("b", "adaptive", 0.5)]
    for group in groups:
        group[0]["note"] = "rows coincide"
    assert noted(views(*groups)) == [("all games", "played with k = 16 rows a batch"), ("all games", "rows coincide")]
    groups[2][0]["note"] = "of another kind"
    assert noted(views(*groups))[1:] == [
        ("a, property gender", "rows coincide"),
        ("b, property gender", "of another kind"),
    ]
    groups[1][0]["note"] = ""
    assert noted(views(*groups))[1] == ("a, property gender, static", "rows coincide")


def test_hostile_names_are_text() -> None:
    name = "<script>alert(1)</script> | $x$ *"
    report = build(record(played(name, "static", 0.5, utility=0.5), played(name + "2", "static", 0.5, utility=0.6)))
    html = render_html(report)
    Page(html)
    assert "<script>" not in html
    assert "<script>" not in render_markdown(report)


def test_curves_stand_on_linear_and_logarithmic_axes(two_defenses: list[list[Row]]) -> None:
    svg = roc_plot(views(*two_defenses))
    Page(svg)
    assert svg == roc_plot(views(*two_defenses))
    assert 'role="img"' in svg
    assert "logarithmic" in svg
    for label in ("undefended, static", "undefended, adaptive", "pruning $99$ %, adaptive", "0.001"):
        assert label in svg
    assert re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]+\)", "", svg)) == []


def test_rounds_are_drawn_where_there_are_two(two_defenses: list[list[Row]]) -> None:
    assert "round of training" in round_plot(views(*two_defenses))
    assert round_plot(views(played("a", "static", 0.5, rounds=1))) == ""


def test_sizes_are_compared_where_nothing_else_differs() -> None:
    by_batch = [played("none", "adaptive", 0.2 + k / 100, game=f"k {k}", batch_size=k) for k in (1, 4, 16, 64)]
    assert "examples of a batch" in batch_size_plot(views(*by_batch))
    assert shadow_size_plot(views(*by_batch)) == ""
    by_shadow = [played("none", "adaptive", 0.5, game=f"s {s}", public_rows=s) for s in (100, 1000)]
    assert "public rows" in shadow_size_plot(views(*by_shadow))
    assert batch_size_plot(views(*by_shadow)) == ""
    # Another defense, and both sizes at once: no line can be drawn.
    other = [played("a", "adaptive", 0.5, batch_size=1), played("b", "adaptive", 0.5, batch_size=4, defenses=[SIGN])]
    assert batch_size_plot(views(*other)) == ""
    both = [played("a", "adaptive", 0.5), played("a", "adaptive", 0.5, game="x", batch_size=4, public_rows=100)]
    assert batch_size_plot(views(*both)) == shadow_size_plot(views(*both)) == ""


def test_utility_is_drawn_against_advantage_for_both_adversaries(two_defenses: list[list[Row]]) -> None:
    svg = advantage_utility_plot(views(*two_defenses))
    Page(svg)
    for words in ("static adversary", "adaptive adversary", "test AUROC", "undefended, property gender"):
        assert words in svg
    assert advantage_utility_plot(views(two_defenses[1])) == ""


def test_the_worth_of_a_model_may_come_from_the_scenario() -> None:
    utility: Row = {"type": "item", "kind": "utility", "item": "utility/a", "scenario": "a", "status": "done"}
    worth = score_line({"item": "utility/a"}, None, "test_accuracy", 0.83, evidence="estimate")
    (view,) = views(played("a", "static", 0.5), [utility, worth])
    assert (view.utility, view.metric) == (0.83, "accuracy")


def test_controls_of_a_game_speak_of_its_auroc() -> None:
    control: Row = {
        "type": "item",
        "kind": "control",
        "item": "control/positive/gender",
        "game_name": "gender",
        "passed": False,
        "status": "done",
        "outcome": "converged",
    }
    score = score_line({"item": "control/positive/gender"}, None, "auroc", 0.61, unit="auroc")
    report = build(record(played("a", "static", 0.5), [control, score]))
    (view,) = report.controls
    assert (view.title, view.measure, view.pixel_rmse.value) == (
        "Positive control of a game: a planted secret, gender",
        "AUROC",
        0.61,
    )
    assert summarize(report)["controls"] == [{"name": view.title, "passed": False, "auroc": 0.61}]
    assert "AUROC 0.61" in Page(render_html(report)).text
    assert "**FAILED**, AUROC 0.61" in render_markdown(report)
    assert "The adversary, its features or the setting is broken" in render_markdown(report)


def test_a_record_cut_short_is_read_as_far_as_it_goes(two_defenses: list[list[Row]]) -> None:
    lines = [line for group in two_defenses for line in group]
    for end in range(len(lines)):
        render_markdown(build(record(lines[:end])))
    item = {key: lines[0][key] for key in ("type", "kind", "item")}
    (bare,) = views([item])
    assert (bare.advantage.text, bare.verdict, bare.rounds) == ("–", "no number", [])  # noqa: RUF001
    render_html(build(record([item | {"game": "?", "runs": 3, "observed": "x", "scenario": None}])))


def test_the_setting_of_a_game_and_what_a_threshold_hides_are_told() -> None:
    lines = played("a", "static", 0.5)
    lines[0]["game"] |= {
        "rounds": 10, "observed": [0, 1], "learning_rate": 0.01, "side": True,
        "adversary": {"use": "RandomForest", "trees": 50}, "features": {"use": "MaxPooling", "kernel": 3},
    }  # fmt: skip
    lines[0]["runs"] = [{"rows": {"private": 20, "public": 10, "test": 5}}]
    for line in lines:
        if line.get("name") == "advantage":
            line["details"] = {**line["details"], "unclipped_interval": [-0.1, 0.2]}
        if line.get("name") == "auroc":
            line |= {"value": 0.97, "interval": [0.9, 0.99]}
    (_, note), *rest = noted(views(lines))
    for part in (
        "20 private, 10 public, 5 test",
        "2 of 10 rounds observed",
        "RandomForest",
        "MaxPooling",
        "side information",
    ):
        assert part in note
    assert any("orders the batches rightly" in hint for _, hint in rest)


def test_where_there_is_nothing_to_know_one_row_stands_for_both(two_defenses: list[list[Row]]) -> None:
    rows = merged(views(*two_defenses))
    assert [(row.scenario, row.adversary) for row in rows] == [
        ("undefended", BOTH), ("pruning $99$ %", "static"), ("pruning $99$ %", "adaptive"),
    ]  # fmt: skip
    table = defense_rows(rows)
    assert table[0].static is table[0].adaptive is rows[0]
    text = render_markdown(build(record(*two_defenses)))
    assert text.count("| undefended, property gender | static = adaptive | above chance |") == 1
    assert text.count("| undefended, property gender | adaptive |") == 0
    svg = advantage_utility_plot(rows)
    assert "static adversary" in svg
    assert "adaptive adversary" in svg
    # Other numbers, or a defense: two rows.
    other = views(played("a", "static", 0.5), played("a", "adaptive", 0.6))
    assert merged(other) == other
    signs = views(*(played("a", side, 0.5, defenses=[SIGN]) for side in ("static", "adaptive")))
    assert merged(signs) == signs


@pytest.mark.parametrize(("utility", "warned"), [(0.76, True), (0.9, False)])
def test_a_reference_that_hardly_learned_is_told(utility: float, warned: bool) -> None:
    lines = played("undefended", "adaptive", 0.5)
    place = {key: lines[0][key] for key in ("item", "scenario", "attack", "game_name")}
    worth = score_line(place, None, "test_accuracy", utility, evidence="estimate", details={"blind": 0.75})
    defended = played("signs", "adaptive", 0.5, defenses=[SIGN], utility=0.75)
    found = warnings(views([*lines, worth], defended))
    assert bool(found) is warned
    page, text = (render(build(record([*lines, worth], defended))) for render in (render_html, render_markdown))
    for shown in (Page(page).text, text):
        assert ("hardly learned (0.76 accuracy" in shown) is warned


def test_the_best_of_many_rounds_is_a_hint_only_above_chance() -> None:
    together = next(
        score
        for score in score_posteriors(np.zeros((40, 2)), np.arange(40) % 2, blind=0.5)
        if score.name == "advantage"
    )
    for low, told in ((0.0, 0), (0.1, 1)):
        points = [
            RoundPoint(number=number, advantage=advantage, interval=(low, 0.9), auroc=None)
            for number, advantage in enumerate((0.0, 0.3))
        ]
        assert len(_hints({"auroc": None, "advantage": together}, points)) == told


def test_an_interval_that_was_clipped_to_nothing_is_not_printed_as_certain() -> None:
    lines = played("a", "static", 0.0)
    for line in lines:
        if line.get("name") == "advantage":
            line["interval"] = [0.0, 0.0]
            line["details"] = {**line["details"], "unclipped": -0.1, "unclipped_interval": [-0.2, -0.05]}
    report = build(record(lines))
    for shown in (Page(render_html(report)).text, render_markdown(report)):
        words = " ".join(shown.split())
        assert "0 to 0" not in words
        assert "−0.2 to −0.05, not clipped at 0" in words  # noqa: RUF001

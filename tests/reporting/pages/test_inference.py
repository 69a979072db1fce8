"""The page on inference games, from findings that were made up: no game is played."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.reporting.parsed import Page

from gradleak.reporting.blocks import Figure, Section, Tiles
from gradleak.reporting.context import Context
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.reporting.pages.inference import page
from gradleak.reporting.pages.inference.figures import figures
from gradleak.reporting.pages.inference.view import (
    BOTH,
    InferenceView,
    defense_rows,
    hints,
    inferences,
    merged,
    noted,
    warnings,
)
from gradleak.results import Control, Evidence, Finding, Leakier, Outcome, Record, Score, Status
from gradleak.results.findings.inference import InferenceFinding, Run
from gradleak.scoring import score_posteriors

SIGN, PRUNE = {"use": "Sign"}, {"use": "Prune", "ratio": 0.99}


def number(name: str, value: float | None, about: Mapping[str, str | int] | None = None, **more: Any) -> Score:
    return Score(
        name=name,
        value=value,
        unit=more.pop("unit", "share"),
        leakier=Leakier.HIGHER,
        evidence=Evidence(more.pop("evidence", "attack")),
        n=more.pop("n", 2000),
        about=about or {},
        **more,
    )


def reached(adversary: str, advantage: float, *, rounds: int = 3) -> list[Score]:
    """The scores of one adversary, all rounds together and by round."""
    scores: list[Score] = []
    for alone, reach in ((None, advantage), *((number, 0.8 * advantage) for number in range(rounds))):
        about: dict[str, str | int] = {"adversary": adversary} | ({} if alone is None else {"round": alone})
        low, high = reach - 0.05, min(reach + 0.05, 1.0)
        details = {"unclipped": reach, "unclipped_interval": [low, high], "blind": 0.6625}
        roc = {"of": 1, "fpr": [0.0, 0.001, 0.1, 1.0], "tpr": [0.0, 0.3, 0.9, 1.0]}
        auroc = 0.5 + reach / 2
        few = {"false_positive_rate": 0.01}
        scores += [
            number("attack_success_rate", 0.6625 + 0.3375 * reach, about, interval=(0.6, 1.0)),
            number("auroc", auroc, about, unit="auroc", interval=(auroc - 0.01, 1.0), details={"roc": roc}),
            number("advantage", reach, about, interval=(max(low, 0.0), high), details=details),
            number("tpr_at_fpr", 0.4321, about, interval=(0.31, 0.52), details=few),
        ]
    return scores


def played(
    scenario: str,
    *,
    game: str = "gender",
    defenses: Sequence[Mapping[str, Any]] = (),
    batch_size: int = 16,
    public_rows: int = 1000,
    utility: float | None = None,
    rounds: int = 3,
    note: str = "",
    scores: Sequence[Score] = (),
    **advantages: float,
) -> InferenceFinding:
    """The finding of one game: the advantage of each adversary, by its name."""
    worth = [] if utility is None else [number("test_auroc", utility, unit="auroc", evidence="estimate")]
    found = [score for who, advantage in advantages.items() for score in reached(who, advantage, rounds=rounds)]
    return InferenceFinding(
        item=f"{scenario}/{game}",
        audit=game,
        scenario=scenario,
        outcome=Outcome.CONVERGED,
        note=note,
        observed=tuple(range(rounds)),
        values=("Female", "Male"),
        adversaries=tuple(advantages),
        runs=(Run(seed=0),),
        scores=(*worth, *found, *scores),
        game={
            "use": "PropertyGame",
            "batch_size": batch_size,
            "public_rows": public_rows,
            "release": {"use": "Release", "defenses": list(defenses)},
        },
    )


def views(*findings: InferenceFinding, beside: Sequence[Finding] = ()) -> list[InferenceView]:
    return inferences(findings, Context(record=Record.of([*findings, *beside])))


def html(*findings: Finding) -> str:
    return render_html(assemble(Record.of(findings)))


def text(*findings: Finding) -> str:
    return render_markdown(assemble(Record.of(findings)))


def drawings(of: Sequence[InferenceView]) -> dict[str, str]:
    """The SVG of every figure by its anchor."""
    return {one.anchor: _drawing(one) for one in figures(of)}


def _drawing(section: Section) -> str:
    (figure,) = [block for block in section.blocks if isinstance(block, Figure)]
    return figure.draw()


@pytest.fixture(scope="module")
def two_defenses() -> list[InferenceFinding]:
    return [
        played("undefended", static=0.94, adaptive=0.94, utility=0.91),
        played("pruning $99$ %", static=0.03, adaptive=0.78, defenses=[PRUNE], utility=0.88),
    ]


def test_a_row_holds_what_the_scores_say(two_defenses: list[InferenceFinding]) -> None:
    first, *_, last = views(*two_defenses)
    assert (first.label, first.adversary, first.game, first.defenses) == (
        "undefended, property gender",
        "static",
        "property gender",
        "none",
    )
    assert last.defenses == "Prune(ratio = 0.99)"
    assert (last.advantage.value, last.number("auroc").text, last.number("tpr_at_fpr").text) == (0.78, "0.89", "0.4321")
    assert last.interval("tpr_at_fpr") == "0.31 to\N{NO-BREAK SPACE}0.52"
    assert last.detail("advantage", "blind") == 0.6625
    assert text(*two_defenses).count("| 2,000, 1 |") == 3
    assert last.detail("tpr_at_fpr", "false_positive_rate") == 0.01
    assert [score.value for score in last.rounds.values()] == pytest.approx([0.624] * 3)
    # What the model is worth counts for both adversaries.
    assert (last.utility, last.metric) == (0.88, "AUROC")


def test_more_than_chance_is_read_from_the_interval_before_clipping(two_defenses: list[InferenceFinding]) -> None:
    assert [view.above_chance for view in views(*two_defenses)] == [True, True, False, True]
    assert [view.verdict for view in views(*two_defenses)][2:] == ["not above chance", "above chance"]


def test_static_and_adaptive_stand_side_by_side(two_defenses: list[InferenceFinding]) -> None:
    rows = list(defense_rows(views(*two_defenses)).values())
    assert len(rows) == 2
    assert (rows[1]["static"].advantage.value, rows[1]["adaptive"].advantage.value) == (0.03, 0.78)
    assert defense_rows(views(played("undefended", static=0.94))) == {}


def test_the_page_and_the_text_hold_the_same_numbers(two_defenses: list[InferenceFinding]) -> None:
    shown, written = Page(html(*two_defenses)), text(*two_defenses)
    for value in (0.94, 0.03, 0.78, 0.4321, 0.91, 0.88):
        assert any(math.isclose(value, found) for found in shown.numbers), value
        assert str(value) in written
    for words in ("not above chance", "Prune(ratio = 0.99)", "Each defense against an adversary who knows it"):
        assert words in shown.text
        assert words.split("(")[0] in written
    assert "#inference" in [attrs.get("href") for tag, attrs in shown.tags if tag == "a"]
    assert "## Inference" in written
    for said in (shown.text, written):
        assert "no evidence of safety" in said
        assert "The server of a game knows the model" in said
        assert "Fano's inequality leaves every adversary an advantage of at most" in said


def test_the_largest_advantage_stands_on_the_first_screen(two_defenses: list[InferenceFinding]) -> None:
    found = page(two_defenses, Context(record=Record.of(two_defenses)))
    assert found is not None
    (tiles,) = [block for block in found.front if isinstance(block, Tiles)]
    assert [tile.label for tile in tiles.tiles] == [
        "Largest advantage",
        "Its AUROC",
        "Its success rate",
        "Above chance",
    ]
    assert tiles.tiles[0].sub == f"undefended, property gender, {BOTH} adversary, 0.89 to\N{NO-BREAK SPACE}0.99"
    assert tiles.tiles[3].value == "2 of 3"


def test_a_run_of_games_alone_says_nothing_of_pictures(two_defenses: list[InferenceFinding]) -> None:
    shown = html(*two_defenses)
    assert "Largest advantage" in Page(shown).text
    for absent in ('id="pictures"', 'id="noise"', 'id="spectrum"', "Exact hits"):
        assert absent not in shown
    assert page([], Context(record=Record.of(two_defenses))) is None


def test_tables_of_the_text_have_even_rows(two_defenses: list[InferenceFinding]) -> None:
    width = 0
    for line in text(*two_defenses).splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        width = width or cells
        assert cells == width, line


def test_machines_read_the_same_numbers(two_defenses: list[InferenceFinding]) -> None:
    document = summarize(assemble(Record.of(two_defenses)))
    scores = [score for finding in document["findings"] for score in finding["scores"]]
    together = [
        score for score in scores if "round" not in score.get("about", {}) and "adversary" in score.get("about", {})
    ]
    assert [score["value"] for score in together if score["name"] == "advantage"] == [0.94, 0.94, 0.03, 0.78]
    rates = [score for score in together if score["name"] == "tpr_at_fpr"]
    assert (rates[3]["value"], rates[3]["evidence"], rates[3]["outcome"]) == (0.4321, "attack", "converged")
    assert all(score["details"]["blind"] == 0.6625 for score in together if score["name"] == "advantage")
    assert document["sections"][0]["anchor"] == "inference"


def test_what_could_not_be_told_is_a_word() -> None:
    few = number(
        "tpr_at_fpr", None, {"adversary": "adaptive"}, outcome=Outcome.NOT_RESOLVABLE, note="334 negatives leave 3.34"
    )
    resolved = played("dp").but(adversaries=("adaptive",), scores=(few,))
    refused = InferenceFinding(
        item="x/gender",
        audit="gender",
        scenario="x",
        status=Status.REFUSED,
        outcome=Outcome.UNSUPPORTED,
        note="the model mixes examples",
    )
    shown, missing = views(resolved, refused)
    assert (shown.number("tpr_at_fpr").text, shown.above_chance) == ("not resolvable", None)
    assert shown.number("tpr_at_fpr").value is None
    assert (missing.number("auroc").text, missing.number("auroc").outcome, missing.verdict) == (
        "unsupported",
        Outcome.UNSUPPORTED,
        "unsupported",
    )
    for said in (Page(html(resolved, refused)).text, text(resolved, refused)):
        assert "not resolvable" in said
        assert "334 negatives leave 3.34" in said
        assert "the model mixes examples" in said
        assert "nan" not in said.lower().replace("finance", "")
    assert figures([shown, missing]) == []


def test_bounds_and_estimates_keep_apart() -> None:
    about = {"adversary": "adaptive"}
    known = [
        number("information_bound", 0.5, about, unit="nat", evidence="upper_bound"),
        number("fano_advantage", 0.87, about, evidence="upper_bound"),
        number("information_estimate", 0.1, about, unit="nat", evidence="estimate"),
        number("fano_advantage", 0.31, about, evidence="estimate"),
    ]
    game = played("dp", adaptive=0.2, scores=known)
    (view,) = views(game)
    fano = [view.number("fano_advantage", evidence) for evidence in (Evidence.UPPER_BOUND, Evidence.ESTIMATE)]
    assert [view.number(name).value for name in ("information_bound", "information_estimate")] == [0.5, 0.1]
    assert [(found.value, found.evidence) for found in fano] == [(0.87, "upper_bound"), (0.31, "estimate")]
    assert "Largest advantage \\[upper bound\\]" in text(game)
    assert "| 0.87 |" in text(game)
    assert "Limits on every adversary's advantage" in Page(html(game)).text
    assert "Limits on every adversary's advantage" not in html(played("dp", adaptive=0.2))


def test_equal_notes_stand_once() -> None:
    setting = "settings: k = 16 rows a batch"
    first = played("a", static=0.5, adaptive=0.5, note="rows coincide")
    second = played("b", adaptive=0.5, note="rows coincide")
    assert noted(views(first, second)) == [("all games", setting), ("all games", "rows coincide")]
    assert noted(views(first, second.but(note="of another kind")))[1:] == [
        ("a, property gender", "rows coincide"),
        ("b, property gender", "of another kind"),
    ]


def test_a_note_on_one_adversary_names_it() -> None:
    scores = reached("static", 0.5) + [
        number(
            score.name, score.value, score.about, details=score.details, note="late" if score.name == "auroc" else ""
        )
        for score in reached("adaptive", 0.5)
    ]
    game = played("a").but(adversaries=("static", "adaptive"), scores=tuple(scores))
    assert ("a, property gender, adaptive", "late") in noted(views(game))


def test_hostile_names_are_text() -> None:
    name = "<script>alert(1)</script> | $x$ *"
    games = [played(name, static=0.5, utility=0.5), played(name + "2", static=0.5, utility=0.6)]
    shown = html(*games)
    Page(shown)
    assert "<script>alert" not in shown
    assert "<script>alert" not in text(*games)


def test_curves_stand_on_linear_and_logarithmic_axes(two_defenses: list[InferenceFinding]) -> None:
    svg = drawings(views(*two_defenses))["inference-curves"]
    Page(svg)
    assert svg == drawings(views(*two_defenses))["inference-curves"]
    assert 'role="img"' in svg
    assert "logarithmic" in svg
    for label in ("undefended, static", "undefended, adaptive", "pruning $99$ %, adaptive", "0.001"):
        assert label in svg
    assert re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]+\)", "", svg)) == []


def test_rounds_are_drawn_and_written_where_there_are_two(two_defenses: list[InferenceFinding]) -> None:
    assert "round of training" in drawings(views(*two_defenses))["inference-rounds"]
    assert "inference-rounds" not in drawings(views(played("a", static=0.5, rounds=1)))
    assert "| Scenario and game | Adversary | Round 1 | Round 2 | Round 3 |" in text(*two_defenses)


def test_sizes_are_compared_where_nothing_else_differs() -> None:
    by_batch = drawings(
        views(*(played("none", adaptive=0.2 + k / 100, game=f"k {k}", batch_size=k) for k in (1, 4, 16, 64)))
    )
    assert "examples of a batch" in by_batch["inference-batch-size"]
    assert "inference-shadow-size" not in by_batch
    by_shadow = drawings(views(*(played("none", adaptive=0.5, game=f"s {s}", public_rows=s) for s in (100, 1000))))
    assert "public rows" in by_shadow["inference-shadow-size"]
    assert "inference-batch-size" not in by_shadow
    # Another defense, and both sizes at once: no line can be drawn.
    other = [played("a", adaptive=0.5, batch_size=1), played("b", adaptive=0.5, batch_size=4, defenses=[SIGN])]
    both = [played("a", adaptive=0.5), played("a", adaptive=0.5, game="x", batch_size=4, public_rows=100)]
    for games in (other, both):
        assert not {"inference-batch-size", "inference-shadow-size"} & {one.anchor for one in figures(views(*games))}


def test_utility_is_drawn_against_advantage_for_both_adversaries(two_defenses: list[InferenceFinding]) -> None:
    svg = drawings(views(*two_defenses))["inference-worth"]
    Page(svg)
    for words in ("static adversary", "adaptive adversary", "test AUROC", "undefended, property gender"):
        assert words in svg
    assert "inference-worth" not in [one.anchor for one in figures(views(two_defenses[1]))]


def test_the_worth_of_a_model_may_come_from_the_scenario() -> None:
    worth = number("test_accuracy", 0.83, evidence="estimate")
    trained = Finding(kind="trained", item="utility/a", audit="utility", scenario="a", scores=(worth,))
    (view,) = views(played("a", static=0.5), beside=[trained])
    assert (view.utility, view.metric) == (0.83, "accuracy")


def test_controls_of_a_game_speak_of_its_auroc() -> None:
    control = Control(
        planted=True,
        title="Positive control of a game: a planted secret",
        meaning="The adversary is broken.",
        passed=False,
        measure="auroc",
    )
    planted = InferenceFinding(
        item="control/positive/gender",
        audit="gender",
        control=control,
        scores=(number("auroc", 0.61, unit="auroc"), number("advantage", 0.1)),
    )
    game = played("a", static=0.5)
    assert len(views(game, beside=[planted])) == 1
    (entry,) = summarize(assemble(Record.of([game, planted])))["controls"]
    assert (entry["name"], entry["passed"], entry["auroc"]) == (control.title, False, 0.61)
    for said in (Page(html(game, planted)).text, text(game, planted)):
        assert "0.61" in said
        assert "The adversary is broken" in said


def test_a_finding_with_nothing_in_it_has_a_row() -> None:
    (bare,) = views(InferenceFinding(item="a/gender", audit="gender"))
    assert (bare.advantage.text, bare.verdict, bare.rounds) == ("–", "no number", {})  # noqa: RUF001
    odd = InferenceFinding(item="b/gender", audit="gender", game={"use": 3, "release": "x", "adversary": 5})
    html(InferenceFinding(item="a/gender", audit="gender"), odd)


def test_the_setting_of_a_game_and_what_a_threshold_hides_are_told() -> None:
    scores = [
        number("auroc", 0.97, {"adversary": "static"}, interval=(0.9, 0.99)),
        number("advantage", 0.5, {"adversary": "static"}, details={"unclipped_interval": [-0.1, 0.2]}),
    ]
    plain = played("a")
    game = plain.but(
        adversaries=("static",),
        observed=(0, 1),
        scores=tuple(scores),
        runs=(Run(seed=0, rows={"private": 20, "public": 10, "test": 5}),),
        game={
            **plain.game,
            "rounds": 10, "observed": [0, 1], "learning_rate": 0.01, "side": True,
            "adversary": {"use": "RandomForest", "trees": 50}, "features": {"use": "MaxPooling", "kernel": 3},
        },
    )  # fmt: skip
    (_, note), *rest = noted(views(game))
    for part in (
        "20 private, 10 public, 5 test",
        "2 of 10 rounds observed",
        "RandomForest",
        "MaxPooling",
        "side information",
    ):
        assert part in note
    assert any("ranks the batches correctly" in hint for _, hint in rest)


def test_where_there_is_nothing_to_know_one_row_stands_for_both(two_defenses: list[InferenceFinding]) -> None:
    rows = merged(views(*two_defenses))
    assert [(row.scenario, row.adversary) for row in rows] == [
        ("undefended", BOTH), ("pruning $99$ %", "static"), ("pruning $99$ %", "adaptive"),
    ]  # fmt: skip
    first, _ = defense_rows(rows).values()
    assert first["static"] is first["adaptive"] is rows[0]
    written = text(*two_defenses)
    assert written.count("| undefended, property gender | static = adaptive | **above chance** |") == 1
    assert written.count("| undefended, property gender | adaptive |") == 0
    svg = drawings(rows)["inference-worth"]
    assert "static adversary" in svg
    assert "adaptive adversary" in svg
    # Other numbers, or a defense: two rows.
    other = views(played("a", static=0.5, adaptive=0.6))
    assert merged(other) == other
    signs = views(played("a", static=0.5, adaptive=0.5, defenses=[SIGN]))
    assert merged(signs) == signs


@pytest.mark.parametrize(("utility", "warned"), [(0.76, True), (0.9, False)])
def test_a_reference_that_hardly_learned_is_told(utility: float, warned: bool) -> None:
    worth = number("test_accuracy", utility, evidence="estimate", details={"blind": 0.75})
    games = [
        played("undefended", adaptive=0.5, scores=[worth]),
        played("signs", adaptive=0.5, defenses=[SIGN], utility=0.75),
    ]
    found = warnings(views(*games))
    assert bool(found) is warned
    for shown in (Page(html(*games)).text, text(*games)):
        assert ("hardly learned (0.76 accuracy" in shown) is warned


def test_the_best_of_many_rounds_is_a_hint_only_above_chance() -> None:
    together = next(
        score
        for score in score_posteriors(np.zeros((40, 2)), np.arange(40) % 2, blind=0.5)
        if score.name == "advantage"
    )
    mark: dict[str, str | int] = {"adversary": "static"}
    for low, told in ((0.0, 0), (0.1, 1)):
        alone = [
            number("advantage", value, mark | {"round": place}, interval=(low, 0.9))
            for place, value in enumerate((0.0, 0.3))
        ]
        game = played("a").but(adversaries=("static",), scores=(replace(together, about=mark), *alone))
        (view,) = views(game)
        assert len(list(hints(view))) == told


def test_an_interval_that_was_clipped_to_nothing_is_not_printed_as_certain() -> None:
    details = {"blind": 0.6625, "unclipped": -0.1, "unclipped_interval": [-0.2, -0.05]}
    clipped = number("advantage", 0.0, {"adversary": "static"}, interval=(0.0, 0.0), details=details)
    game = played("a").but(adversaries=("static",), scores=(clipped,))
    for shown in (Page(html(game)).text, text(game)):
        words = " ".join(shown.split())
        assert "−0.2 to −0.05, not clipped at 0" in words  # noqa: RUF001
        assert "0 (0 to 0" not in words

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reporting import toy_kind
from tests.reporting.parsed import Page

from gradleak.reporting import words
from gradleak.reporting.blocks import Chip, Fold, Section, Small, Style, Table, Tag, Text, run
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.numerals import MISSING
from gradleak.reporting.page import Report, assemble
from gradleak.results import Evidence, InputError, Leakier, Record, Score, Verdict, VerdictKind
from gradleak.results.findings.released import ReleaseFinding


def section(report: Report, anchor: str) -> Section:
    return next(one for one in report.sections if one.anchor == anchor)


def table(found: Section) -> Table:
    return next(block for block in found.blocks if isinstance(block, Table))


def test_the_verdict_is_told_in_words_with_what_to_do(report: Report) -> None:
    assert report.title == "toy"
    assert report.verdict is not None
    assert report.reason == "Dead units found."
    assert report.explanation == "A unit of a/example 0 is dead."
    assert report.remedy.startswith("Do not share updates of the scenarios that leak.")


@pytest.mark.parametrize(
    ("kind", "reason", "told"),
    [
        (VerdictKind.LEAKS, "claim_broken", "Do not rely on the claimed epsilon"),
        (VerdictKind.LEAKS, "attack_reached_threshold", "against an adversary who knows it"),
        (VerdictKind.INCONCLUSIVE, "control_failed", "Look at the controls first."),
        (VerdictKind.BOUNDED, "dp_bound", "Check that the assumptions of the guarantee"),
        (VerdictKind.INCONCLUSIVE, "of_another_package", "Read the reason, remove its cause"),
    ],
)
def test_what_to_do_goes_by_the_reason(toy: None, kind: VerdictKind, reason: str, told: str) -> None:
    assert told in assemble(toy_kind.record(*toy_kind.verdicts(kind, reason))).remedy


def test_sections_stand_in_the_order_of_the_page(report: Report) -> None:
    anchors = [one.anchor for one in report.sections]
    assert anchors == ["dead", "controls", "problems", "scores", "reading", "made"]
    assert [type(block).__name__ for block in report.evidence] == ["Note"]
    assert [type(block).__name__ for block in report.front] == [*["Text"] * 4, "Table", "Fold"]


def shipped(scenarios: list[dict[str, Any]], **changes: object) -> str:
    """What a report says may be shipped, for a plan that says this of its scenarios."""
    record = replace(toy_kind.record(), **changes)  # type: ignore[arg-type]
    front = assemble(replace(record, run={**record.run, "plan": {"scenarios": scenarios}})).front
    title = next(place for place, block in enumerate(front) if isinstance(block, Text) and block.parts == SHIP)
    answer = front[title + 1]
    assert isinstance(answer, Text)
    return "\n".join(run(part, lambda piece: piece if isinstance(piece, str) else str(piece)) for part in answer.parts)


SHIP = ["What may I ship?"]


def test_bounded_scenarios_may_be_shipped_and_nothing_is_called_safe(toy: None) -> None:
    said = shipped([{"name": "a"}, {"name": "b"}])
    assert said.startswith("**b** is bounded: differential privacy leaves every attacker a small chance")
    assert "What a defense costs in utility was not measured" in said
    assert "safe" not in said
    nothing = shipped([{"name": "a"}, {"name": "b", "reference": True}])
    assert nothing.startswith(
        "Nothing by what this run has shown: no scenario is bounded, since no guarantee was computed"
    )
    assert nothing.endswith("(a plan with `utility` trains through every release).")


def test_noise_that_the_closed_form_asks_for_is_held_against_what_leaks(toy: None) -> None:
    needed = Score(
        name="noise_std_for_threshold", value=0.02, unit="update", leakier=Leakier.HIGHER, evidence=Evidence.ESTIMATE
    )
    record = toy_kind.record()
    run_ = {**record.run, "thresholds": {"pixel_rmse": 0.1}}
    made = Record.of([record.findings[0].but(scores=(needed,))], record.verdicts)
    said = {}
    for std in (0.01, 0.05):
        release = {"defenses": [{"use": "GaussianNoise", "std": std}]}
        plan = {"scenarios": [{"name": "a", "release": release}, {"name": "b"}]}
        said[std] = render_markdown(assemble(replace(made, run={**run_, "plan": plan})))
    for text in said.values():
        assert "Gaussian noise of std 0.02 or more" in text
        assert "no guarantee" in text
    assert "it is too little**: a carries noise of std 0.05 and leaks." in said[0.05]
    assert "too little" not in said[0.01]


def test_parts_that_do_not_leak_say_why_and_controls_are_counted(toy: None) -> None:
    words_leak = Verdict(
        item="a/2", audit="dead", scenario="a", verdict=VerdictKind.INCONCLUSIVE, reason="words_leak", explanation=""
    )
    record = toy_kind.record()
    own = [one for one in record.findings if one.item.startswith(("b/", "control/0"))]
    made = replace(Record.of(own, [*record.verdicts, words_leak]), run=record.run)
    text = render_markdown(assemble(made))
    assert "(1 more: the words of the batch leak, their order was not shown)" in text
    assert "**The only control passed**" in text
    assert "**All 3 controls passed**" in render_markdown(assemble(record))


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("control_failed", "Verdicts that rest on them are inconclusive: see the controls before any number."),
        (
            "attack_reached_threshold",
            "No verdict is taken away for it: of several planted leaks one that is found is enough",
        ),
    ],
)
def test_a_failed_control_is_named_with_what_it_takes_away(toy: None, reason: str, told: str) -> None:
    """A run leaked by one attack though the planted leak of another was missed, against the words of the page."""
    record = toy_kind.record()
    controls = [one for one in record.findings if one.control is not None]
    weak = controls[0].but(control=controls[0].control.model_copy(update={"passed": False}))
    given = [replace(one, reason=reason) for one in record.verdicts]
    own = [one for one in record.findings if one.item.startswith("b/")]
    made = Record.of([*own, weak, *controls[1:]], given)
    text = render_markdown(assemble(replace(made, run=record.run)))
    assert f"**Controls: 1 failed, of 3** ({weak.item}). {told}" in text


def test_the_policy_stands_beside_the_verdicts(toy: None) -> None:
    record = toy_kind.record()
    scenarios = [{"name": "a", "require": "not leaks"}, {"name": "b", "reference": True}]
    shown = assemble(replace(record, run={**record.run, "plan": {"scenarios": scenarios}})).front[-2]
    assert isinstance(shown, Table)
    assert [column.label for column in shown.columns][2] == "Policy"
    first, second = (row[2] for row in shown.rows)
    assert first == ["not leaks required:", Tag("not met", tone="bad")]
    assert isinstance(second, Tag)
    assert second.text == "reference"


def test_advice_names_what_is_bounded_and_cites_no_prediction_that_is_not_there() -> None:
    leaks = Verdict(item="run", verdict=VerdictKind.LEAKS, reason="attack_reached_threshold", explanation="")
    assert "Bounded already: dp." in words.next_step(leaks, bounded=["dp"])
    open_ = Verdict(item="run", verdict=VerdictKind.INCONCLUSIVE, reason="no_attack_reached_threshold", explanation="")
    assert "predicted" not in words.next_step(open_)
    assert "predicted" in words.next_step(open_, predicted=True)


def test_scenarios_come_worst_first(report: Report) -> None:
    shown = report.front[-2]
    assert isinstance(shown, Table)
    assert [list(row) for row in shown.rows] == [
        ["a", Chip(VerdictKind.LEAKS), "1 of 1", "dead units found"],
        ["b", Chip(VerdictKind.BOUNDED), MISSING, words.reason("dp_bound")],
    ]


def test_scenarios_of_one_verdict_stand_in_the_order_of_their_noise(toy: None) -> None:
    facts: Any = {"verdict": VerdictKind.LEAKS, "reason": "dp_bound", "explanation": ""}
    given = [Verdict(item=name, scenario=name, **facts) for name in ("loud", "quiet", "none")]
    made = Record.of([toy_kind.found()], given)
    stds = {"loud": [{"std": 1e-2}], "quiet": [{"std": "inf?"}, {"std": 1e-4}], "none": []}
    scenarios = [{"name": name, "release": {"defenses": defenses}} for name, defenses in stds.items()]
    shown = assemble(replace(made, run={**made.run, "plan": {"scenarios": scenarios}})).front[-2]
    assert isinstance(shown, Table)
    names = [("none", "no defense"), ("quiet", "defense; defense std 10⁻⁴"), ("loud", "defense std 0.01")]
    assert [row[0] for row in shown.rows] == [[name, Small(told)] for name, told in names]


def test_noise_of_any_law_has_its_place_in_the_order(toy: None) -> None:
    facts: Any = {"verdict": VerdictKind.LEAKS, "reason": "dp_bound", "explanation": ""}
    sizes = {"laplace": 3e-3, "std 0.01": 1e-2, "layers": 1e-3}
    place: Any = {"audit": "release", "knowledge": {}}
    releases = [
        ReleaseFinding(item=f"{name}/example 0", scenario=name, noise_rms=size, **place) for name, size in sizes.items()
    ]
    given = [Verdict(item=name, scenario=name, **facts) for name in sizes]
    shown = assemble(Record.of([toy_kind.found(), *releases], given)).front[-2]
    assert isinstance(shown, Table)
    assert [row[0] for row in shown.rows] == ["layers", "laplace", "std 0.01"]


def test_controls_of_one_title_share_its_words(report: Report) -> None:
    parts = section(report, "controls").sections
    assert [part.title for part in parts] == ["A planted leak", "A blank"]
    assert [len(table(part).rows) for part in parts] == [2, 1]
    text = Page(render_html(report)).text
    for said in (
        "Dead units must be found.",
        "If it had failed: The counter is broken.",
        "If it had failed: It sees ghosts.",
    ):
        assert text.count(said) == 1


@pytest.mark.parametrize(("passed", "state"), [(False, "failed"), (None, "not run")])
def test_a_control_that_did_not_pass_is_loud(toy: None, passed: bool | None, state: str) -> None:
    text = render_html(assemble(toy_kind.record(*toy_kind.controls(passed=passed))))
    assert f'<span class="chip chip-fail">{state}</span>' in text
    loud = 'class="callout callout-loud" role="note"><p><strong>What that means.</strong> The counter is broken.'
    # What could not be run is not called broken.
    assert (loud in text) is (passed is False)
    assert ("nothing was checked" in text) is (passed is None)
    assert "If it had failed: It sees ghosts." in text


def test_a_record_without_controls_says_so(toy: None) -> None:
    assert "No control stands in the record." in render_markdown(assemble(toy_kind.record(toy_kind.found())))


def test_refused_and_failed_items_have_a_reason_and_a_remedy_once(report: Report) -> None:
    rows = table(section(report, "problems")).rows
    assert [row[0] for row in rows] == ["a/refused", "a/failed"]
    text = Page(render_html(report)).text
    for said in ("no layer", "no reason was kept", "That is no evidence of safety.", "what to use instead."):
        assert said in text


def test_every_score_stands_there_with_its_evidence(report: Report) -> None:
    record = report.record
    (fold,) = section(report, "scores").blocks
    assert isinstance(fold, Fold)
    assert fold.title.startswith(f"All {len(record.scores)} scores")
    shown = Page(render_html(report))
    assert {score.value for _, score in record.scores if score.value is not None} <= set(shown.numbers)
    for evidence in {score.evidence.value for _, score in record.scores if score.value is not None}:
        assert evidence.replace("_", " ") in shown.by_tag["span"]
    assert "nobody *asked* it" in shown.text


def test_what_tells_scores_of_one_name_apart_stands_beside_the_name(toy: None) -> None:
    scores = tuple(toy_kind.score(about={"round": place, "by": "forest"}) for place in (1, 2))
    (fold,) = section(assemble(toy_kind.record(toy_kind.found(scores=scores))), "scores").blocks
    assert isinstance(fold, Fold)
    assert isinstance(fold.blocks[0], Table)
    assert [row[1] for row in fold.blocks[0].rows] == [f"dead share, round {place}, by forest" for place in (2, 3)]


def test_labels_of_a_batch_are_told_as_counts_too(toy: None) -> None:
    found = toy_kind.score("label_accuracy", 0.0, details={"by_counts": 1.0})
    text = Page(render_html(assemble(toy_kind.record(toy_kind.found(scores=(found,)))))).text
    assert "labels found, as counts of the batch 100 %" in text
    same = toy_kind.score("label_accuracy", 0.5, details={"by_counts": 0.5})
    assert "as counts" not in render_html(assemble(toy_kind.record(toy_kind.found(scores=(same,)))))


def test_a_kind_says_how_its_numbers_are_read(report: Report) -> None:
    text = Page(render_html(report)).text
    places = [
        text.index(part) for part in ("How to read this", "There is no verdict “safe”.", "it is counted.", "How it")
    ]
    assert places[:-1] == sorted(places[:-1])


def test_how_it_was_made(report: Report) -> None:
    facts = section(report, "made").blocks[0]
    assert isinstance(facts, Text)
    assert facts.style is Style.FACTS
    told = {str(part[0]): part[1] for part in facts.parts if not isinstance(part, str)}  # type: ignore[index]
    assert told["Run it again"] == "`gradleak audit toy.toml --out runs/toy`"
    assert told["Versions"] == "python 3.11.9, torch 2.13.0"
    assert told["Thresholds of the plan"] == (
        "pixel rmse 0.1 (the error of what is rebuilt, other than sentences), "
        "epsilon 1 (of one release, in audits of the privacy loss alone)"
    )
    assert told["Host"] == "cores = 2"
    assert told["Estimated before"] == "52,000 plain gradients"
    assert told["Work time"] == "3.0 s"
    (bibliography,) = section(report, "made").sections
    references = bibliography.blocks[0]
    assert isinstance(references, Text)
    assert len(references.parts) == 1
    assert "Deep Leakage" in str(references.parts[0])


def test_costs_of_findings_are_added_up(toy: None) -> None:
    report = assemble(toy_kind.record(toy_kind.found(plain_gradients=1200.0), toy_kind.found(1, plain_gradients=34.0)))
    assert "1,234 plain gradients" in render_markdown(report)


def test_an_unknown_kind_is_shown_as_plain_findings() -> None:
    report = assemble(toy_kind.record())
    assert [one.anchor for one in report.sections][:2] == ["kind-dead_units", "controls"]
    text = Page(render_html(report)).text
    for said in (
        "knows no audit of the kind dead_units",
        "dead = 4",
        "dead share",
        "a/example 0/dead",
        "A planted leak",
    ):
        assert said in text


def test_kinds_stand_in_the_order_of_the_registry(toy: None) -> None:
    unknown = toy_kind.found(1, kind="another")
    report = assemble(toy_kind.record(unknown, toy_kind.found()))
    assert [one.anchor for one in report.sections][:2] == ["dead", "kind-another"]


def test_an_unfinished_run_says_so(toy: None) -> None:
    report = assemble(toy_kind.record(toy_kind.found(), groups=["all", *(f"g{place}" for place in range(8))]))
    (note,) = report.notes
    assert note.title == "Unfinished run."
    assert "8 of the announced parts are missing (g0, g1, g2, g3, g4, g5 …)." in str(note.text)
    assert report.remedy == "Resume the run: verdicts are given once all parts are there."
    assert assemble(toy_kind.record()).notes == []


def test_lines_that_cannot_be_read_are_counted() -> None:
    broken: list[dict[str, Any]] = [
        {"type": "finding", "kind": "x"},
        {"type": "verdict", "item": "run", "verdict": "safe"},
    ]
    text = Page(render_html(assemble(Record(run={"type": "run"}, lines=broken)))).text
    assert "2 lines of the record could not be read and are left out." in text


@pytest.mark.parametrize("run", [{}, {"name": None, "groups": []}, {"plan": None, "citations": None, "thresholds": []}])
def test_an_empty_record_is_a_report(run: dict[str, Any]) -> None:
    report = assemble(Record(run={"type": "run", **run}))
    assert report.verdict is None
    assert report.notes == []
    text = Page(render_html(report)).text
    assert "No verdict The record holds no verdict on the whole run." in text
    assert "**No verdict.**" in render_markdown(report)


def test_a_missing_record_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a record"):
        assemble(tmp_path)


def told(code: str) -> list[str]:
    """What a process of its own prints, line by line."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def test_reporting_needs_no_torch_and_draws_only_where_there_is_a_plot() -> None:
    code = (
        "import os, sys\n"
        "import gradleak.reporting.document, gradleak.reporting.markdown, gradleak.reporting.terminal\n"
        "from gradleak.reporting import write_html\n"
        "from gradleak.results import Record\n"
        "write_html(Record(run={'name': 'x'}), os.devnull)\n"
        "print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    assert told(code) == ["[]"]


def test_a_report_on_one_attack_enters_fourteen_files_of_reporting_at_most() -> None:
    code = (
        "import os, sys\n"
        "from gradleak.reporting import write_html\n"
        "from gradleak.results import Record, Subject\n"
        "from gradleak.results.findings.reconstruction import ReconstructionFinding\n"
        "from gradleak.results.findings.released import ReleaseFinding\n"
        "from gradleak.results.findings.risk import RiskFinding, Spectrum\n"
        "about = {'audit': 'x', 'scenario': 'a', 'subject': Subject(noun='example', name='0')}\n"
        "spectrum = Spectrum(unknowns=2, entries=4, eigenvalues=(1.0, 2.0), rank=2)\n"
        "found = [ReleaseFinding(item='a', **about), ReconstructionFinding(item='b', attack='dlg', **about),\n"
        "         RiskFinding(item='c', spectrum=spectrum, **about)]\n"
        "record = Record(run={}, lines=[{'type': 'finding', **one.to_dict()} for one in found])\n"
        "assert not record.unreadable\n"
        "write_html(record, os.devnull)\n"
        "print('matplotlib' in sys.modules)\n"
        "print(*(name for name in sys.modules if name.startswith('gradleak.reporting')))"
    )
    drawn, files = told(code)
    assert drawn == "True"
    assert len(files.split()) <= 14


def test_units_of_squares_are_said_in_words() -> None:
    assert words.unit("input^2", "image") == "input units squared"
    assert words.unit("gradient^2/input^2", "image") == "release²/input²"
    assert words.unit("pixel_rmse", "tabular") == "feature RMSE"


def test_an_epsilon_of_a_mechanism_says_how_many_releases_it_is_of() -> None:
    facts: dict[str, Any] = {"sensitivity": 10.0, "delta": 1e-5}
    told = [
        words.score_title(
            Score(
                name=name,
                value=2.0,
                unit="epsilon",
                leakier=Leakier.HIGHER,
                evidence=Evidence.EXACT,
                details=facts | more,
            )
        )
        for name, more in (
            ("gaussian_epsilon", {}),
            ("pld_epsilon", {"rounds": 5, "steps_per_round": 1}),
            ("rdp_epsilon", {"rounds": 5, "steps_per_round": 3}),
        )
    ]
    assert told == [
        "epsilon by the exact Gaussian mechanism (one release)",
        "epsilon by the privacy loss distribution (5 releases together)",
        "epsilon by Rényi divergences (15 releases together)",
    ]


def test_a_control_shows_the_largest_of_its_lower_bounds(toy: None) -> None:
    planted = next(one for one in toy_kind.record().findings if one.control is not None)
    assert planted.control is not None
    bound = Score(name="epsilon", value=4.62, unit="epsilon", leakier=Leakier.HIGHER, evidence=Evidence.LOWER_BOUND)
    scores = (bound, replace(bound, value=15.1), replace(bound, value=99.0, evidence=Evidence.ESTIMATE))
    found = planted.but(scores=scores, control=planted.control.model_copy(update={"measure": "epsilon"}))
    record = toy_kind.record()
    shown = assemble(replace(Record.of([found], record.verdicts), run=record.run))
    reached = run(table(section(shown, "controls").sections[0]).rows[0][2], str)
    assert "15.1" in reached
    assert "4.62" not in reached


def test_words_that_leak_are_said_where_it_is_said_what_may_be_shipped(toy: None) -> None:
    said = render_markdown(assemble(toy_kind.record(*toy_kind.verdicts(VerdictKind.INCONCLUSIVE, "words_leak"))))
    assert "its words were read off the update" in said.partition("What may I ship?")[2].partition("## By scenario")[0]


def test_nothing_planted_is_not_said_to_be_found(toy: None) -> None:
    record = toy_kind.record()
    noise = [
        one.but(control=one.control.model_copy(update={"planted": False, "passed": True}))
        for one in record.findings
        if one.control is not None
    ]
    text = render_markdown(assemble(replace(Record.of(noise, record.verdicts), run=record.run)))
    assert "controls passed**: nothing was found where there is nothing; nothing was planted to be found." in text

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradleak.reporting.report import Report, build
from tests.reporting.parsed import Page
from tests.reporting.sample_record import SampleRecord, score

from gradleak.reporting import words
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.results import Record


def test_the_worst_comes_first(report: Report) -> None:
    errors = [attempt.pixel_rmse.value for attempt in report.attempts if attempt.pixel_rmse.value is not None]
    assert errors == sorted(errors)
    assert report.attempts[-1].pixel_rmse.value is None
    assert report.worst is report.attempts[0]
    assert [view.verdict.verdict for view in report.scenarios if view.verdict] == ["leaks"] * 4 + ["inconclusive"] * 2
    assert [exhibit.scenario for exhibit in report.exhibits][:6] == ["undefended"] * 6


def test_leaks_are_counted_among_attacked_releases(report: Report) -> None:
    counts = {view.name: (view.releases, view.attacked, view.leaking) for view in report.scenarios}
    assert counts["undefended"] == (6, 6, 6)
    assert counts["noise 1e-8"] == (3, 1, 1)
    assert counts["noise 1e-4"] == (3, 1, 0)


def test_equal_notes_share_a_number(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    lines = [
        row for k, note in enumerate(("a", "b", "a", "")) for row in sample.attempt("s", k, "dlg", 0.1 + k, note=note)
    ]
    made = build(Record(run={}, lines=lines))
    assert made.notes == ["a", "b"]
    assert [attempt.note_number for attempt in made.attempts] == [1, 2, 1, 0]


def test_the_perfect_attacker_is_no_attack(report: Report) -> None:
    assert "perfect_attacker" not in {attempt.attack for attempt in report.attempts}
    assert all(attempt.validation for attempt in report.validations)
    assert len(report.validations) == report.noise.compared


def test_hits_count_examples_not_attacks(report: Report) -> None:
    # Six digits undefended (one of them attacked three times) and one digit under five noise levels.
    assert (report.hits, report.attacked) == (6, 11)


def test_hits_of_batches_are_joined_over_attacks(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    lines: list[dict[str, Any]] = []
    for attack, hits in (("one", [True, False, False]), ("two", [False, None, True])):
        rows = sample.attempt("batches", 0, attack, 0.01)
        next(row for row in rows if row.get("name") == "exact_hits")["details"] = {"per_example": hits}
        lines += rows
    made = build(Record(run={}, lines=lines))
    assert (made.hits, made.attacked) == (2, 3)
    assert made.attempts[0].examples == 3


def test_the_baseline_of_a_wrong_pairing_stands_beside_every_batch(tmp_path: Path, page: Page) -> None:
    """U31. Of single examples there is none, and no empty table either."""
    sample = SampleRecord(tmp_path, pictures=False)
    rows = sample.attempt("batches", 0, "one", 0.02)
    wrong = score(rows[0]["item"], rows[0], "wrong_pairing_rmse", 0.31, evidence="exact")
    alone = sample.attempt("single", 1, "two", 0.05)
    record = Record(run={}, lines=[*rows, wrong, *alone])
    assert [attempt.wrong_pairing.value for attempt in build(record).attempts] == [0.31, None]
    texts = (Page(render_html(build(record))).text, render_markdown(build(record)))
    for text in texts:
        assert "against wrong examples" in text
        assert "0.31" in text
        assert "paired with its examples one to one" in text
    assert texts[1].count("| one |") == 2
    assert texts[1].count("| two |") == 1
    assert "paired with its examples one to one" not in page.text


def test_one_card_for_scenarios_that_differ_in_defenses_only(report: Report) -> None:
    assert len(report.settings) == 1
    assert len(report.settings[0].releases) == 6
    assert report.settings[0].route == "forward-mode JVP in blocks of 64"


def test_another_threat_model_gets_its_own_card(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    lines = sample.release("a", 0, None, [1.0]) + sample.release("b", 0, None, [1.0])
    next(row for row in lines if row.get("item") == "b/example 0")["knowledge"] = sample.knowledge([], disclosed=True)
    made = build(Record(run={}, lines=lines))
    assert [setting.disclosed != [] for setting in made.settings] == [False, True]


def test_facts_of_a_release_that_a_reader_must_know(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    rows = sample.release("a", 0, None, [1.0])
    rows[0] |= {"domain_guessed": True, "given": True, "zero_tensors": ["2.bias"], "alignment": ["prefix dropped"]}
    notes = " ".join(build(Record(run={}, lines=rows)).settings[0].releases[0].notes)
    for part in ("guessed from the private data", "really sent", "2.bias", "prefix dropped"):
        assert part in notes


def test_the_command_names_no_folder(report: Report) -> None:
    assert report.provenance.command == "gradleak audit examples/digits.toml --out runs/digits"


def test_the_noise_that_would_be_needed(report: Report) -> None:
    low, high = report.noise.needed
    assert low.value is not None
    assert high.value is not None
    assert 0 < low.value < high.value
    assert low.evidence == "estimate"


def test_references_stand_once_and_in_order(report: Report) -> None:
    texts = [reference.text for reference in report.references]
    assert texts == sorted(set(texts))
    assert any("Inversion Influence" in text for text in texts)


def test_a_guessed_domain_is_a_truth_in_the_card(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    rows = sample.release("a", 0, None, [1.0])
    rows[0]["knowledge"]["domain"]["guessed"] = True
    setting = build(Record(run={}, lines=rows)).settings[0]
    assert setting.disclosed == ["The range of the data was guessed from their values, and given to the adversary."]
    fact = next(fact for fact in setting.facts if fact.truth and "guessed" in fact.text)
    assert fact.text.endswith("values from 0 to 1; not stated, but guessed from the values of the data")


def test_disclosed_batch_norm_statistics_are_a_truth_in_the_card(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    rows = sample.release("a", 0, None, [1.0])
    rows[0]["knowledge"]["statistics"] = {"1": {"mean": "float32[4]"}}
    setting = build(Record(run={}, lines=rows)).settings[0]
    assert setting.disclosed == ["The BatchNorm statistics of the private batch were given to the adversary."]


def test_a_release_is_labeled_as_a_whole(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    rows = sample.release("a", 0, 1e-4, [1.0])
    rows[0]["defenses"] = [
        {"use": "DPSGD", "guarantee": "formal"},
        {"use": "AdversarialPerturbation", "guarantee": "heuristic"},
    ]
    report = build(Record(run={}, lines=rows))
    text = render_markdown(report)
    row = next(line for line in text.splitlines() if "DPSGD" in line)
    assert "formal" not in row
    assert "| heuristic |" in row
    shown = render_html(report).split("What left the client")[1].split("</table>")[0]
    assert "badge-heuristic" in shown
    assert "badge-formal" not in shown
    # A record of an earlier version states the classes of defenses alone.
    del rows[0]["guarantee"]
    view = build(Record(run={}, lines=rows)).settings[0].releases[0]
    assert view.guarantee == "not stated"
    assert [defense.guarantee for defense in view.defenses] == ["formal", "heuristic"]


def test_disclosed_masks_are_a_truth_in_the_card(tmp_path: Path) -> None:
    sample = SampleRecord(tmp_path, pictures=False)
    rows = sample.release("a", 0, None, [1.0])
    rows[0]["knowledge"]["masks"] = 7
    setting = build(Record(run={}, lines=rows)).settings[0]
    assert setting.disclosed == [
        "The client's own draw of dropout masks and other random layers was given to the adversary."
    ]
    fact = next(fact for fact in setting.facts if fact.text == "disclosed: its very draw")
    assert fact.truth
    assert fact.label == "The client's draw of dropout masks and other random layers"


def test_a_batch_is_called_one_and_stands_beside_its_own_blind_number(tmp_path: Path) -> None:
    """The attack comes closest to the first example, the blind adversary to the second."""
    sample = SampleRecord(tmp_path, pictures=False)
    lines = sample.release("a", 0, None, [1.0]) + sample.attempt("a", 0, "gauss_newton", 0.01)
    lines[0]["batch_size"] = 2
    errors = {"a/example 0/baseline": [0.4, 0.1], "a/example 0/gauss_newton": [0.01, 0.3]}
    for row in lines:
        if row["type"] == "score" and row["name"] == "pixel_rmse" and row["item"] in errors:
            row |= {"value": min(errors[row["item"]]), "details": {"per_example": errors[row["item"]]}}
    made = build(Record(run={}, lines=lines))
    assert (made.attempts[0].pixel_rmse.value, made.attempts[0].baseline.value) == (0.01, 0.4)
    assert made.reading.place(0) == "batch 0"
    assert made.reading.place(1) == "example 1"
    assert {row.item for row in made.score_rows} == {"a/batch 0/risk", "a/batch 0/baseline", "a/batch 0/gauss_newton"}
    assert made.spectra[0].label == "batch 0"
    for page in (render_markdown(made), render_html(made)):
        assert "batch 0" in page.lower()
        assert "example 0" not in page.lower()


def test_units_of_squares_are_said_in_words() -> None:
    assert words.unit("input^2", "image") == "input units squared"
    assert words.unit("gradient^2/input^2", "image") == "release²/input²"
    assert words.unit("pixel_rmse", "tabular") == "feature RMSE"

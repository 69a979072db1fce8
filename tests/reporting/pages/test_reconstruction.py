"""The page on reconstruction: the worst attempt first, notes, pictures, batches, both adversaries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.audits.released.evidence import attack, control, refused, release, rmse, score

from gradleak.auditing.verdicts import record_of as judged
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.results import Evidence, Finding, Leakier, Outcome, Record, Score, Subject, Thresholds
from gradleak.results.findings.reconstruction import ReconstructionFinding

MISSING = "–"  # noqa: RUF001 - an en dash in an empty cell
LISTS = {
    "dlg": ["update rule: FedSGD()", "labels: optimized"],
    "idlg": ["update rule: FedSGD()", "labels: optimized"],
    "grad_inversion": ["update rule: FedAvg(learning_rate=0.1), assumed, not known", "labels: <b>disclosed</b>"],
    "blind": [],
}


def record_of(*findings: Finding) -> Record:
    return Record.of(findings, thresholds=Thresholds())


def markdown(*findings: Finding) -> str:
    return render_markdown(assemble(record_of(*findings))).replace("\\", "")


def cells(text: str, title: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    lines = text.split(title, 1)[1].split("\n#")[0].splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("|"))
    rows = lines[start + 2 :]
    end = next((place for place, line in enumerate(rows) if not line.startswith("|")), len(rows))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:end]]


def measured(error: float | Sequence[float], *further: Score, **more: Any) -> ReconstructionFinding:
    """An attack with scores beside its error."""
    return attack(None, scores=(rmse(error, Evidence.ATTACK), *further), **more)


def reached(name: str, value: float | None, **details: Any) -> Score:
    unit = "dB" if name == "psnr" else "share" if name in ("label_accuracy", "exact_hits") else "1"
    return score(name, value, unit=unit, evidence=Evidence.ATTACK, leakier=Leakier.HIGHER, details=details)


def test_the_worst_comes_first_and_refused_ones_last() -> None:
    text = markdown(
        release(), attack(0.2, name="b"), refused("undefended", "r"), attack(0.1, name="a"), attack(0.3, name="c")
    )
    rows = cells(text, "### Attacks, example by example")
    assert [row[2] for row in rows] == ["a", "b", "c", "r"]
    assert [row[4] for row in rows] == ["0.1", "0.2", "0.3", MISSING]
    assert rows[3][8] == "unsupported (note 1)"
    assert "1. gn needs generator" in text


def test_the_strongest_stands_on_the_first_screen() -> None:
    strong = measured(0.02, reached("psnr", 33.98), reached("exact_hits", 0.0), name="gn", adversary="static")
    text = markdown(release(), strong, attack(0.3, name="other")).split("## By scenario")[0]
    assert "- Smallest pixel RMSE: 0.02 [attack] (reached by gn, static, example 0, undefended)" in text
    assert "- Its PSNR: 34.0 dB [attack] (higher is closer; above about 30 dB" in text
    assert "- Blind guess beside it: 0.3 [exact] (pixel RMSE of the best guess without the update)" in text
    assert "- Exact hits: 0 of 1 [attack] (attacked examples with pixel RMSE below 0.001" in text
    nothing = markdown(release(), refused("undefended"))
    assert "no attack was scored" in nothing


def test_a_scenario_that_leaks_is_shown_by_an_example_that_does() -> None:
    second = Subject(noun="example", name="1")
    found = [
        *(release(), release("noise"), release("noise", item="noise/example 1", subject=second)),
        *(attack(0.01), attack(0.25, scenario="noise")),
        attack(0.05, scenario="noise", item="noise/example 1/gn", subject=second),
        *(control("positive", passed=True), control("negative", passed=True)),
    ]
    text = render_markdown(assemble(judged(found))).split("What may I ship")[0]
    told = [line for line in text.splitlines() if line.startswith("**Example")]
    assert [line.split(":**")[0] for line in told] == ["**Example 0", "**Example 1"]


def test_columns_of_scores_hold_numbers_or_dashes() -> None:
    """Why there is no number stands in the column of outcomes; of sentences no attack claims labels."""
    none = score("token_error", None, unit="share", evidence=Evidence.ATTACK)
    found = [
        release(),
        attack(None, name="rows", scores=(none, reached("bag_recall", 0.8), reached("label_accuracy", None))),
        attack(None, name="lost", outcome=Outcome.NOT_IDENTIFIABLE, scores=(reached("rouge_l", None),)),
    ]
    record = record_of(*found)
    plan = {"data": [{"domain": {"kind": "tokens"}}]}
    text = render_markdown(assemble(replace(record, run={**record.run, "plan": plan}))).replace("\\", "")
    rows = cells(text, "### Attacks, example by example")
    assert [row[3:10] for row in rows] == [
        [MISSING, MISSING, "0.3", MISSING, MISSING, "0.8", MISSING],
        [MISSING, MISSING, "0.3", MISSING, MISSING, MISSING, MISSING],
    ]
    assert [row[10] for row in rows] == ["converged", "not identifiable"]
    assert "Labels found" not in text.split("## Controls")[0]
    told = cells(text, "### Scores of sentences")
    assert [(row[0], row[3], row[-1]) for row in told] == [
        ("example 0 (undefended)", MISSING, "converged"), ("example 0 (undefended)", MISSING, "not identifiable"),
    ]  # fmt: skip
    assert "there can be more" in text


def test_sentences_are_counted_within_a_scenario_and_words_by_what_is_named() -> None:
    whole = reached("exact_hits", 1.0, per_example=[True])
    bag = reached("bag_recall", 0.875, different=7, different_named=7)
    none = reached("exact_hits", 0.0, per_example=[False])
    found = [
        *(release(), release("noise")),
        attack(None, name="rows", scores=(reached("token_error", 0.0), whole, bag)),
        attack(None, name="rows", scenario="noise", scores=(reached("token_error", 1.0), none)),
    ]
    record = judged(found)
    attacks = {"attacks": {"rows": {"use": "TokenRows"}, "lamp": {"use": "LAMP"}}}
    plan = {"data": [{"domain": {"kind": "tokens"}}], "audits": {"own": {"own": attacks}}}
    text = render_markdown(assemble(replace(record, run={**record.run, "plan": plan}))).replace("\\", "")
    assert (
        "Exact sentences: 1 of 1 [attack] (attacked sentences with every word in place, in undefended; 1 of 2" in text
    )
    assert "7 of 7 different words; the share counts each as often as it stands there" in text
    assert "Not tried on these sentences: `SpanSearch` (" in text
    assert "`GaussNewton` (" in text
    assert "`LAMP` (" not in text


def test_what_is_claimed_though_it_is_not_certain_is_told_from_a_part() -> None:
    facts: dict[str, Any] = {"outcome": Outcome.NOT_IDENTIFIABLE}
    part = score("pixel_rmse", 0.1, evidence=Evidence.ATTACK, details={"per_example": [0.1, None]})
    text = markdown(attack(0.05, name="all", **facts), attack(None, name="part", scores=(part,), **facts))
    told = [row[8] for row in cells(text, "### Attacks, example by example")]
    assert told == ["claimed, though not identifiable", "in part not identifiable"]


def test_equal_notes_share_a_number() -> None:
    found = [attack(0.1 + k, name=f"n{k}", note=note) for k, note in enumerate(("a", "b", "a", ""))]
    text = markdown(*found)
    rows = cells(text, "### Attacks, example by example")
    assert [row[8] for row in rows] == ["converged (note 1)", "converged (note 2)", "converged (note 1)", "converged"]
    assert "1. a\n2. b\n" in text


def test_what_is_said_of_all_errors_is_no_note_of_one() -> None:
    said = "all values lie in 0 to 1, 1/255 of the declared range"
    blind = release(baseline=None, scores=(score("pixel_rmse", 0.3, note=said),), range_note=said)
    near = attack(None, scores=(replace(rmse(0.1, Evidence.ATTACK), note=f"leaves the range; {said}"),))
    assert "1. leaves the range\n" in markdown(blind, near)


def test_hits_count_examples_and_are_joined_over_attacks() -> None:
    one = measured(0.01, reached("exact_hits", 1 / 3, per_example=[True, False, False]), name="one")
    two = measured(0.02, reached("exact_hits", 1 / 3, per_example=[False, None, True]), name="two")
    single = measured(1e-4, reached("exact_hits", 1.0), scenario="other")
    text = markdown(one, two, single, refused("third"))
    assert "Exact hits: 3 of 4" in text
    assert "closest of 3" in cells(text, "### Attacks, example by example")[1][0]


def test_attacks_without_a_claim_are_counted_among_the_attacked() -> None:
    silent = attack(None, name="silent", scenario="quiet", outcome=Outcome.NOT_IDENTIFIABLE)
    text = markdown(release(scenario="quiet", batch_size=2), measured(1e-4, reached("exact_hits", 1.0)), silent)
    assert "Exact hits: 1 of 3" in text
    assert "Attacked, and nothing was claimed: quiet. That is no evidence of safety." in text


def test_labels_of_a_batch_are_told_as_counts_first() -> None:
    batch = measured(
        0.1, reached("exact_hits", 0.0, per_example=[False, False]), reached("label_accuracy", 0.5, by_counts=1.0),
        name="b", labels="recovered",
    )  # fmt: skip
    single = measured(0.2, reached("label_accuracy", 1.0), name="s", labels="disclosed")
    wrong = measured(0.3, reached("label_accuracy", 0.0), name="w", labels="optimized")
    rows = cells(markdown(batch, single, wrong, refused("undefended")), "### Attacks, example by example")
    assert [row[7] for row in rows] == [
        "100 % as counts, 50 % by example, recovered", "yes, given", "no, optimized", MISSING,
    ]  # fmt: skip


def test_the_baseline_of_a_wrong_pairing_stands_beside_every_batch() -> None:
    """U31. Of single examples there is none, and no empty table either."""
    wrong = score("wrong_pairing_rmse", 0.31)
    text = markdown(measured(0.02, wrong, name="one"), attack(0.05, name="two"))
    for part in ("against wrong examples", "0.31", "paired with its examples one to one"):
        assert part in text
    assert (text.count("| one |"), text.count("| two |")) == (3, 2)
    assert "paired with its examples one to one" not in markdown(attack(0.05))


def test_a_batch_is_called_one_and_stands_beside_its_own_blind_number() -> None:
    """The attack comes closest to the first example, the blind guess to the second."""
    batch = Subject(noun="batch", name="0")
    found = [release(subject=batch, batch_size=2, baseline=[0.4, 0.1]), attack([0.01, 0.3], subject=batch)]
    (row,) = cells(markdown(*found), "### Attacks, example by example")
    assert row[0] == "batch 0"
    assert row[4:6] == ["0.01", "0.4"]
    for page in (markdown(*found), render_html(assemble(record_of(*found)))):
        assert "batch 0" in page.lower()
        assert "example 0" not in page.lower()


def test_both_adversaries_stand_side_by_side() -> None:
    told = {"note": "it <cannot>", "adversary": "adaptive"}
    found = [
        release(),
        attack(0.25, suffix="/static", adversary="static"),
        refused("undefended").but(**told),
        attack(0.05, name="other", adversary="adaptive"),
        attack(None, name="other", suffix="/static", adversary="static", outcome=Outcome.NO_SIGNAL),
        attack(0.01, name="open", scenario="open"),
        attack(0.2, name="alone", adversary="static"),
    ]
    text = markdown(*found)
    assert cells(text, "### Static and adaptive, side by side") == [
        ["undefended", "example 0", "other", f"{MISSING} (no signal)", "0.05", "0.3"],
        ["undefended", "example 0", "alone", "0.2", f"{MISSING} (not run)", "0.3"],
        ["undefended", "example 0", "gn", "0.25", f"{MISSING} (refused)", "0.3"],
    ]
    assert "undefended: gn, adaptive: it &lt;cannot&gt;" in text
    assert "The stronger counts" in text
    assert "Static and adaptive" not in markdown(release(), attack(0.1))


def test_each_list_of_what_attacks_went_by_stands_once() -> None:
    found = [
        attack(0.1, name=name, scenario=scenario, details={"information": facts} if facts else {})
        for name, facts in LISTS.items()
        for scenario in ("s", "t")
    ]
    text, html = markdown(*found), render_html(assemble(record_of(*found)))
    assert "- **dlg, idlg**: update rule: FedSGD(); labels: optimized" in text
    assert "**grad_inversion**: update rule: FedAvg(learning_rate=0.1), assumed, not known; labels:" in text
    assert "**blind**" not in text
    assert "<strong>dlg, idlg</strong>: update rule: FedSGD(); labels: optimized" in html
    assert "labels: &lt;b&gt;disclosed&lt;/b&gt;" in html
    assert "<b>disclosed</b>" not in html


@pytest.fixture
def pictured(tmp_path: Path) -> Record:
    """Two releases with an original each, three reconstructions, one of them behind a generator."""
    (tmp_path / "pictures").mkdir()

    def save(name: str) -> str:
        shade = sum(map(ord, name)) % 256
        Image.fromarray(np.full((4, 4), shade, dtype=np.uint8)).save(tmp_path / "pictures" / f"{name}.png")
        return f"pictures/{name}.png"

    findings = [
        release(picture=save("first")),
        release("other", picture=save("second")),
        attack(0.2, picture=save("a"), support="contradicted"),
        attack(0.3, name="ig", picture=save("b")),
        attack(0.1, scenario="other", picture=save("c")),
        attack(0.4, name="none", scenario="other", picture="../../etc/passwd"),
    ]
    return Record.load(record_of(*findings).save(tmp_path))


def test_the_original_stands_beside_what_attacks_made_of_it(pictured: Record) -> None:
    page = render_html(assemble(pictured))
    first, _, rest = page.partition('id="pictures"')
    exhibits = rest.split('<article class="exhibit">')[1:]
    assert [exhibit.count("<img") for exhibit in exhibits] == [2, 3]
    # On the first screen, the strongest attack of each scenario, the worst first.
    steps = first.split('<div class="step">')[1:]
    assert [step.count("<img") for step in steps] == [2, 2]
    assert ["other" in steps[0], "undefended" in steps[1]] == [True, True]
    assert "clearly recognizable" in steps[0]
    assert "some of it, and not near enough" in steps[1]
    assert page.count('name="step"') == 2
    assert page.count(" checked>") == 1
    assert ["(other)" in exhibits[0], "(undefended)" in exhibits[1]] == [True, True]
    assert "Original of example 0" in exhibits[0]
    assert "invented, in part at least, by the prior" in exhibits[1]
    assert exhibits[1].index("<strong>gn") < exhibits[1].index("<strong>ig")
    assert "passwd" not in page.split("Every number of the record")[0]
    # What the words mean is said once, at the end.
    assert "Pictures out of a generator, and what the update itself says of them" in page
    assert "Pictures out of a generator" not in render_html(assemble(record_of(attack(0.2))))


def test_without_pictures_it_is_said_why() -> None:
    page = render_html(assemble(record_of(release(), attack(0.2))))
    assert "Pictures are off: the plan did not ask for them" in page
    record = record_of(attack(0.2))
    plan = {"data": [{"domain": {"kind": "tabular"}}]}
    page = render_html(assemble(replace(record, run={**record.run, "plan": plan})))
    assert "Original beside reconstruction" not in page
    assert "PSNR:" not in page
    assert "Its PSNR" not in page
    assert "Smallest feature RMSE" in page


def test_attacks_are_listed_with_their_settings_and_what_they_cost() -> None:
    settings = {"use": "GaussNewton", "max_steps": 12}
    found = [
        attack(0.1, settings=settings, plain_gradients=100.0),
        attack(0.2, scenario="other", settings=settings, plain_gradients=11.0, check_plain_gradients=1000.0),
    ]
    record = record_of(*found)
    planned = {"reconstruction": {"reconstruction": {"attacks": {"idle": {"use": "DLG", "iterations": 3}}}}}
    shown = render_markdown(assemble(replace(record, run={**record.run, "plan": {"audits": planned}}))).replace(
        "\\", ""
    )
    assert cells(shown, "### The attacks and their settings") == [
        ["idle", "DLG", "iterations = 3", "0", MISSING],
        ["gn", "GaussNewton", "max_steps = 12", "2", "111"],
    ]
    # The cost of the whole run has the check of the claim in it.
    assert "Cost: 1,111 plain gradients" in shown


def test_controls_are_no_attempts() -> None:
    text = markdown(release(), attack(0.2), control("positive", passed=True, scores=(rmse(1e-9, Evidence.ATTACK),)))
    assert "Smallest pixel RMSE: 0.2" in text
    assert len(cells(text, "### Attacks, example by example")) == 1
    alone = markdown(control("positive", passed=True))
    assert "## Reconstruction" not in alone


def test_single_examples_are_left_out_of_the_document_unless_asked_for() -> None:
    report = assemble(record_of(release(), attack(0.2, adversary="static")))
    short = json.dumps(summarize(report)["sections"])
    full = json.dumps(summarize(report, per_record=True)["sections"])
    assert '"example 0"' in full
    assert '"example 0"' not in short

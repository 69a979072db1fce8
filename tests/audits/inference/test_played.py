"""Results of games that were played in Python as findings and as a record, and what reports make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.games.setting import population, release, settings

import gradleak as gl
from gradleak.audits.inference import finding_of_game
from gradleak.results import Citation, InputError, VerdictKind
from gradleak.results.findings.inference import InferenceFinding


def played(*defenses: object, batch_size: int = 8) -> gl.games.GameResult:
    small = settings(
        rounds=1, trials=120, shadow_batches=120, batch_size=batch_size, adversary=gl.attacks.LinearDiscriminant()
    )
    return gl.PropertyGame(population(shift=2.0), **small, release=release(*defenses)).play(0)


@pytest.fixture(scope="module")
def plain() -> gl.games.GameResult:
    return played()


def test_results_by_scenario_stand_side_by_side(plain: gl.games.GameResult, tmp_path: Path) -> None:
    findings = gl.audits.inference.findings_of_games({"undefended": plain, "signs": played(gl.Sign())})
    record = gl.auditing.record_of(findings, name="two")
    assert record.complete
    assert [(one.scenario, one.adversaries) for one in findings] == [
        (scenario, ("static", "adaptive")) for scenario in ("undefended", "signs")
    ]
    assert record.findings == tuple(findings)
    assert record.verdicts[0].verdict is VerdictKind.LEAKS
    assert {verdict.item for verdict in record.verdicts} >= {"undefended", "signs", "run"}
    (auroc,) = {score.value for who in ("static", "adaptive") if (score := findings[0].together("auroc", who))}
    assert auroc == plain.score("auroc").value
    page = gl.write_html(record, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Each defense against an adversary who knows it" in page
    text = gl.write_markdown(record, tmp_path / "page.md").read_text(encoding="utf-8")
    assert "No control stands in the record" in text


def test_several_sizes_of_one_scenario_make_a_line(plain: gl.games.GameResult, tmp_path: Path) -> None:
    findings = gl.audits.inference.findings_of_games({"undefended": [played(batch_size=2), plain]})
    assert len({one.item for one in findings}) == 2
    page = gl.write_html(gl.auditing.record_of(findings), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Advantage by batch size" in page
    assert len({one.item for one in gl.audits.inference.findings_of_games({"undefended": [plain, plain]})}) == 2
    # "k = 1" is no second "k = 16".
    users = [
        replace(result, game={"use": "UserGame", "batch_size": size}) for size, result in ((16, plain), (1, plain))
    ]
    assert {one.audit for one in gl.audits.inference.findings_of_games({"x": users})} == {
        "small, k = 16",
        "small, k = 1",
    }


def test_one_result_needs_no_name_and_none_is_refused(plain: gl.games.GameResult) -> None:
    assert [one.scenario for one in gl.audits.inference.findings_of_games(plain)] == ["release"]
    with pytest.raises(InputError, match="at least one result"):
        gl.audits.inference.findings_of_games({})


def test_a_finding_holds_numbers_over_all_trials_and_none_of_a_single_one(plain: gl.games.GameResult) -> None:
    found = finding_of_game(plain)
    assert (found.item, found.audit, found.scenario) == ("property inference on small", "small", None)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert InferenceFinding.from_dict(json.loads(text)) == found
    for absent in ("log_posteriors", '"truth"', "drawn"):
        assert absent not in text
    (run,) = found.runs
    assert run.trials == 120
    assert [fits.adversary for fits in run.fits] == ["static", "adaptive"]
    assert all(fits.roc is not None and fits.log_posterior_of_truth is not None for fits in run.fits)
    assert [score.about for score in found.scores if "seed" in score.about] == [{"seed": 0}]


def test_a_record_of_findings_is_written_and_read_again(plain: gl.games.GameResult, tmp_path: Path) -> None:
    record = gl.auditing.record_of(gl.audits.inference.findings_of_games(plain), citations=plain_citations())
    read = gl.Record.load(record.save(tmp_path))
    assert read.path == tmp_path / "record.jsonl"
    assert read.canonical() == record.canonical()
    assert (read.findings, read.verdicts) == (record.findings, record.verdicts)
    assert [one["key"] for one in read.run["citations"]] == [one.key for one in plain_citations()]


def plain_citations() -> tuple[Citation, ...]:
    return gl.PropertyGame.citations


def test_findings_that_make_no_record_are_refused(plain: gl.games.GameResult) -> None:
    (one,) = gl.audits.inference.findings_of_games(plain)
    with pytest.raises(InputError, match="at least one finding, and each item once"):
        gl.auditing.record_of([one, one])
    with pytest.raises(InputError, match="at least one finding"):
        gl.auditing.record_of([])

"""Results of games played in Python as a record, and what reports make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gradleak.reporting.reading import read

import gradleak as gl
from gradleak.reporting.inference_view import inferences
from gradleak.results import InputError, VerdictKind
from tests.games.setting import population, release, settings


def played(*defenses: object, batch_size: int = 8) -> gl.GameResult:
    small = settings(rounds=1, trials=120, shadow_batches=120, batch_size=batch_size, adversary=gl.LinearDiscriminant())
    return gl.PropertyGame(population(shift=2.0), **small, release=release(*defenses)).play(0)


@pytest.fixture(scope="module")
def plain() -> gl.GameResult:
    return played()


def test_results_by_scenario_stand_side_by_side(plain: gl.GameResult, tmp_path: Path) -> None:
    record = gl.record_games({"undefended": plain, "signs": played(gl.Sign())}, name="two")
    assert record.complete
    assert [(line["scenario"], line["attack"]) for line in record.items] == [
        (scenario, who) for scenario in ("undefended", "signs") for who in ("static", "adaptive")
    ]
    assert record.verdicts[0].verdict is VerdictKind.LEAKS
    assert {verdict.item for verdict in record.verdicts} >= {"undefended", "signs", "run"}
    for line in record.lines:
        assert not {"truth", "log_posteriors", "drawn"} & set(line)
    page = gl.write_html(record, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "What a defense buys" in page
    assert "No control stands in the record" in gl.write_markdown(record, tmp_path / "page.md").read_text(
        encoding="utf-8"
    )
    (auroc,) = {view.auroc.value for view in inferences(read(record)) if view.scenario == "undefended"}
    assert auroc == plain.score("auroc").value


def test_several_sizes_of_one_scenario_make_a_line(plain: gl.GameResult, tmp_path: Path) -> None:
    record = gl.record_games({"undefended": [played(batch_size=2), plain]})
    assert len({line["item"] for line in record.items}) == 2
    assert "Advantage by batch size" in gl.write_html(record, tmp_path / "page.html").read_text(encoding="utf-8")
    twice = gl.record_games({"undefended": [plain, plain]})
    assert len({line["item"] for line in twice.items}) == 2
    # "k = 1" is no second "k = 16".
    users = [
        replace(result, game={"use": "UserGame", "batch_size": size}) for size, result in ((16, plain), (1, plain))
    ]
    assert {line["game_name"] for line in gl.record_games({"x": users}).items} == {"small, k = 16", "small, k = 1"}


def test_one_result_needs_no_name_and_none_is_refused(plain: gl.GameResult) -> None:
    assert [line["scenario"] for line in gl.record_games(plain).items] == ["release", "release"]
    with pytest.raises(InputError, match="at least one result"):
        gl.record_games({})

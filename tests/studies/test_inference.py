"""The studies of inference games, at small size: numbers, papers beside them, cells that are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradleak.data import Encoding
from gradleak.games import GameResult, PropertyGame
from studies import InferenceDefenses, InferenceRisk, InferenceShield, RiskGame
from studies.game_cells import Cell, cells_of, play
from studies.game_plays import PlayStore
from studies.inference_defenses import PAPER
from studies.store import Store

SMALL = {"trials": 300, "shadow_batches": 300, "rounds": 2, "private_rows": 600, "seeds": 1}


def silent(line: str) -> None:
    del line


def test_property_inference_is_told_beside_the_paper_and_kept(tmp_path: Path) -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    study = InferenceRisk(
        games=[RiskGame.PROPERTY], batch_sizes=[1], public_rows=[100], cells=str(tmp_path / "cells.jsonl"), **SMALL
    )
    found = study.run(say=silent)
    values = {finding.quantity: finding for finding in found.findings}
    own = values["property inference, k = 16: AUROC"]
    assert own.paper == "0.9919"
    assert own.ours is not None
    assert own.interval is not None
    assert own.ours > 0.9 > (values["property inference, k = 1: AUROC"].ours or 1.0)
    assert values["property inference, k = 16, 100 public rows: AUROC"].paper == "0.92"
    assert "figure 3" in found.figures["inference_risk"]
    kept = InferenceRisk(**{**vars(study), "compute": False}).run(say=silent)
    assert [finding.ours for finding in kept.findings] == [finding.ours for finding in found.findings]
    assert any("grows with the batch" in line for line in found.conclusion)


def test_nothing_is_computed_where_nothing_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    study = InferenceRisk(games=[RiskGame.PROPERTY], compute=False, cells=str(tmp_path / "cells.jsonl"))
    assert list(study.run(say=silent).findings) == []


@pytest.mark.slow
def test_speakers_are_parted_in_every_way(shared: Path) -> None:
    study = InferenceRisk(
        games=[RiskGame.SPEAKER], batch_sizes=[], speech=str(shared / "data/speech/fsdd_600.npz"),
        user_trials=20, shadow_batches=60, rounds=1,
    )  # fmt: skip
    found = study.run(say=silent)
    assert [row[0] for row in found.tables[0].rows] == ["speaker"]
    auroc = next(finding for finding in found.findings if finding.quantity.endswith("AUROC"))
    assert auroc.ours is not None
    assert auroc.interval is not None
    assert "mean of 20 splits" in auroc.note


@pytest.mark.slow
def test_signs_hide_from_those_who_do_not_know_them_alone() -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    shields = [InferenceShield.PRUNE, InferenceShield.ADVERSARIAL, InferenceShield.BOTTLENECK]
    found = InferenceDefenses(shields=shields, **SMALL).run(say=silent)
    values = {finding.quantity: finding.ours or 0.0 for finding in found.findings}
    assert values["adversarial perturbation, static: AUROC"] < 0.1
    assert values["adversarial perturbation, adaptive: AUROC"] > 0.95
    assert values["pruning 99 %, static: advantage"] < values["pruning 99 %, adaptive: advantage"]
    assert len(found.tables[0].rows) == 6


def test_codes_are_other_games_than_one_hot_rows_whose_cells_stay_valid(tmp_path: Path) -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    shields = [InferenceShield.SIGN]
    plain = InferenceDefenses(shields=shields, cells=str(tmp_path / "cells.jsonl"), **SMALL)
    coded = replace(plain, encoding=Encoding.CODES)
    names = [
        study.game(study._one(RiskGame.PROPERTY, InferenceShield.SIGN)).describe()["population"]
        for study in (plain, coded)
    ]
    assert names == ["adult: gender, 32561 rows", "adult: gender, codes, 32561 rows"]
    areas = {finding.quantity: finding.ours or 0.0 for finding in coded.run(say=silent).findings}
    assert areas["sign, adaptive: AUROC"] > 0.95
    assert areas["sign, adaptive: AUROC"] > areas["sign, static: AUROC"]
    # What was kept for codes is not taken for one-hot rows.
    assert list(replace(plain, compute=False).run(say=silent).findings) == []
    assert len(replace(coded, compute=False).run(say=silent).findings) == 6
    risk = InferenceRisk(games=[RiskGame.PROPERTY], encoding=Encoding.CODES)
    assert risk.game(risk._of(RiskGame.PROPERTY)[0].of).population.inputs.shape[1] == 11


def test_the_paper_without_pca_stands_beside_who_learned_without_noise() -> None:
    assert set(PAPER[InferenceShield.DP_SGD]) == {("static", "advantage"), ("static", "auroc")}


def test_a_cell_without_a_value_is_a_dash() -> None:
    cell = Cell(scores={}, single={}, utility=None, blind=0.5, seconds=0.0, outcome="unsupported", note="why")
    assert (cell.text("auroc"), cell.best_round) == ("-", (None, None))
    assert cell.finding("game", "auroc").note == "why"


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_next_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    file = tmp_path / "cells.jsonl"
    study = InferenceDefenses(shields=[InferenceShield.SIGN], cells=str(file), **SMALL)
    game, seeds = (
        replace(study.game(study._one(RiskGame.PROPERTY, InferenceShield.SIGN)), trials=100, shadow_batches=60),
        [3, 4],
    )
    plain = cells_of(game.play_seeds(seeds))
    PlayStore(tmp_path / "cells_seeds").play_seeds(game, seeds[:1], jobs=1)
    played = list[int]()
    once = PropertyGame.play

    def counted(self: PropertyGame, seed: int = 0, *, jobs: int = 1) -> GameResult:
        played.append(seed)
        return once(self, seed, jobs=jobs)

    def stored() -> dict[str, Cell] | None:
        with Store(str(file)) as store:
            return play(store, game, seeds, jobs=1, compute=True)

    monkeypatch.setattr(PropertyGame, "play", counted)
    found = stored()
    assert found is not None
    assert played == [4]
    # Without the cells their scores are taken again, from what the seeds left.
    file.unlink()
    again = stored()
    assert played == [4]
    assert again is not None
    for who, cell in plain.items():
        for same in (found[who], again[who]):
            assert (same.scores, same.single, same.utility, same.first) == (
                cell.scores, cell.single, cell.utility, cell.first,
            )  # fmt: skip
            assert same.spread("auroc") == cell.spread("auroc") != "-"
    # A file that was cut short is as if never written.
    one = sorted((tmp_path / "cells_seeds").iterdir())[0]
    one.write_bytes(one.read_bytes()[:100])
    file.unlink()
    stored()
    assert len(played) == 2

"""Studies of sentences under noise at tiny size, without MiniLM, and the numbers that they rest on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import studies.sentence_noise
import studies.token_decoders
from studies import SentenceNoise, TokenDecoders
from studies.sentence_noise_tables import of_the_paper, over_draws, repeated, spearman, within
from studies.token_decoders import interval, placed, played

LINES = ("the cat sat on a mat .", "a dog ran over the hill !", "no cat ran on the hill .", "the mat is a dog ?")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for module in (studies.sentence_noise, studies.token_decoders):
        monkeypatch.setattr(module, "minilm_obstacle", lambda: "not installed here")
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES), encoding="utf-8")
    return str(file)


def test_exact_decoders_are_played_between_both_numbers(text: str, tmp_path: Path) -> None:
    study = TokenDecoders(text=text, sentences=1, length=4, candidates=4, places=1, plays=500)
    result = study.run(say=lambda _: None)
    rows = result.details["rows"]
    assert len(rows) == 5 * len(studies.token_decoders.NOISE)
    assert all(row["enclosed"] and row["below_best"] for row in rows)
    assert sum("linear_enclosed" in row for row in rows) == 4 * len(studies.token_decoders.NOISE)
    assert "In 30 of 30 settings" in result.conclusion[0]
    assert "| GPT-like, std 0.1 | 6 of 6 |" in result.write(tmp_path).read_text(encoding="utf-8")


@pytest.mark.slow  # second derivatives of transformers
def test_sentences_under_noise_have_scores_numbers_and_figures(text: str, tmp_path: Path) -> None:
    study = SentenceNoise(text=text, sentences=4, length=5, iterations=2, draws=2, decoded=1)
    result = study.run(say=lambda _: None)
    rows = result.details["rows"]
    assert len(rows) == 2 * 4 * 2 * len(studies.sentence_noise.NOISE)
    assert all(0 < row["influence_bound"] <= row["influence"] * (1 + 1e-6) for row in rows)
    assert all(0 <= row["token_error_bound"] <= 1 for row in rows)
    assert sum("decoder_error" in row for row in rows) == 2 * len(studies.sentence_noise.NOISE)
    assert set(result.figures) == {"sentence-noise-bert", "sentence-noise-gpt", "sentence-noise-within"}
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "## BERT-like: Spearman over everything / within a level of noise" in page


def test_the_bound_is_held_against_the_papers_scores_over_all_levels_and_within_one() -> None:
    # Scores follow the noise alone: over all levels the order is perfect, within a level there is none.
    rows = [
        {"sentence": number, "noise": noise, "influence_bound": noise + 0.01 * number, "rouge_l": 1 - noise}
        for number in range(8)
        for noise in (0.1, 0.5, 0.9)
    ]
    found = {finding.quantity: finding for finding in of_the_paper("BERT-like", rows)}
    whole = found["BERT-like: Spearman of the I²F bound with ROUGE-L, over all levels"]
    assert whole.ours == pytest.approx(-0.943, abs=1e-3)
    assert whole.interval is not None
    assert whole.interval[1] < -0.9
    assert whole.n == 8
    inside = found["BERT-like: Spearman of the I²F bound with ROUGE-L, mean within a level"]
    assert (inside.ours, inside.note) == (None, "no level orders the score")
    assert found["BERT-like: Spearman of the I²F bound with feature MSE, over all levels"].ours is None


def test_points_have_the_distances_that_they_were_placed_by() -> None:
    points = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    distances = torch.cdist(points, points)
    torch.testing.assert_close(torch.cdist(placed(distances), placed(distances)), distances, rtol=1e-6, atol=1e-6)
    errors = played(placed(distances), 1e-6, 200, torch.Generator().manual_seed(0))
    assert errors == (0, 0)


def test_intervals_hold_shares_at_the_ends() -> None:
    assert interval(0, 100, 0.05)[0] == 0.0
    assert interval(100, 100, 0.05)[1] == 1.0
    low, high = interval(30, 100, 0.05)
    assert (low, high) == pytest.approx((0.2124, 0.3998), abs=1e-4)  # as tables of Clopper and Pearson have it


def test_ranks_are_compared_within_levels_of_noise() -> None:
    """Both numbers grow with the noise, and against each other within each level."""
    rows = [
        {
            "network": "a",
            "sentence": one,
            "noise": noise,
            "draw": draw,
            "influence": noise + 0.01 * one,
            "tag_error": noise - 0.02 * one,
        }
        for noise in (0.1, 1.0)
        for draw in (0, 1)
        for one in range(5)
    ]
    overall = spearman(rows, "influence", "tag_error")
    assert overall is not None
    assert overall > 0.4
    found, levels = within(rows, "influence", "tag_error")
    assert (found, levels) == (pytest.approx(-1.0), 2)
    assert len(over_draws(rows)) == 10
    assert repeated(rows, "tag_error") == pytest.approx(1.0)
    assert spearman([{**row, "tag_error": 0.5} for row in rows], "influence", "tag_error") is None

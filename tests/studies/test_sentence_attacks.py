"""Words, places and sentences of text models at tiny size, without MiniLM."""

from __future__ import annotations

from pathlib import Path

import pytest

import studies.sentence_attacks
from studies import SentenceAttacks


def test_words_and_sentences_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies.sentence_attacks, "obstacle", lambda: "not installed here")
    study = SentenceAttacks(
        text="unused.txt", batches=3, decoders=((300, 48, 2, 8),), ranks=(8,), adapted=((1, 6),), training_steps=2
    )
    said: list[str] = []
    result = study.run(say=said.append)
    by_setting = {finding.quantity: finding for finding in result.findings}
    assert by_setting["words, untied: share of words read that are named"].ours == 1.0
    assert by_setting["words, tied and trained: share of words read that are named"].ours == pytest.approx(
        1.0, abs=0.02
    )
    decoder = by_setting["decoder, 300 words, width 48, 2 x 8: share of sentences exact"]
    assert (decoder.ours, decoder.note) == (1.0, "0 wrong claims")
    adapters = by_setting["adapters, encoder, rank 8, before the first step, 1 x 6: share of sentences exact"]
    assert (adapters.ours, adapters.note) == (1.0, "0 wrong claims")
    assert result.conclusion[-1] == "MiniLM was not tried (not installed here)."
    assert said[0].startswith("words: untied: ")
    assert "| decoder | 300 words, width 48, 2 x 8 | 2 of 2 | 0 |" in result.write(tmp_path).read_text(encoding="utf-8")

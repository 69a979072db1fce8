"""Audits of models of text from Python, end to end on a small transformer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import gradleak as gl
from gradleak.attacks import TokenRows
from gradleak.core import Batch, Domain, Vocabulary
from gradleak.reporting.numerals import decimal
from gradleak.results import InputError, Outcome, Status, VerdictKind
from tests.tokens import VOCABULARY, sentences, tiny

QUIET = gl.AuditOptions(quiet=True)


def test_an_undefended_sentence_leaks_word_for_word(tmp_path: Path) -> None:
    record = gl.audit(tiny(), sentences(7), out=tmp_path, options=gl.AuditOptions(quiet=True, pictures=True))
    verdict = record.verdicts[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.LEAKS, "attack_reached_threshold")
    assert "1 of 1 sentences is exact, word for word" in verdict.explanation
    assert verdict.details["token_error"] == 0.0
    found = {finding.item: finding for finding in record.findings}
    attack = found["release/example 0/token_rows"]
    assert {attack.value(name) for name in ("exact_hits", "rouge_l", "google_bleu", "bag_recall")} == {1.0}
    assert found["control/positive"].control.passed
    assert found["control/positive/span_search"].control.passed
    assert found["control/negative/token_rows"].control.passed
    # At the embeddings, of which each of 7 tokens has a direction that layer normalization hides; the eighth place is empty.
    assert found["release/example 0/derivative"].value("derivative_error") < 1e-6
    assert found["release/example 0/risk"].value("gradient_norm") > 0
    gl.write_markdown(record, tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Claimed above true" in page
    words = VOCABULARY.pieces([one for one in sentences(7).inputs[0].tolist() if VOCABULARY.ordinary(one)])
    assert f"- Claimed: (\\[CLS\\]) {' '.join(f'**{word}**' for word in words)} (\\[SEP\\])" in page
    assert f"- True: (\\[CLS\\]) {' '.join(words)} (\\[SEP\\])" in page
    assert "PSNR" not in page
    risk = found["release/example 0/risk"]
    needed = risk.score("noise_std_for_token_error")
    assert needed.value > 0
    assert "uniform over 12 candidates" in needed.note
    assert "would keep every decoder of a single token" in page
    assert "on average over a prior (uniform over 12 candidates)" in page
    assert "### How often a token is decoded" in page
    worst = risk.score("token_error_bound").details["worst_place"]["value"]
    assert re.search(rf"\| {re.escape(decimal(worst))} \|.*\| 3 of 5 \|", page)


def test_a_sentence_that_is_padded_in_front_is_exact_too(tmp_path: Path) -> None:
    plain = sentences(7, length=7)
    batch = Batch(torch.cat([torch.full((1, 2), -1), plain.inputs], dim=1), plain.targets, Domain.tokens(VOCABULARY, 9))
    # A causal model reads the last place.
    record = gl.audit(
        tiny(causal=True),
        batch,
        attacks={"rows": TokenRows()},
        measures=[],
        out=tmp_path,
        options=gl.AuditOptions(quiet=True, pictures=True),
    )
    assert "1 of 1 sentences is exact, word for word" in record.verdicts[0].explanation
    gl.write_markdown(record, tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    words = VOCABULARY.pieces([one for one in plain.inputs[0].tolist() if VOCABULARY.ordinary(one)])
    assert f"- Claimed: (\\[CLS\\]) {' '.join(f'**{word}**' for word in words)} (\\[SEP\\])" in page
    assert f"- True: (\\[CLS\\]) {' '.join(words)} (\\[SEP\\])" in page


def test_private_words_are_not_on_disk_unless_they_are_asked_for(tmp_path: Path) -> None:
    batch = sentences(7)
    named = Vocabulary(size=40, padding=0, special={1: 0, 2: -1})
    gl.audit(tiny(), Batch(batch.inputs, batch.targets, Domain.tokens(named, 8)), out=tmp_path, options=QUIET)
    text = (tmp_path / "record.jsonl").read_text(encoding="utf-8").replace(" ", "")
    ids = batch.inputs[0, :7].tolist()
    assert not any(str(one).replace(" ", "")[1:-1] in text for one in (ids, sorted(ids), ids[1:-1]))
    assert not (tmp_path / "pictures").exists()


def test_the_bag_of_words_of_a_batch_is_a_claim_of_its_own(tmp_path: Path) -> None:
    record = gl.audit(tiny(), sentences(7, 8), out=tmp_path, options=QUIET)
    verdict = record.verdicts[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "words_leak")
    assert "The bag of words leaks" in verdict.explanation
    # One word stands in both sentences and is named once.
    assert verdict.details["bag"]["recall"] == pytest.approx(10 / 11)
    assert verdict.details["bag"]["precision"] == 1.0
    assert "each counted as often as it stands there (10 of 10 different words)" in verdict.explanation
    gl.write_markdown(record, tmp_path / "report.md")
    page = (tmp_path / "report.md").read_text(encoding="utf-8").replace("\\", "")
    assert "the words of the batch leak" in page
    assert "10 of 10 different words; the share counts each as often as it stands there" in page
    # The ladder of attacks that this plan has no part of.
    assert "Not tried on these sentences: `TAG` (gradient matching over embeddings), `LAMP` (" in page
    assert "`SpanSearch` (" not in page


def test_strong_noise_shows_nothing_and_bounds_nothing(tmp_path: Path) -> None:
    release = gl.Release(gl.FedSGD(), [gl.GaussianNoise(std=10.0)])
    record = gl.audit(tiny(), sentences(7), release=release, out=tmp_path, options=QUIET)
    assert record.verdicts[0].verdict is VerdictKind.INCONCLUSIVE
    risk = next(one for one in record.findings if one.item == "release/example 0/risk")
    # Far above the noise that the bound asks for, and not bounded: a uniform prior is no language.
    assert risk.value("noise_std_for_token_error") < 10.0
    assert risk.value("least_token_error") > 0.9
    assert risk.score("inversion_influence").outcome is Outcome.CONVERGED
    attacks = [one for one in record.findings if getattr(one, "attack", "") == "token_rows" and one.control is None]
    assert {one.adversary for one in attacks} == {"adaptive", "static"}
    assert all(one.status is Status.DONE for one in attacks)


def test_an_encoding_is_audited_and_its_vocabulary_is_that_of_the_model(tmp_path: Path) -> None:
    batch = sentences(7)
    encoding = {"input_ids": batch.inputs.clamp(min=0), "attention_mask": (batch.inputs >= 0).long()}
    record = gl.audit(
        tiny(classes=None, causal=True, size=400, width=32), encoding, loss="causal_lm", out=tmp_path, options=QUIET
    )
    assert record.verdicts[0].verdict is VerdictKind.LEAKS
    labeled = gl.audit(tiny(), (encoding, torch.tensor([1])), out=tmp_path / "labeled", options=QUIET)
    card = labeled.findings[0].knowledge
    assert card["domain"]["guessed"] is True
    assert card["domain"]["vocabulary"]["size"] == 40
    ids = gl.audit(tiny(), (batch.inputs, torch.tensor([1])), out=tmp_path / "ids", options=QUIET)
    assert ids.verdicts[0].verdict is VerdictKind.LEAKS


def test_refusals_speak_of_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got ids, which the model looks up in no nn\.Embedding"):
        gl.audit(torch.nn.Linear(8, 2), (torch.ones(1, 8, dtype=torch.int64), torch.tensor([1])), options=QUIET)
    record = gl.audit(
        tiny(), sentences(7), attacks={"ig": gl.InvertingGradients(), "rows": TokenRows()}, out=tmp_path, options=QUIET
    )
    refused = next(one for one in record.findings if one.item == "release/example 0/ig")
    assert refused.status is Status.REFUSED
    assert "searches numbers, and the examples are ids of tokens" in refused.note

"""Hugging Face models of text with random weights, audited as their users call them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gradleak as gl
from gradleak.core import Objective

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

IDS = torch.tensor([[7, 19, 4, 55, 23, 11, 90, 42, 8]])
ENCODING = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "token_type_ids": torch.zeros_like(IDS)}
QUIET = gl.AuditOptions(quiet=True)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


def test_a_sentence_behind_bert_comes_out_word_for_word(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=500, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.BertForSequenceClassification(config).eval()
    tables = Objective.from_module(model).token_tables()
    assert tables.word == "bert.embeddings.word_embeddings.weight"
    assert tables.position == "bert.embeddings.position_embeddings.weight"
    record = gl.audit(model, (ENCODING, torch.tensor([1])), out=tmp_path, options=QUIET)
    assert record.verdicts[0].details["token_error"] == 0.0


def test_all_but_the_last_word_behind_a_tied_gpt2_come_out(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=500, n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    record = gl.audit(model, ENCODING, loss="causal_lm", out=tmp_path, options=QUIET)
    assert record.verdicts[0].details["token_error"] == pytest.approx(1 / 9)

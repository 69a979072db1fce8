"""Labeled sentences as rows of one-hot tokens."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch
from torch import Tensor

from gradleak.core import Domain, DomainKind, Vocabulary
from gradleak.core.vocabulary import text_lines, tokens
from gradleak.data import Population
from gradleak.results import InputError, check_count
from gradleak.results.fields import check_fits

_Path = str | os.PathLike[str]


def one_hot_domain(vocabulary: Vocabulary, length: int) -> Domain:
    """The domain of a sentence of one-hot rows: shape (length, words), values in [0, 1]."""
    return Domain(shape=(length, len(vocabulary)), kind=DomainKind.SIGNAL)


def one_hot(vocabulary: Vocabulary, sentence: str, *, length: int) -> Tensor:
    """One-hot rows (length, words) float32 of the first tokens of a sentence; rows beyond the end are zeros.

    Examples:
        >>> one_hot(Vocabulary(words=("?", "the", "cat")), "The cat", length=3).argmax(dim=1).tolist()
        [1, 2, 0]
    """
    check_count("one_hot.length", length)
    places = vocabulary.indices(sentence)[:length]
    rows = torch.zeros(length, len(vocabulary))
    rows[torch.arange(len(places)), torch.tensor(places, dtype=torch.int64)] = 1.0
    return rows


def words_of_rows(vocabulary: Vocabulary, rows: Tensor) -> list[str]:
    """The word with the largest weight at each position (length, words); positions whose weights are all 0 are left out."""
    if rows.dim() != 2 or rows.shape[1] != len(vocabulary):
        raise InputError(f"words_of_rows: expected (length, {len(vocabulary)}), got {tuple(rows.shape)}")
    return [vocabulary.words[int(row.argmax())] for row in rows if bool((row != 0).any())]


def sentences(
    path: _Path,
    *,
    public_text: _Path,
    words: int = 500,
    length: int = 32,
    long_from: int = 8,
    target_column: int = 0,
    text_column: int = 1,
) -> Population:
    """Labeled sentences as one-hot rows, with their length (short or long) as sensitive variable.

    The targets are the labels of the file as they stand. Length is counted in words between blanks, in the file and not in
    the rows, which may be cut; it is not a label of a person but a property of any text, and the inputs hold it.

    Args:
        path: tab-separated UTF-8 without a header: a label from 0 on, and a sentence, as the published CoLA files have them.
        public_text: text of which the vocabulary is made, see `Vocabulary.of_text`; not the private sentences.
        words: size of the vocabulary.
        length: positions of a row; longer sentences are cut.
        long_from: number of words from which a sentence is long.
        target_column: place of the label in a line, from 0.
        text_column: place of the sentence.

    Returns:
        Inputs (n, length, words), in the order of the file.

    Raises:
        InputError: for a missing or unfit file, with the line, or a number out of range.

    Warns:
        UserWarning: if sentences were cut.

    Cost: 4 · n · length · words bytes.

    Source:
        Mo et al. 2021, section 6.1 (sentiment as target, length among the attributes, on other texts); Warstadt et al. 2018
        for CoLA. The paper gives no edges of lengths.
    """
    for name, value, least in (("length", length, 1), ("long_from", long_from, 2)):
        check_count(f"sentences.{name}", value, least=least)
    for name, value in (("target_column", target_column), ("text_column", text_column)):
        check_count(f"sentences.{name}", value, least=0)
    file = Path(path)
    vocabulary = Vocabulary.of_text(public_text, words=words)
    labels, texts = [], []
    for number, line in enumerate(text_lines(file), start=1):
        if not line.strip():
            continue
        parts = line.split("\t")
        wanted = max(target_column, text_column)
        if len(parts) <= wanted or not _whole(parts[target_column]) or not tokens(parts[text_column]):
            raise InputError(
                f"{file}, line {number}: expected {wanted + 1} columns or more, a label (0, 1, …) in column {target_column} "
                f"and a sentence in column {text_column}, separated by tabs, got {len(parts)} columns"
            )
        labels.append(int(parts[target_column]))
        texts.append(parts[text_column])
    if not texts:
        raise InputError(f"{file}: expected at least one labeled sentence, got none")
    check_fits("sentences", len(texts) * length * words)
    cut = sum(len(tokens(text)) > length for text in texts)
    if cut:
        warnings.warn(f"sentences: {cut} of {len(texts)} are longer than {length} tokens and were cut", stacklevel=2)
    return Population(
        name=f"{file.name}: length",
        inputs=torch.stack([one_hot(vocabulary, text, length=length) for text in texts]),
        targets=torch.tensor(labels),
        sensitive=torch.tensor([int(len(text.split()) >= long_from) for text in texts]),
        values=(f"below {long_from} words", f"{long_from} words or more"),
        domain=one_hot_domain(vocabulary, length),
        holds_sensitive=True,
    )


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit()

"""Labeled sentences as rows of one-hot tokens, and the vocabulary behind them."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from gradleak.core import Domain, DomainKind
from gradleak.data import Population
from gradleak.results import InputError, check_count
from gradleak.results.fields import check_fits

_Path = str | os.PathLike[str]

_TOKEN = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The words that a text model knows, by index; the first stands for every other word.

    A vocabulary is public: everybody who runs the model has it. Take its words from public text, since one that is made of
    the private sentences tells their words.

    Attributes:
        words: in order, all different, at least two.

    Raises:
        InputError: for fewer words, or one that is there twice.

    Examples:
        >>> vocabulary = Vocabulary(words=("?", "the", "cat", "."))
        >>> vocabulary.indices("The dog.")
        [1, 0, 3]
    """

    words: Sequence[str]

    def __post_init__(self) -> None:
        """Check the words."""
        if isinstance(self.words, str) or len(self.words) < 2:
            raise InputError(f"Vocabulary.words: expected at least two words, got {self.words!r}")
        object.__setattr__(self, "words", tuple(self.words))
        twice = [word for word, times in Counter(self.words).items() if times > 1]
        if twice:
            raise InputError(f"Vocabulary.words: expected every word once, got {twice[0]!r} more often")

    @classmethod
    def of_text(cls, path: _Path, *, words: int = 500) -> Vocabulary:
        """The most frequent tokens of a public text, in lower case, after "<other>"; ties in alphabetical order.

        Args:
            path: of UTF-8 text.
            words: how many, "<other>" among them; fewer where the text has fewer.

        Raises:
            InputError: for a missing file, one that is not text, or fewer than two words.
        """
        check_count("Vocabulary.of_text.words", words, least=2)
        counts = Counter(token for line in _lines(Path(path)) for token in tokens(line))
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        return cls(words=("<other>", *ranked[: words - 1]))

    def __len__(self) -> int:
        """The number of words."""
        return len(self.words)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def domain(self, length: int) -> Domain:
        """The domain of a sentence: shape (length, words), values in [0, 1]."""
        return Domain(shape=(length, len(self)), kind=DomainKind.SIGNAL)

    def indices(self, sentence: str) -> list[int]:
        """The index of each token; 0 where it is not in the vocabulary."""
        return [self._places.get(token, 0) for token in tokens(sentence)]

    def encode(self, sentence: str, *, length: int) -> Tensor:
        """One-hot rows (length, words) float32 of the first tokens; rows beyond the end are zeros."""
        check_count("Vocabulary.encode.length", length)
        places = self.indices(sentence)[:length]
        rows = torch.zeros(length, len(self))
        rows[torch.arange(len(places)), torch.tensor(places, dtype=torch.int64)] = 1.0
        return rows

    def decode(self, rows: Tensor) -> list[str]:
        """The word with the largest weight at each position (length, words); positions whose weights are all 0 are left out."""
        if rows.dim() != 2 or rows.shape[1] != len(self):
            raise InputError(f"Vocabulary.decode: expected (length, {len(self)}), got {tuple(rows.shape)}")
        return [self.words[int(row.argmax())] for row in rows if bool((row != 0).any())]


def tokens(sentence: str) -> list[str]:
    """The words (with their apostrophes) and signs of a sentence, in lower case.

    Examples:
        >>> tokens("You've really lived it up.")
        ["you've", 'really', 'lived', 'it', 'up', '.']
    """
    return _TOKEN.findall(sentence.lower())


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
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        parts = line.split("\t")
        wanted = max(target_column, text_column)
        if len(parts) <= wanted or not _whole(parts[target_column]) or not tokens(parts[text_column]):
            raise InputError(
                f"{file}, line {number}: expected {wanted + 1} columns or more, a label (0, 1, …) in column {target_column} "
                f"and a sentence in column {text_column}, separated by tabs, got {line[:60]!r}"
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
        inputs=torch.stack([vocabulary.encode(text, length=length) for text in texts]),
        targets=torch.tensor(labels),
        sensitive=torch.tensor([int(len(text.split()) >= long_from) for text in texts]),
        values=(f"below {long_from} words", f"{long_from} words or more"),
        domain=vocabulary.domain(length),
        holds_sensitive=True,
    )


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise InputError(f"{file}: expected a text file, got no such file")
    try:
        # Not splitlines: a sentence may hold characters that Unicode counts as ends of lines.
        return file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: expected UTF-8 text, got byte {error.start} of another encoding") from error

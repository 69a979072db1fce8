"""The vocabulary of a text model: pieces by id, padding, and the tokens that are no words."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from gradleak.results import InputError, check_count, member
from gradleak.results.files import decoded, expect_file

_TOKEN = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
# Tokens that are no words, as published vocabularies name them: the place that they always have, counted from either end.
_PLACES: Mapping[str, int | None] = {
    "[CLS]": 0,
    "<s>": 0,
    "[SEP]": -1,
    "</s>": -1,
    "[MASK]": None,
    "<mask>": None,
    "<|endoftext|>": None,
}
_PADDING = ("[PAD]", "<pad>")
_OF_BERT = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
_OTHER = "<other>"
# What stands for any word that is not there.
_UNKNOWN = (_OTHER, "[UNK]", "<unk>")
_CONTINUED = "##"


class Joins(StrEnum):
    """Joining of pieces into words."""

    WORDS = "words"
    WORDPIECE = "wordpiece"
    BPE = "bpe"


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokens that a text model knows, by id.

    A vocabulary is public: everybody who runs the model has it. Take its words from public text, since one that is made of
    the private sentences tells their words.

    Attributes:
        words: a word or piece of a word for each id, all different; none where only their number is known.
        size: how many ids there are, V; that of `words` where these are given.
        padding: the id that fills up short sentences, or None.
        special: ids of tokens that are no words, which no guess and no score counts, each with its place where that is
            fixed: 0 for the first of a sentence, -1 for the last, None for anywhere. A mapping, or pairs.
        joins: how pieces become words: whole words, WordPiece (`##` goes on) or byte-level BPE (`Ġ` is a blank).

    Raises:
        InputError: for fewer than two ids, a word that is there twice, or ids and sizes that do not fit.

    Examples:
        >>> vocabulary = Vocabulary(words=("?", "the", "cat", "."))
        >>> vocabulary.indices("The dog.")
        [1, 0, 3]
        >>> pieces = Vocabulary(words=("[PAD]", "play", "##ing", "[CLS]"), padding=0, special={3: 0}, joins="wordpiece")
        >>> pieces.decode([3, 1, 2, 0])
        'playing'
    """

    words: Sequence[str] = field(default=(), repr=False, metadata={"checksum": True})
    size: int = 0
    padding: int | None = None
    special: Mapping[int, int | None] | Sequence[tuple[int, int | None]] = ()
    joins: Joins = Joins.WORDS

    def __post_init__(self) -> None:
        """Check the fields."""
        if isinstance(self.words, str):
            raise InputError(f"Vocabulary.words: expected a list of words, got the text {self.words[:60]!r}")
        set_field = object.__setattr__
        set_field(self, "words", tuple(self.words))
        set_field(self, "joins", member("Vocabulary.joins", Joins, self.joins))
        size = self.size or len(self.words)
        if not isinstance(size, int) or size < 2 or len(self.words) not in (0, size):
            raise InputError(f"Vocabulary: expected at least two words, got {len(self.words)} and size={self.size}")
        set_field(self, "size", size)
        if len(set(self.words)) < len(self.words):
            twice = next(word for word, times in Counter(self.words).items() if times > 1)
            raise InputError(f"Vocabulary.words: expected every word once, got {twice!r} more often")
        pairs = self.special.items() if isinstance(self.special, Mapping) else self.special
        set_field(self, "special", tuple(sorted((int(one), place) for one, place in pairs)))
        wrong = [
            one for one in (*self.places, *([] if self.padding is None else [self.padding])) if not 0 <= one < size
        ]
        if wrong:
            raise InputError(
                f"Vocabulary: expected ids of padding and special tokens from 0 to {size - 1}, got {wrong[0]}"
            )

    @classmethod
    def of_text(cls, path: str | os.PathLike[str], *, words: int = 500, special: bool = False) -> Vocabulary:
        """The most frequent tokens of a public text; see `of_lines`.

        Args:
            path: of UTF-8 text.
            words: how many, "<other>" among them; fewer where the text has fewer.
            special: put [PAD], [CLS], [SEP] and [MASK] first, beyond the words.

        Raises:
            InputError: for a missing file, one that is not text, or fewer than two words.
        """
        check_count("Vocabulary.of_text.words", words, least=2)
        return cls.of_lines(text_lines(path), words=words, special=special)

    @classmethod
    def of_lines(cls, lines: Iterable[str], *, words: int = 500, special: bool = False) -> Vocabulary:
        """The most frequent tokens of public lines, in lower case, after "<other>"; ties in alphabetical order.

        Args:
            lines: of text.
            words: how many, "<other>" among them; fewer where the text has fewer.
            special: put [PAD], [CLS], [SEP] and [MASK] first, beyond the words, as models like BERT have them.

        Raises:
            InputError: for fewer than two words.

        Examples:
            >>> Vocabulary.of_lines(["a b a"], words=3, special=True).words
            ('[PAD]', '[CLS]', '[SEP]', '[MASK]', '<other>', 'a', 'b')
        """
        check_count("Vocabulary.of_lines.words", words, least=2)
        counts = Counter(token for line in lines for token in tokens(line))
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        kept = (_OTHER, *ranked[: words - 1])
        return cls._named((*_OF_BERT, *kept), Joins.WORDS) if special else cls(words=kept)

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """The vocabulary of a published model: `vocab.txt` (WordPiece), `encoder.json` or `vocab.json` (byte-level BPE).

        Padding and special tokens are found by their names ([PAD], [CLS], [SEP], [MASK], <pad>, <s>, </s>, <mask>,
        <|endoftext|>). A BPE's merges are not needed, since ids become words and not the other way round.

        Args:
            path: of the file: a token a line, or a JSON object of ids by token.

        Raises:
            InputError: for a missing file, or one of another form.
        """
        file = Path(path)
        lines = text_lines(file)
        if file.suffix == ".json":
            words, joins = _by_id(file, "\n".join(lines)), Joins.BPE
        else:
            words = [line.rstrip("\r") for line in lines]
            words, joins = words[:-1] if words[-1] == "" else words, Joins.WORDPIECE
        return cls._named(words, joins)

    @classmethod
    def _named(cls, words: Sequence[str], joins: Joins) -> Vocabulary:
        """The vocabulary of these words, padding and special tokens found by their names."""
        places = {word: place for place, word in enumerate(words)}
        return cls(
            words=tuple(words),
            padding=next((places[name] for name in _PADDING if name in places), None),
            special={places[name]: place for name, place in _PLACES.items() if name in places},
            joins=joins,
        )

    def __len__(self) -> int:
        """The number of ids, V."""
        return self.size

    @cached_property
    def places(self) -> Mapping[int, int | None]:
        """The special ids, each with its fixed place, or None."""
        return dict(self.special)

    @cached_property
    def apart(self) -> frozenset[int]:
        """The ids that are no words: special ones and padding."""
        return frozenset(self.places) | (frozenset() if self.padding is None else frozenset({self.padding}))

    @cached_property
    def uncounted(self) -> frozenset[int]:
        """The ids that no score counts: those apart, and what stands for words that are not in the vocabulary.

        Models read the latter as a word like others, but who names it has not named the word.
        """
        return self.apart | {self._ids[name] for name in _UNKNOWN if name in self._ids}

    def ordinary(self, token: int) -> bool:
        """True for an id that stands for a word or a piece of one."""
        return 0 <= token < self.size and token not in self.apart

    def indices(self, sentence: str) -> list[int]:
        """The id of each word and sign of a sentence, for a vocabulary of words; that of "<other>", else 0, if unknown."""
        other = self._ids.get(_OTHER, 0)
        return [self._ids.get(token, other) for token in tokens(sentence)]

    def id_of(self, word: str) -> int | None:
        """The id of a word or piece as it is written in the vocabulary, or None."""
        return self._ids.get(word)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id as a person reads it: a marked beginning of a word is a blank; "□" for none (-1).

        A vocabulary without words has the ids themselves.
        """
        return [self._piece(int(one)) for one in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens and padding left out; ids below 0, which stand for none, are "□"."""
        kept = [one for one in map(int, ids) if one not in self.apart]
        if self.joins is Joins.BPE and self.words:
            return "".join(self.pieces(kept)).strip()
        text = ""
        for one, piece in zip(kept, self.pieces(kept), strict=True):
            goes_on = (
                self.joins is Joins.WORDPIECE and 0 <= one < len(self.words) and self.words[one].startswith(_CONTINUED)
            )
            text += piece.removeprefix(_CONTINUED) if goes_on and text else f" {piece}"
        return text.strip()

    def _piece(self, one: int) -> str:
        if one < 0:
            return " □" if self.joins is Joins.BPE else "□"
        if one >= len(self.words):
            return str(one)
        word = self.words[one]
        if self.joins is not Joins.BPE or one in self.apart:
            return word
        return bytes(_BYTES[letter] for letter in word if letter in _BYTES).decode("utf-8", errors="replace")

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}


def tokens(sentence: str) -> list[str]:
    """The words (with their apostrophes) and signs of a sentence, in lower case.

    Examples:
        >>> tokens("You've really lived it up.")
        ["you've", 'really', 'lived', 'it', 'up', '.']
    """
    return _TOKEN.findall(sentence.lower())


def text_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a UTF-8 text file.

    Raises:
        InputError: for a missing file, or one that is not text.
    """
    file = expect_file(path, "a text file")
    text = decoded(file.read_bytes(), file).replace("\r\n", "\n").replace("\r", "\n")
    # Not splitlines: a sentence may hold characters that Unicode counts as ends of lines.
    return text.split("\n")


def _by_id(file: Path, text: str) -> list[str]:
    """The tokens of a JSON object of ids by token, in the order of their ids."""
    try:
        table: Any = json.loads(text)
        ranked = sorted(table.items(), key=lambda pair: pair[1])
    except (ValueError, AttributeError, TypeError):
        ranked = [("", -1)]
    if [place for _, place in ranked] != list(range(len(ranked))):
        raise InputError(f"{file}: expected a JSON object with the ids 0, 1, 2, ... by token, got something else")
    return [word for word, _ in ranked]


def _byte_letters() -> dict[str, int]:
    """The byte behind each letter of a byte-level BPE, which writes bytes that do not print as letters from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_letters()

"""Sentences as ids of tokens: from a file of one's own, or from the help texts that Python carries."""

from __future__ import annotations

import csv
import filecmp
import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradleak.core import NO_TOKEN, Batch, Domain, Vocabulary
from gradleak.core.vocabulary import Joins, text_lines
from gradleak.datasets.files import packaged_file, row_range
from gradleak.results import InputError, UnsupportedError, check_count, check_seed, member

_Path = str | Path
# In place of the target where none counts, as torch's losses have it.
_IGNORED = -100
_MASKED = 0.15
# Vocabularies that folders of checkpoints hold, each with names of its merges.
_VOCABULARIES: Mapping[str, Sequence[str]] = {
    "vocab.txt": (),
    "vocab.json": ("merges.txt",),
    "encoder.json": ("vocab.bpe", "merges.txt"),
}
_MASKS = ("[MASK]", "<mask>")
_SENTENCE = re.compile(r"[A-Z][A-Za-z]*(?:,? [A-Za-z]+(?:['-][A-Za-z]+)*){4,}\.")


class TextTargets(StrEnum):
    """Targets of sentences, by the loss that takes them."""

    CLASSES = "classes"
    CAUSAL_LM = "causal_lm"
    MASKED_LM = "masked_lm"


def text_file(
    *,
    path: _Path,
    count: int,
    vocabulary: _Path | None = None,
    merges: _Path | None = None,
    public_text: _Path | None = None,
    words: int = 500,
    length: int = 32,
    targets: TextTargets = TextTargets.CLASSES,
    text_column: str = "text",
    label_column: str = "label",
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
    public_last: int | None = None,
) -> Batch:
    """A batch of sentences of a file, as ids of tokens, drawn without replacement.

    A larger count with the same seed begins with the same sentences. The vocabulary is public: that of the model, or the most
    frequent words of a public text, which must not be the private file. [CLS] and [SEP] (<s> and </s>) stand around a sentence
    where the vocabulary has them, but for causal language models.

    Args:
        path: UTF-8 text with a sentence a line, or a table (.csv, .tsv) with a header. Empty lines count as rows nowhere.
        count: number of sentences.
        vocabulary: of the model: `vocab.txt` (WordPiece, in lower case where no piece has capitals), or `encoder.json` or
            `vocab.json` (byte-level BPE), or the folder of a checkpoint that has one of them. "package:file" is a file that an
            installed package carries. None counts words.
        merges: `vocab.bpe` or `merges.txt`, for a byte-level BPE.
        public_text: of which words are counted where there is no `vocabulary`.
        words: how many of them, see `Vocabulary.of_text`; [PAD], [CLS], [SEP] and [MASK] come before them.
        length: T, places of a row; shorter sentences are filled up with -1, longer ones are cut.
        targets: "classes" (b,): labels of the table from 0 on, or drawn from 0 and 1 for a file without, since what a
            gradient tells hardly depends on them; "causal_lm": the ids themselves; "masked_lm": ids at 15 % of the words, one at
            least, where the inputs have [MASK].
        text_column: of the sentences of a table.
        label_column: of its labels.
        seed: of the draws; the global RNG is never touched.
        first: first sentence that may be drawn.
        last: the one behind the last one; None for the end.
        public_last: the line of `public_text` behind the last one whose words are counted, empty lines left out; None for the
            end. The first lines of the private file can so be public, where `first` is no smaller.

    Returns:
        Inputs (count, length) int64, targets, and the domain of tokens.

    Raises:
        InputError: for a missing or unfit file, or more sentences than it has.
        UnsupportedError: if pieces of words are needed and the package `tokenizers` is not installed.

    Warns:
        UserWarning: if sentences were cut, or words are counted in the private sentences.
    """
    kind = member("text_file.targets", TextTargets, targets)
    if public_last is not None:
        check_count("text_file.public_last", public_last)
    reader = _reader(vocabulary, merges, public_text, words, public_last=public_last)
    apart = public_last is not None and public_last <= first
    if vocabulary is None and public_text is not None and not apart and _same(packaged_file(public_text), Path(path)):
        warnings.warn(
            f"text_file: public_text is the private file {Path(path).name} itself; every audit then takes its words for "
            "public",
            stacklevel=2,
        )
    texts, labels = _rows(Path(path), text_column, label_column, kind)
    rows = row_range(count=count, first=first, last=last, available=len(texts), source=Path(path).name)
    chosen = _drawn(rows, count, seed)
    drawn = np.random.default_rng([seed, 1]).integers(0, 2, len(texts)) if labels is None else np.asarray(labels)
    return _batch([texts[one] for one in chosen], drawn[chosen].tolist(), reader, length, kind, seed)


def python_topics(
    *,
    count: int,
    vocabulary: _Path | None = None,
    merges: _Path | None = None,
    words: int = 1000,
    length: int = 24,
    targets: TextTargets = TextTargets.CLASSES,
    public: bool = False,
    seed: int = 0,
    first: int = 0,
    last: int | None = None,
) -> Batch:
    """A batch of sentences of Python's own help texts (`pydoc_data.topics`), as ids of tokens, drawn without replacement.

    Real English in every installation, under the license of Python; other versions of Python have other sentences. Every
    second topic is public: words are counted there, and `public=True` draws from there, for guessers.

    Args:
        count: number of sentences.
        vocabulary: as in `text_file`; None counts the words of the public topics.
        merges: as in `text_file`.
        words: how many are counted.
        length: T, places of a row; sentences of more tokens are left out.
        targets: as in `text_file`; the class says in which half of the alphabetical list of topics the sentence stands.
        public: draw from the public topics in place of the others.
        seed: of the draws; the global RNG is never touched.
        first: first sentence that may be drawn.
        last: the one behind the last one; None for the end.

    Returns:
        Inputs (count, length) int64, targets, and the domain of tokens.

    Raises:
        InputError: for a number out of range, or more sentences than there are.
        UnsupportedError: if the package `tokenizers` is needed and not installed, or Python has no help texts.

    Source:
        Python Software Foundation, the language reference (PSF license).

    Examples:
        >>> python_topics(count=2).inputs.shape
        torch.Size([2, 24])
    """
    kind = member("python_topics.targets", TextTargets, targets)
    check_count("python_topics.length", length, least=3)
    reader = _reader(vocabulary, merges, None, words, counted=_public_text())
    known = () if public else {text for text, _ in _topics(True)}
    fitting = [pair for pair in _topics(public) if pair[0] not in known and len(reader(pair[0], kind)) <= length]
    rows = row_range(count=count, first=first, last=last, available=len(fitting), source="Python's help texts")
    chosen = [fitting[one] for one in _drawn(rows, count, seed)]
    return _batch([text for text, _ in chosen], [label for _, label in chosen], reader, length, kind, seed)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Sentences to ids: pieces of words by the tokenizer of the model, tokens of a sentence's ends around them."""

    vocabulary: Vocabulary
    encode: Callable[[str], list[int]]

    def __call__(self, text: str, kind: TextTargets) -> list[int]:
        ids = self.encode(text)
        if kind is TextTargets.CAUSAL_LM:
            return ids
        start, end = self._at(0), self._at(-1)
        return [*start, *ids, *end]

    def cut(self, ids: list[int], length: int, kind: TextTargets) -> list[int]:
        """The first ids, and the token of the end where there is one."""
        end = [] if kind is TextTargets.CAUSAL_LM else self._at(-1)
        return ids if len(ids) <= length else [*ids[: length - len(end)], *end]

    def _at(self, place: int) -> list[int]:
        return [one for one, fixed in self.vocabulary.places.items() if fixed == place][:1]


def _reader(
    vocabulary: _Path | None,
    merges: _Path | None,
    public_text: _Path | None,
    words: int,
    *,
    counted: Sequence[str] | None = None,
    public_last: int | None = None,
) -> _Reader:
    if vocabulary is None:
        if counted is None and public_text is None:
            raise InputError(
                "text_file: expected `vocabulary` (vocab.txt, encoder.json) or `public_text`, of which words are counted, got "
                "neither; the words of the private sentences would tell what they say"
            )
        lines = counted if public_text is None else _sentences(packaged_file(public_text))[:public_last]
        made = Vocabulary.of_lines(lines or (), words=words, special=True)
        return _Reader(vocabulary=made, encode=made.indices)
    file, merged = packaged_file(vocabulary), None if merges is None else packaged_file(merges)
    if file.is_dir():
        file, merged = _of_folder(file, merged)
    made = Vocabulary.of_file(file)
    return _Reader(vocabulary=made, encode=_pieces(made, file, merged))


def _of_folder(folder: Path, merges: Path | None) -> tuple[Path, Path | None]:
    """The vocabulary and the merges that a folder of a checkpoint holds."""
    for name, pairs in _VOCABULARIES.items():
        if (folder / name).is_file():
            beside = (folder / one for one in pairs)
            return folder / name, merges or next((one for one in beside if one.is_file()), None)
    raise InputError(
        f"{folder}: expected vocab.txt, or vocab.json with merges.txt, got neither; tokenizer.model.save(folder) of the package "
        "tokenizers writes them from a tokenizer.json"
    )


def _pieces(vocabulary: Vocabulary, file: Path, merges: Path | None) -> Callable[[str], list[int]]:
    """The tokenizer of a published vocabulary, by the package `tokenizers`."""
    if vocabulary.joins is Joins.BPE and merges is None:
        raise InputError(
            f"{file}: expected `merges` too (vocab.bpe, merges.txt), since it is a byte-level BPE, got none"
        )
    if importlib.util.find_spec("tokenizers") is None:
        raise UnsupportedError(
            f"{file}: expected the package tokenizers, which cuts words into pieces, and it is not installed: run "
            "`pip install gradleak[text]`, or count words with public_text in place of vocabulary"
        )
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from tokenizers.implementations import BertWordPieceTokenizer

    made: Tokenizer
    if merges is not None and vocabulary.joins is Joins.BPE:
        made = ByteLevelBPETokenizer(str(file), str(merges))
    else:
        lower = all(word == word.lower() for word in vocabulary.words if not word.startswith("["))
        made = BertWordPieceTokenizer(str(file), lowercase=lower)
    return lambda text: list(made.encode(text, add_special_tokens=False).ids)


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _sentences(file: Path) -> list[str]:
    """The lines of a file that are not empty."""
    return [line.strip() for line in text_lines(file) if line.strip()]


def _rows(file: Path, text_column: str, label_column: str, kind: TextTargets) -> tuple[list[str], list[int] | None]:
    """The sentences of a file, and their labels where it is a table with some and they are asked for."""
    if file.suffix not in (".csv", ".tsv"):
        texts = _sentences(file)
        if not texts:
            raise InputError(f"{file}: expected at least one sentence, got none")
        return texts, None
    table = csv.DictReader(text_lines(file), delimiter="," if file.suffix == ".csv" else "\t")
    wanted = [text_column, *([label_column] if kind is TextTargets.CLASSES else [])]
    named = table.fieldnames or []
    lacking = [name for name in wanted if name not in named]
    if lacking:
        raise InputError(
            f"{file}: expected columns {' and '.join(map(repr, wanted))} in the first line, got {len(named)} without "
            f"{' and '.join(map(repr, lacking))}; name them with text_column and label_column"
        )
    texts, labels = [], []
    for row in table:
        text, label = (row[text_column] or "").strip(), row.get(label_column) or ""
        if not text or (kind is TextTargets.CLASSES and not (label.isascii() and label.isdigit())):
            raise InputError(
                f"{file}, line {table.line_num}: expected a sentence and a label from 0 on, got "
                + ("a label of another form" if text else "no sentence")
            )
        texts.append(text)
        labels.append(int(label) if kind is TextTargets.CLASSES else 0)
    if not texts:
        raise InputError(f"{file}: expected at least one sentence, got none")
    return texts, labels


def _drawn(rows: slice, count: int, seed: int) -> list[int]:
    check_seed("seed", seed)
    order: list[int] = np.random.default_rng(seed).permutation(rows.stop - rows.start)[:count].tolist()
    return [rows.start + one for one in order]


def _batch(
    texts: Sequence[str], labels: Sequence[int], reader: _Reader, length: int, kind: TextTargets, seed: int
) -> Batch:
    check_count("length", length, least=3)
    vocabulary = reader.vocabulary
    rows = [reader(text, kind) for text in texts]
    cut = sum(len(row) > length for row in rows)
    if cut:
        warnings.warn(
            f"text: {cut} of {len(rows)} sentences are longer than {length} tokens and were cut", stacklevel=3
        )
    ids = torch.full((len(rows), length), NO_TOKEN)
    for place, row in enumerate(rows):
        kept = reader.cut(row, length, kind)
        if vocabulary.uncounted.issuperset(kept):
            raise InputError(
                f"text: expected at least one known word in every sentence, got none in sentence {place} of those drawn; "
                "count words in text of the same kind, or more of them"
            )
        ids[place, : len(kept)] = torch.tensor(kept)
    if kind is TextTargets.CAUSAL_LM:
        # These rows have no [CLS] in front and no [SEP] behind: who took them as given would lose two words.
        vocabulary = replace(vocabulary, special=dict.fromkeys(vocabulary.places))
    domain = Domain.tokens(vocabulary, length)
    if kind is TextTargets.CLASSES:
        return Batch(ids, torch.tensor(labels, dtype=torch.int64), domain)
    told = torch.where(ids == NO_TOKEN, torch.full_like(ids, _IGNORED), ids)
    return Batch(ids, told, domain) if kind is TextTargets.CAUSAL_LM else Batch(*_masked(ids, vocabulary, seed), domain)


def _masked(ids: Tensor, vocabulary: Vocabulary, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs with [MASK] at a share of the words of each sentence, one at least, and the ids there as targets."""
    mask = next((one for name in _MASKS if (one := vocabulary.id_of(name)) is not None), None)
    if mask is None:
        raise InputError("targets: expected a vocabulary with [MASK] or <mask> for masked_lm, got one without")
    draws = torch.from_numpy(np.random.default_rng([seed, 2]).random(tuple(ids.shape)))
    words = torch.tensor([[vocabulary.ordinary(one) for one in row] for row in ids.tolist()])
    draws[~words] = 2.0
    hidden = (draws < _MASKED) | (draws == draws.amin(dim=1, keepdim=True))
    return ids.masked_fill(hidden, mask), torch.where(hidden, ids, torch.full_like(ids, _IGNORED))


@cache
def _topics(public: bool) -> tuple[tuple[str, int], ...]:
    """Sentences of every second topic, each with the half of the list that its topic stands in."""
    texts = _help()
    found: dict[str, int] = {}
    for place, whole in enumerate(texts):
        for paragraph in whole.split("\n\n") if place % 2 != int(public) else ():
            if any(line.startswith(" ") for line in paragraph.split("\n")):
                continue
            for part in re.split(r"(?<=[.])\s+(?=[A-Z])", " ".join(paragraph.split())):
                if _SENTENCE.fullmatch(part):
                    found.setdefault(part, int(2 * place >= len(texts)))
    return tuple(found.items())


def _public_text() -> list[str]:
    return [line for text in _help()[::2] for line in text.split("\n")]


def _help() -> list[str]:
    """Python's help texts by the name of their topic, every second of which is public."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UnsupportedError(
            "expected Python's help texts (pydoc_data.topics), and this Python has none: use text_file"
        ) from error
    return [topics[name] for name in sorted(topics)]

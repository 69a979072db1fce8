"""Language models that an adversary brings along: the probability of a sentence before anything was seen of it."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gradleak.core import Vocabulary
from gradleak.core.vocabulary import text_lines
from gradleak.results import Count, InputError, Settings


class Language(Settings, ABC):
    """A language model on the ids of a vocabulary, made from text that is not the client's; authors write these two."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ids that it knows, V."""

    @abstractmethod
    def log_probability(self, ids: Sequence[int]) -> float:
        """The natural logarithm of the probability of a sentence of these ids, from its first to its last."""


@dataclass(frozen=True, kw_only=True)
class NGram(Language):
    """Counts of runs of up to `order` ids in public sentences, shorter runs standing in for those that were not seen.

    With c(h w) the count of word w behind the words h, and T(h) the number of different words that were seen behind h,
    p(w | h) = (c(h w) + T(h) p(w | h')) / (c(h) + T(h)), h' being h without its first word, and p(w) begins at 1/V.

    **Source**: Witten and Bell 1991, the interpolated form.

    Attributes:
        sentences: public ones, as ids.
        vocabulary: number of ids, V.
        order: longest run, 2 for pairs.

    Raises:
        InputError: without sentences, or for ids outside of the vocabulary.

    Examples:
        >>> pairs = NGram(sentences=[[0, 1, 2], [0, 1, 3]], vocabulary=4)
        >>> pairs.log_probability([0, 1, 2]) > pairs.log_probability([1, 0, 2])
        True
    """

    sentences: Sequence[Sequence[int]] = field(repr=False, metadata={"checksum": True})
    vocabulary: Count
    order: Count = 2

    def __post_init__(self) -> None:
        """Check the ids."""
        super().__post_init__()
        ids = [word for sentence in self.sentences for word in sentence]
        if not ids or min(ids) < 0 or max(ids) >= self.vocabulary:
            got = f"ids from {min(ids)} to {max(ids)}" if ids else "none"
            raise InputError(f"NGram.sentences: expected ids from 0 to {self.vocabulary - 1}, got {got}")

    @classmethod
    def of_text(cls, path: str | os.PathLike[str], vocabulary: Vocabulary, *, order: int = 2) -> NGram:
        """The model of a public text, a sentence a line; empty lines are left out.

        Args:
            path: of UTF-8 text.
            vocabulary: of whole words.
            order: longest run.

        Raises:
            InputError: for a missing file, one that is not text, or an empty one.
        """
        lines = [vocabulary.indices(line) for line in text_lines(path)]
        return cls(sentences=[ids for ids in lines if ids], vocabulary=vocabulary.size, order=order)

    @property
    def size(self) -> int:
        """The number of ids, V."""
        return self.vocabulary

    def log_probability(self, ids: Sequence[int]) -> float:
        """The sum of the logarithms of p(w | the order − 1 words before it)."""
        return sum(
            math.log(self._share(ids[place], tuple(ids[max(0, place - self.order + 1) : place])))
            for place in range(len(ids))
        )

    def _share(self, word: int, before: tuple[int, ...]) -> float:
        shorter = self._share(word, before[1:]) if before else 1 / self.vocabulary
        runs, contexts, kinds = self._counts
        seen, different = contexts[before], kinds[before]
        return (runs[(*before, word)] + different * shorter) / (seen + different) if seen else shorter

    @cached_property
    def _counts(self) -> tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]], Counter[tuple[int, ...]]]:
        """Runs, what stands before their last word, and how many different last words there are."""
        runs: Counter[tuple[int, ...]] = Counter()
        for sentence in self.sentences:
            for length in range(1, self.order + 1):
                runs.update(tuple(sentence[at : at + length]) for at in range(len(sentence) - length + 1))
        contexts: Counter[tuple[int, ...]] = Counter()
        kinds: Counter[tuple[int, ...]] = Counter()
        for run, times in runs.items():
            contexts[run[:-1]] += times
            kinds[run[:-1]] += 1
        return runs, contexts, kinds

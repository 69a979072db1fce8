"""Ids and vocabulary of the trained MiniLM sentence encoder (`gradleak.models.minilm`), for studies of text."""

from __future__ import annotations

from torch import Tensor

from gradleak.core import Vocabulary
from gradleak.models.minilm import minilm_folder


def minilm_vocabulary() -> Vocabulary:
    """Its WordPiece vocabulary of 30,522 pieces.

    Raises:
        UnsupportedError: where the package is not installed.
    """
    return Vocabulary.of_file(minilm_folder() / "vocab.txt")


def minilm_ids(sentences: list[str], *, length: int) -> Tensor:
    """Ids (b, T) of sentences with [CLS] and [SEP], cut to `length`, -1 behind their end."""
    from transformers import AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(minilm_folder())(
        sentences, return_tensors="pt", padding=True, truncation=True, max_length=length
    )
    ids: Tensor = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -1)
    return ids

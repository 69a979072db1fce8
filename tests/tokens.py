"""A small transformer of tokens with random weights, for tests of text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Domain, Vocabulary

SIZE, WIDTH, PLACES = 40, 16, 12


class TinyTransformer(nn.Module):
    """Word and position tables, one block of attention (with a mask, causal or not), and a head for classes or words.

    Args:
        classes: of the head; None for a language model whose head is the word table.
        causal: whether a place reads those before it alone.
        size: ids.
        width: of an embedding.
        places: rows of the position table.
    """

    def __init__(
        self,
        *,
        classes: int | None = 2,
        causal: bool = False,
        size: int = SIZE,
        width: int = WIDTH,
        places: int = PLACES,
    ) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(size, width), nn.Embedding(places, width)
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix, self.wide, self.back = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.head = nn.Linear(width, size if classes is None else classes, bias=classes is not None)
        self.causal, self.language = causal, classes is None
        if self.language:
            self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (b, classes) of the first place, or of the last in a causal model; (b, T, V) of a language model."""
        length = input_ids.shape[1]
        x = self.norm(self.words(input_ids) + self.positions(torch.arange(length, device=input_ids.device)))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -1e9)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        x = x + self.mix(scores.softmax(-1) @ self.value(x))
        x = x + self.back(F.gelu(self.wide(self.second(x))))
        return self.head(x if self.language else x[:, -1 if self.causal else 0])


def tiny(*, seed: int = 0, std: float = 0.2, **settings: object) -> TinyTransformer:
    """The network with tables from N(0, std²) and torch's own weights elsewhere, from a seed."""
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(seed)
        model = TinyTransformer(**settings)  # type: ignore[arg-type]
        for table in (model.words, model.positions):
            nn.init.normal_(table.weight, std=std)
    return model.eval()


VOCABULARY = Vocabulary(
    words=("[PAD]", "[CLS]", "[SEP]", *(f"w{place}" for place in range(3, SIZE))), padding=0, special={1: 0, 2: -1}
)


def sentences(*lengths: int, seed: int = 0, length: int = 8, language: bool = False) -> Batch:
    """Sentences of [CLS], different words, [SEP], with -1 beyond their end; class 1, or the ids themselves as targets."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), length), -1)
    for row, count in enumerate(lengths):
        words = 3 + torch.randperm(SIZE - 3, generator=generator)[: count - 2]
        ids[row, :count] = torch.cat([torch.tensor([1]), words, torch.tensor([2])])
    targets = (
        torch.where(ids >= 0, ids, torch.full_like(ids, -100))
        if language
        else torch.ones(len(lengths), dtype=torch.int64)
    )
    return Batch(ids, targets, Domain.tokens(VOCABULARY, length))

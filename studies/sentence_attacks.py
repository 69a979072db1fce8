"""Study: words, places and whole sentences that updates of text models spell."""

from __future__ import annotations

import pydoc_data.topics
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.attacks.text.span_search import SpanSearch
from gradleak.attacks.text.table_rows import place_words, rows_outside_head
from gradleak.core import Batch, Defense, Domain, HonestButCurious, Objective, Release, Vocabulary, describe, one_thread
from gradleak.defenses import GaussianNoise
from gradleak.models import Transformer, minilm, transformer
from gradleak.models.minilm import minilm_obstacle as obstacle
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import DAGER_2024, Citation
from studies.networks.minilm import minilm_ids, minilm_vocabulary
from studies.study import Finding, Say, Study, StudyResult, Table

# Batches of a decoder: words of the vocabulary, width, sentences, tokens of each.
DECODERS = ((5000, 128, 1, 16), (5000, 128, 4, 16), (5000, 128, 4, 28), (5000, 128, 8, 14), (5000, 128, 16, 7))
# Ranks of adapters on query and value, and batches behind them: sentences, tokens of each.
RANKS, ADAPTED = (8, 16, 64), ((1, 7), (1, 14), (2, 7), (1, 30), (4, 12))
WORDS, PLACES, DECODER, ENCODER, ENCODER_DEFENDED = "words", "places", "decoder", "encoder", "encoder, defended"
ADAPTERS = "adapters"


@dataclass(frozen=True, kw_only=True)
class SentenceAttacks(Study):
    """Shares of words, places and sentences that are named exactly, and their cost in plain gradients (processor time).

    Words: rows of untied tables that are not zero; rows of the tied table of a small decoder, trained on the Python manual,
    outside of the span of its head, beside two rules on norms (told the number of words, and breaching's mean + 3.5 standard
    deviations of log norms). Places: single sentences on MiniLM, with noise as large as the gradient too. Sentences:
    `SpanSearch` on untrained decoders and on the trained MiniLM, with defenses.

    Attributes:
        text: sentences, one a line.
        batches: batches of words for each kind of table.
        sentences: single sentences for places.
        decoders: batches as in `DECODERS`.
        encoder_batches: sizes of batches behind MiniLM.
        encoder_starts: first lines of these batches.
        ranks: of adapters of low rank on query and value, all else frozen.
        adapted: batches behind them.
        training_steps: of the decoder with a tied head.
        seed: of all draws.
    """

    name: ClassVar[str] = "sentence_attacks"
    source: ClassVar[str] = "claims of exact recovery of text"
    citations: ClassVar[tuple[Citation, ...]] = (DAGER_2024,)

    text: str
    batches: int = 20
    sentences: int = 200
    decoders: Sequence[Sequence[int]] = DECODERS
    encoder_batches: Sequence[int] = (2, 4, 8, 16)
    encoder_starts: Sequence[int] = (0, 25, 60, 100, 140)
    ranks: Sequence[int] = RANKS
    adapted: Sequence[Sequence[int]] = ADAPTED
    training_steps: int = 250
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about half an hour of one core, most of it behind MiniLM."""
        rows: list[dict[str, Any]] = []
        with one_thread():
            for part in (self._untied, self._tied, self._decoders, self._adapters, self._places, self._encoder):
                for row in part():
                    rows.append(row)
                    say(f"{row['part']}: {row['setting']}: {row['right']} of {row['all']}")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=_findings(rows),
            conclusion=_conclusions(rows),
            details={"rows": rows},
            tables=[_table(rows)],
        )

    def _untied(self) -> Iterator[dict[str, Any]]:
        for causal in (False, True):
            model = transformer(words=5000, length=32, width=64, blocks=2, causal=causal)
            for index in range(self.batches):
                generator = torch.Generator().manual_seed(self.seed + index)
                size = 1 + index % 16
                ids = frequent_words(5000, size, 24, generator)
                loss = F.cross_entropy(model(ids), torch.arange(size) % 2)
                (table,) = torch.autograd.grad(loss, [model.word.weight])
                yield _words("untied", table.abs().amax(dim=1).nonzero()[:, 0], ids)

    def _tied(self) -> Iterator[dict[str, Any]]:
        model, ids, held_out = trained_decoder(self.training_steps, self.seed)
        generator = torch.Generator().manual_seed(self.seed)
        for index in range(self.batches):
            size, length = ((1, 16), (1, 32), (2, 16), (3, 15), (4, 11))[index % 5]
            starts = torch.randint(held_out, len(ids) - length - 1, (size,), generator=generator).tolist()
            batch = torch.stack([ids[start : start + length] for start in starts])
            loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
            (table,) = torch.autograd.grad(loss, [model.word.weight])
            read = batch[:, :-1].unique()
            found = rows_outside_head(table).rows
            yield _words("tied and trained", read[:0] if found is None else found, batch, read)
            sizes = table.double().norm(dim=1)
            yield _words("tied, largest norms, told their number", sizes.topk(len(read)).indices, batch, read)
            logs = sizes.clamp_min(1e-300).log()
            largest = (logs > logs.mean() + 3.5 * logs.std()).nonzero()[:, 0]
            yield _words("tied, norms beyond 3.5 standard deviations", largest, batch, read)

    def _decoders(self) -> Iterator[dict[str, Any]]:
        for words, width, size, length in self.decoders:
            generator = torch.Generator().manual_seed(100 * size + length)
            model = transformer(words=words, length=64, width=width, blocks=3, causal=True, generator=generator).eval()
            ids = frequent_words(words, size, length, generator)
            yield _search(
                DECODER, f"{words} words, width {width}, {size} x {length}", model, ids, Vocabulary(size=words)
            )

    def _adapters(self) -> Iterator[dict[str, Any]]:
        vocabulary = Vocabulary(size=2000, padding=0, special={1: 0, 2: -1})
        for causal in (True, False):
            for rank in self.ranks:
                for steps in (0, 1):
                    for size, length in self.adapted:
                        generator = torch.Generator().manual_seed(100 * size + length)
                        model = transformer(
                            words=2000, length=32, width=128, blocks=3, causal=causal, generator=generator
                        ).eval()
                        adapt(model, rank, trained=steps > 0, generator=generator)
                        ids = 3 + frequent_words(1997, size, length, generator)
                        ids[:, 0], ids[:, -1] = 1, 2
                        kind = "decoder" if causal else "encoder"
                        when = "later" if steps else "before the first step"
                        setting = f"{kind}, rank {rank}, {when}, {size} x {length}"
                        yield _search(ADAPTERS, setting, model, ids, vocabulary)

    def _places(self) -> Iterator[dict[str, Any]]:
        if obstacle() is not None:
            return
        model = minilm(generator=torch.Generator().manual_seed(self.seed))
        tables = [model.encoder.get_parameter(f"embeddings.{kind}_embeddings.weight") for kind in ("word", "position")]
        parameters = list(model.parameters())
        for index, line in enumerate(_lines(self.text)[: self.sentences]):
            ids = minilm_ids([line], length=64)
            begun = time.process_time()
            gradient = torch.autograd.grad(F.cross_entropy(model(ids), torch.tensor([index % 2])), parameters)
            plain = time.process_time() - begun
            words, places = (gradient[next(i for i, one in enumerate(parameters) if one is table)] for table in tables)
            norm = float(sum(part.double().square().sum() for part in gradient)) ** 0.5
            level = norm / sum(part.numel() for part in gradient) ** 0.5
            generator = torch.Generator().manual_seed(self.seed + index)
            for noise in (0.0, 1.0, 2.0):
                begun = time.process_time()
                rows = (words != 0).any(dim=1).nonzero()[:, 0]
                count = int((places != 0).any(dim=1).sum())
                noisy = [
                    part + noise * level * torch.randn(part.shape, generator=generator)
                    for part in (words[rows], places[:count])
                ]
                found = rows[place_words(*noisy).words]
                cost = (time.process_time() - begun) / plain
                right = found == ids[0]
                setting = f"MiniLM, noise {noise:g} x the gradient's norm" if noise else "MiniLM"
                yield _row(PLACES, setting, bool(right.all()), 1, 0, cost, in_place=float(right.double().mean()))

    def _encoder(self) -> Iterator[dict[str, Any]]:
        if obstacle() is not None:
            return
        model = minilm(generator=torch.Generator().manual_seed(self.seed))
        vocabulary, lines = minilm_vocabulary(), _lines(self.text)
        for size in self.encoder_batches:
            for start in self.encoder_starts:
                ids = minilm_ids(lines[start : start + size], length=32)
                yield _search(ENCODER, f"MiniLM, batch of {size}", model, ids, vocabulary)
        for size in [size for size in self.encoder_batches if size in (2, 8)]:
            ids = minilm_ids(lines[25 : 25 + size], length=32)
            for setting, change in defended(model, ids).items():
                yield _search(ENCODER_DEFENDED, f"MiniLM, batch of {size}, {setting}", model, ids, vocabulary, **change)


class Adapted(nn.Module):
    """A frozen linear layer W plus an adapter B A of low rank.

    Args:
        base: W.
        rank: rows of A.
        trained: False for B = 0, as before the first step.
        generator: of A and B.
    """

    def __init__(self, base: nn.Linear, rank: int, *, trained: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        for layer, std in ((self.down, base.in_features**-0.5), (self.up, 0.02 if trained else 0.0)):
            layer.weight.data.copy_(std * torch.randn(layer.weight.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """W x + B A x."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapt(model: Transformer, rank: int, *, trained: bool, generator: torch.Generator) -> None:
    """Freeze a transformer but for its head, and put adapters on query and value of every block."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("query", "value"):
            setattr(block, name, Adapted(getattr(block, name), rank, trained=trained, generator=generator))
    model.head.requires_grad_(True)


def defended(model: nn.Module, ids: Tensor) -> dict[str, dict[str, Any]]:
    """Releases of a batch behind an encoder, by name: noise, half precision, local training, dropout."""
    objective = Objective.from_module(model)
    gradient = objective.flatten(objective.gradient(objective.params, Batch(ids, torch.arange(len(ids)) % 2)))
    level = float(gradient.norm()) / gradient.numel() ** 0.5

    def noisy(share: float) -> dict[str, Any]:
        return {"defenses": [GaussianNoise(std=share * level)]}

    return {
        **{f"noise of {share:g} of the norm": noisy(share) for share in (1e-3, 1e-2, 1e-1)},
        "half precision": {"sent_as": torch.float16},
        "5 local steps at rate 1e-3": {"protocol": FedAvg(learning_rate=1e-3, epochs=5)},
        "dropout of 0.1": {"mode": "train"},
    }


def frequent_words(words: int, size: int, length: int, generator: torch.Generator) -> Tensor:
    """Ids (size, length) drawn with frequencies 1, 1/2, 1/3, ... of a random order of words."""
    weights = 1.0 / torch.arange(1, words + 1, dtype=torch.float64)
    order = torch.randperm(words, generator=generator)
    return order[torch.multinomial(weights, size * length, replacement=True, generator=generator).reshape(size, length)]


def trained_decoder(steps: int, seed: int) -> tuple[Transformer, Tensor, int]:
    """A decoder with a tied head, trained on nine tenths of the Python manual: the model, all ids, and where the rest begins."""
    text = " ".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics)).lower()
    tokens = re.findall(r"\w+|[^\w\s]", text)
    frequent = {word: place + 1 for place, (word, _) in enumerate(Counter(tokens).most_common(1999))}
    ids = torch.tensor([frequent.get(token, 0) for token in tokens])
    held_out = int(0.9 * len(ids))
    generator = torch.Generator().manual_seed(seed)
    model = transformer(
        words=2000, length=48, width=96, blocks=3, causal=True, classes=0, tied=True, generator=generator
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(0, held_out - 33, (16,), generator=generator).tolist()
        rows = torch.stack([ids[start : start + 33] for start in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), ids, held_out


def _search(
    part: str,
    setting: str,
    model: nn.Module,
    ids: Tensor,
    vocabulary: Vocabulary,
    *,
    defenses: Sequence[Defense] = (),
    protocol: Any = None,
    mode: str = "eval",
    sent_as: torch.dtype | None = None,
) -> dict[str, Any]:
    """One attack of `SpanSearch` on one batch, with its cost in processor time of plain gradients."""
    objective = Objective.from_module(model, mode=mode)
    batch = Batch(ids, torch.arange(len(ids)) % 2, Domain.tokens(vocabulary, ids.shape[1]))
    release = Release(protocol or FedSGD(), list(defenses))
    update = release(objective, batch, torch.Generator().manual_seed(0))
    if sent_as is not None:
        update = type(update)(
            tensors={name: tensor.to(sent_as) for name, tensor in update.tensors.items()}, kind=update.kind
        )
    knowledge = HonestButCurious().disclose(objective, release, batch)
    begun = time.process_time()
    objective.gradient(objective.params, batch)
    plain = time.process_time() - begun
    begun = time.process_time()
    found = SpanSearch()(update, knowledge, generator=torch.Generator().manual_seed(0))
    cost = (time.process_time() - begun) / plain
    truth = Counter(_sentences(ids))
    claimed = Counter(() if found.tokens is None else _sentences(found.tokens))
    right = (truth & claimed).total()
    tokens = int((ids >= 0).sum())
    return _row(
        part, setting, right, truth.total(), claimed.total() - right, cost, tokens=tokens, outcome=found.outcome.label
    )


def _sentences(ids: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row[row >= 0].tolist()) for row in ids]


def _words(setting: str, found: Tensor, batch: Tensor, read: Tensor | None = None) -> dict[str, Any]:
    """Words that were read and named; named ones that do not stand in the batch at all are wrong."""
    expected = set((batch if read is None else read).flatten().tolist())
    named, there = set(found.tolist()), set(batch.flatten().tolist())
    return _row(WORDS, setting, len(named & expected), len(expected), len(named - there), 0.0)


def _row(part: str, setting: str, right: int, total: int, wrong: int, cost: float, **facts: Any) -> dict[str, Any]:
    return {"part": part, "setting": setting, "right": int(right), "all": total, "wrong": wrong, "cost": cost, **facts}


def _groups(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str], list[Mapping[str, Any]]]]:
    for key in dict.fromkeys((row["part"], row["setting"]) for row in rows):
        yield key, [row for row in rows if (row["part"], row["setting"]) == key]


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for (part, setting), group in _groups(rows):
        right, total = sum(row["right"] for row in group), sum(row["all"] for row in group)
        wrong = sum(row["wrong"] for row in group)
        unit = "words read that are named" if part == WORDS else "sentences exact"
        places = [row["in_place"] for row in group if "in_place" in row]
        note = f"{wrong} wrong claims" + (f"; mean share in place {sum(places) / len(places):.3f}" if places else "")
        found.append(
            Finding(quantity=f"{part}, {setting}: share of {unit}", ours=right / total, n=len(group), note=note)
        )
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = []
    for (part, setting), group in _groups(rows):
        costs = [row["cost"] for row in group]
        counts = [sum(row[name] for row in group) for name in ("right", "all", "wrong")]
        body.append(
            [part, setting, f"{counts[0]} of {counts[1]}", str(counts[2]), f"{min(costs):.1f} to {max(costs):.1f}"]
        )
    columns = ("part", "setting", "right", "wrong claims", "plain gradients")
    return Table(title="Words, places and sentences", columns=columns, rows=body)


def _conclusions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def share(keep: Callable[[Mapping[str, Any]], bool]) -> str:
        chosen = [row for row in rows if keep(row)]
        return f"{sum(row['right'] for row in chosen)} of {sum(row['all'] for row in chosen)}"

    lines = [
        f"Words of untied tables: {share(lambda row: row['setting'] == 'untied')}; of a tied, trained one: "
        f"{share(lambda row: row['setting'] == 'tied and trained')}.",
        f"Sentences behind decoders: {share(lambda row: row['part'] == DECODER)}.",
    ]
    if obstacle() is not None:
        return [*lines, f"MiniLM was not tried ({obstacle()})."]
    return [
        *lines,
        f"Single sentences from places alone on MiniLM: {share(lambda row: row['setting'] == 'MiniLM')}.",
        f"Sentences of batches behind MiniLM: {share(lambda row: row['part'] == ENCODER)}, with "
        f"{sum(row['wrong'] for row in rows if row['part'] == ENCODER)} wrong claims.",
    ]


def _lines(path: str) -> list[str]:
    return [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]

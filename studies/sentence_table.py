"""Study: attacks on text side by side at equal cost, one thing after another changed around one small setting."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gradleak.attacks import LAMP, TAG, Attack, GaussNewton, SpanSearch, TokenRows
from gradleak.attacks.text.language import NGram
from gradleak.core import (
    Batch,
    Defense,
    Domain,
    HonestButCurious,
    Knowledge,
    Objective,
    Protocol,
    Reconstruction,
    Release,
    Update,
    Vocabulary,
    describe,
    one_thread,
)
from gradleak.defenses import Clip, GaussianNoise, Prune, Sign
from gradleak.models import transformer
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import BALUNOVIC_2022, DAGER_2024, DENG_2021, LEVENBERG_MARQUARDT, Citation, Outcome
from gradleak.scoring.text import score_sentences
from studies.sentence_attacks import adapt
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.token_decoders import frequent_lines, frozen_words

WIDTH, BLOCKS = 32, 2
# Times the budget, for a second `GaussNewton`: its products are counted one by one and computed many at once.
LONGER = 8
BASE = "base: an encoder, one sentence, all shared"
# Norm and number of entries of the update, to the defenses on it.
Defend = Callable[[float, int], Sequence[Defense]]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A setting of the table: the base but for one thing.

    Attributes:
        name: of what is changed.
        size: sentences of the batch.
        causal: a decoder in place of the encoder.
        classes: of the head; 0 for a language model.
        tied: whether its head is the table of words.
        frozen: whether the table of words is not shared.
        rank: of adapters on query and value after a first step, all else but the head frozen; None for none.
        protocol: of the client; None for one gradient.
        defend: defenses for an update of this norm and number of entries.
        sent_as: of the entries of the update.
    """

    name: str
    size: int = 1
    causal: bool = False
    classes: int = 2
    tied: bool = False
    frozen: bool = False
    rank: int | None = None
    protocol: Protocol | None = None
    defend: Defend | None = None
    sent_as: torch.dtype | None = None

    def model(self, words: int, length: int, std: float, generator: torch.Generator) -> nn.Module:
        """The network, with random weights."""
        model = transformer(
            words=words,
            length=length,
            width=WIDTH,
            blocks=BLOCKS,
            causal=self.causal,
            classes=self.classes,
            tied=self.tied,
            std=std,
            generator=generator,
        )
        if self.rank is not None:
            adapt(model, self.rank, trained=True, generator=generator)
        return frozen_words(model) if self.frozen else model


def _noise(share: float) -> Defend:
    return lambda norm, entries: [GaussianNoise(std=share * norm / entries**0.5)]


CELLS: Sequence[Cell] = (
    Cell(name=BASE),
    *(Cell(name=f"batch of {size}", size=size) for size in (2, 4, 8, 16)),
    Cell(name="a decoder", causal=True),
    Cell(name="a language model, own head", causal=True, classes=0),
    Cell(name="a language model, tied head", causal=True, classes=0, tied=True),
    Cell(name="word table frozen", frozen=True),
    *(Cell(name=f"LoRA, rank {rank}", rank=rank) for rank in (8, 16, 64)),
    Cell(name="FedAvg, 5 steps of 0.01", protocol=FedAvg(learning_rate=0.01, epochs=5)),
    Cell(name="sent as fp16", sent_as=torch.float16),
    Cell(name="clipped to half its norm", defend=lambda norm, entries: [Clip(norm / 2)]),
    Cell(name="90 % pruned", defend=lambda norm, entries: [Prune(0.9)]),
    Cell(name="signs", defend=lambda norm, entries: [Sign()]),
    *(Cell(name=f"noise of {share:g} of the norm", defend=_noise(share)) for share in (0.01, 0.1, 1.0)),
)


@dataclass(frozen=True, kw_only=True)
class SentenceTable(Study):
    """A table setting × attack of exact sentences, tokens in place, wrong claims sold as certain, and plain gradients.

    One small encoder with random weights and one sentence of WikiText-2 are the base, and one thing is changed at a time
    (`CELLS`). `TAG`, `LAMP` and `GaussNewton` may take the same number of plain gradients, and a second `GaussNewton` eight
    times as many, which is nearer to equal time; `SpanSearch` and `TokenRows` take what they need. All know the defenses;
    labels are recovered. Sentences that are not attacked make the language model of `LAMP`, and their words fill the
    vocabulary.

    Attributes:
        text: sentences, one a line; their first tokens are taken.
        length: tokens of a sentence.
        lines: of which the vocabulary is made.
        sentences: attacked in each setting, in batches of its size; at least one batch.
        budget: plain gradients of those that search.
        std: of the random weights.
        cells: names of settings; none for all.
        seed: of all draws.
    """

    name: ClassVar[str] = "sentence_table"
    source: ClassVar[str] = "attacks on text at equal cost"
    citations: ClassVar[tuple[Citation, ...]] = (DENG_2021, BALUNOVIC_2022, DAGER_2024, LEVENBERG_MARQUARDT)

    text: str
    length: int = 8
    lines: int = 70
    sentences: int = 1
    budget: int = 1000
    std: float = 0.1
    cells: Sequence[str] = ()
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about ten minutes of one core."""
        ids, vocabulary = frequent_lines(self.text, self.lines, self.length)
        language = NGram(sentences=ids[16:].tolist(), vocabulary=vocabulary.size)
        entrants: Sequence[tuple[str, Attack, Fit, float]] = (
            ("TAG", TAG(), _tag, self.budget),
            ("LAMP", LAMP(language=language), _lamp, self.budget),
            ("GaussNewton", GaussNewton(), _gauss_newton, self.budget),
            (f"GaussNewton x {LONGER}", GaussNewton(), _gauss_newton, LONGER * self.budget),
            ("SpanSearch", SpanSearch(), _as_it_is, self.budget),
            ("TokenRows", TokenRows(), _as_it_is, self.budget),
        )
        chosen = [cell for cell in CELLS if not self.cells or cell.name in self.cells]
        rows: list[dict[str, Any]] = []
        with one_thread():
            for cell in chosen:
                cases = [
                    self._case(cell, ids, vocabulary, index) for index in range(max(1, self.sentences // cell.size))
                ]
                for name, attack, fit, budget in entrants:
                    fitted = _Fitted(attack=attack, fit=fit, budget=budget)
                    rows.append({"cell": cell.name, "attack": name} | self._row(fitted, cases))
                    say(f"{cell.name}, {rows[-1]['attack']}: {_cell(rows[-1])}; {rows[-1].get('seconds', 0.0):.0f} s")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=_findings(rows),
            conclusion=_conclusions(rows, self.budget),
            details={"rows": rows, "words": vocabulary.size},
            tables=[_table(rows)],
        )

    def _case(
        self, cell: Cell, ids: Tensor, vocabulary: Vocabulary, index: int
    ) -> tuple[Update, Knowledge, list[list[int]]]:
        """An update, what is known, and the sentences behind it."""
        generator = torch.Generator().manual_seed(self.seed)
        objective = Objective.from_module(
            cell.model(vocabulary.size, self.length, self.std, generator),
            loss="cross_entropy" if cell.classes else "causal_lm",
        )
        chosen = ids[index * cell.size : (index + 1) * cell.size]
        targets = torch.arange(index, index + len(chosen)) % 2 if cell.classes else chosen
        batch = Batch(chosen, targets, Domain.tokens(vocabulary, self.length))
        protocol = cell.protocol or FedSGD()
        plain = objective.flatten(Release(protocol).mean(objective, objective.params, batch))
        defenses = cell.defend(float(plain.norm()), plain.numel()) if cell.defend else ()
        release = Release(protocol, defenses)
        update = release(objective, batch, torch.Generator().manual_seed(self.seed + index))
        if cell.sent_as is not None:
            update = replace(update, tensors={name: one.to(cell.sent_as) for name, one in update.tensors.items()})
        # Behind a causal loss nobody reads the last token.
        read = chosen if cell.classes else chosen[:, :-1]
        return update, HonestButCurious().disclose(objective, release, batch), read.tolist()

    def _row(self, fitted: _Fitted, cases: Sequence[tuple[Update, Knowledge, list[list[int]]]]) -> dict[str, Any]:
        knowledge = cases[0][1]
        refused = fitted.attack.refusal(knowledge)
        if refused is not None:
            return {"refused": refused}
        chosen = fitted.fit(fitted.attack, knowledge, fitted.budget)
        if chosen is None:
            return {"skipped": f"its least search is beyond {fitted.budget:,.0f} plain gradients"}
        begun = time.process_time()
        found = chosen.many(
            [update for update, _, _ in cases],
            [known for _, known, _ in cases],
            generators=[torch.Generator().manual_seed(self.seed + index) for index in range(len(cases))],
        )
        seconds = time.process_time() - begun
        return _scored(found, [truth for _, _, truth in cases]) | {"seconds": seconds}


# The attack with as much search as a budget buys by its own estimate; None where the least is too much.
Fit = Callable[[Any, Knowledge, float], Attack | None]


class _Fitted(NamedTuple):
    """An attack, how it is fitted to a budget, and the budget in plain gradients."""

    attack: Attack
    fit: Fit
    budget: float


def _tag(attack: TAG, knowledge: Knowledge, budget: float) -> Attack | None:
    first, second = (replace(attack, iterations=count).estimate(knowledge) for count in (1, 2))
    return None if first > budget else replace(attack, iterations=1 + math.floor((budget - first) / (second - first)))


def _lamp(attack: LAMP, knowledge: Knowledge, budget: float) -> Attack | None:
    """In the proportions of its own starts, steps and moves."""
    share = budget / attack.estimate(knowledge)
    starts, iterations, moves = (
        math.floor(share * count) for count in (attack.starts, attack.iterations, attack.moves)
    )
    if min(starts, iterations, moves) < 1:
        return None
    return replace(attack, starts=starts, iterations=iterations, moves=moves)


def _gauss_newton(attack: GaussNewton, knowledge: Knowledge, budget: float) -> Attack | None:
    return replace(attack, max_plain_gradients=float(budget))


def _as_it_is(attack: Attack, knowledge: Knowledge, budget: float) -> Attack | None:
    return attack


def _scored(found: Sequence[Reconstruction], truths: Sequence[list[list[int]]]) -> dict[str, Any]:
    """Scores over all batches of a setting."""
    exact = wrong = named = 0
    in_place: list[float] = []
    for one, truth in zip(found, truths, strict=True):
        claims = [] if one.tokens is None else [[word for word in row if word >= 0] for row in one.tokens.tolist()]
        scores = score_sentences(truth, claims).sentences
        exact += sum(score.exact for score in scores)
        in_place += [score.in_place for score in scores]
        false = Counter(map(tuple, claims)) - Counter(map(tuple, truth))
        wrong += false.total() if one.outcome is Outcome.CONVERGED else 0
        words = {word for row in truth for word in row}
        named += one.bag is not None and set(one.bag.tolist()) == words
    return {
        "exact": exact,
        "sentences": len(in_place),
        "in_place": sum(in_place) / len(in_place),
        "wrong": wrong,
        "bags": named,
        "batches": len(found),
        "claims": sum(one.tokens is not None for one in found),
        "outcomes": sorted({one.outcome.label for one in found}),
        "plain_gradients": sum(one.plain_gradients or 0.0 for one in found) / len(found),
    }


def _cell(row: Mapping[str, Any]) -> str:
    """A cell of the table as it is printed."""
    if "refused" in row:
        return "refused"
    if "skipped" in row:
        return "not run"
    cost = f"{row['plain_gradients']:,.0f}"
    if not row["claims"]:
        bags = f", words of {row['bags']} of {row['batches']}" if row["bags"] else ""
        return f"no sentence claimed{bags}; {cost}"
    wrong = f", {row['wrong']} wrong" if row["wrong"] else ""
    return f"{row['exact']} of {row['sentences']}, {row['in_place']:.2f}{wrong}; {cost}"


def _names(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    found = {(row["cell"], row["attack"]): row for row in rows}
    attacks = _names(rows, "attack")
    body = [[cell, *(_cell(found[cell, attack]) for attack in attacks)] for cell in _names(rows, "cell")]
    title = "Exact sentences, share of tokens in place, wrong claims sold as converged; plain gradients a batch"
    return Table(title=title, columns=("setting", *attacks), rows=body)


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for row in rows:
        reason = row.get("refused") or row.get("skipped")
        found.append(
            Finding(
                quantity=f"{row['cell']}, {row['attack']}: share of sentences exact",
                ours=None if reason else row["exact"] / row["sentences"],
                n=row.get("sentences", 0),
                note=("refused: " if "refused" in row else "not run: ") + reason
                if reason
                else f"{', '.join(row['outcomes'])}; {row['wrong']} wrong claims sold as converged; {row['seconds']:.1f} s",
            )
        )
    return found


def _conclusions(rows: Sequence[Mapping[str, Any]], budget: int) -> list[str]:
    lines = [
        f"TAG, LAMP and GaussNewton had {budget:,} plain gradients a batch; SpanSearch and TokenRows took what they need."
    ]
    for attack in _names(rows, "attack"):
        run = [row for row in rows if row["attack"] == attack and "exact" in row]
        sums = [sum(row[key] for row in run) for key in ("exact", "sentences", "wrong")]
        lines.append(
            f"{attack}: {sums[0]} of {sums[1]} sentences exact in {len(run)} settings, {sums[2]} wrong claims sold as converged, "
            f"{sum(row['seconds'] for row in run):.0f} s of one core."
        )
    return lines


__all__ = ["CELLS", "Cell", "SentenceTable"]
